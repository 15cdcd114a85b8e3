"""Which stores delete an object only while it has a certain ETag (`If-Match` on DELETE).

Amazon's S3 does. A store that does not know the header deletes whatever object has the name. So each store is tested once:
a delete with a wrong ETag must leave an object of ours alone.
"""

from __future__ import annotations

from collections.abc import Callable

from statestore.errors import AlreadyExists, StorageError

_WRONG_ETAG = '"00000000000000000000000000000000"'

_KNOWN: dict[tuple[str, str], bool] = {}
"""What was found out in this process, by endpoint and bucket."""


def deletes_on_condition(
    store: tuple[str, str], create: Callable[[], None], delete_if: Callable[[str], None], delete: Callable[[], None]
) -> bool:
    """Whether the store (endpoint and bucket) honours the condition. Three requests, once in a process.

    The three work on one object that nobody else knows. Raises `StorageError` for what says nothing about conditions.
    """
    if store not in _KNOWN:
        create()
        try:
            delete_if(_WRONG_ETAG)
            honours = False
        except AlreadyExists:
            honours = True
        except StorageError:
            honours = False  # a store that refuses what it does not know; its own deletes decide what else is wrong
        delete()
        _KNOWN[store] = honours
    return _KNOWN[store]
