"""Tests whether a store supports conditional deletes (`If-Match` on DELETE).

Amazon S3 does. A store that ignores the header deletes the object regardless of its ETag. So each store is tested once:
a delete with a wrong ETag must not delete a test object.
"""

from __future__ import annotations

from collections.abc import Callable

from statekeeper.statestore.errors import AlreadyExists, StorageError

_WRONG_ETAG = '"00000000000000000000000000000000"'

_KNOWN: dict[tuple[str, str], bool] = {}
"""The results in this process, by endpoint and bucket."""


def deletes_on_condition(
    store: tuple[str, str], create: Callable[[], None], delete_if: Callable[[str], None], delete: Callable[[], None]
) -> bool:
    """Return whether the store (endpoint and bucket) supports the condition. Three requests, once per process.

    The requests use one new object that no other process knows. Raises `StorageError` for failures unrelated to
    conditions.
    """
    if store not in _KNOWN:
        create()
        try:
            delete_if(_WRONG_ETAG)
            honours = False
        except AlreadyExists:
            honours = True
        except StorageError:
            honours = False  # the store rejects the unknown header; the later deletes report other errors
        delete()
        _KNOWN[store] = honours
    return _KNOWN[store]
