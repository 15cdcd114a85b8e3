"""The proof that a store creates an object only where none is.

Everything rests on it: of two drivers exactly one commits a batch, of two maintainers exactly one holds the lease. A store
that ignores `If-None-Match` overwrites without a word, and nothing shows it until two writers meet.
"""

from __future__ import annotations

from contextlib import suppress

from statestore.clock import Ids
from statestore.errors import AlreadyExists, NoExclusiveCreate, StorageError
from statestore.storage.base import TEMP_FOLDER, Storage


def require_exclusive_create(storage: Storage, ids: Ids) -> None:
    """Create one object twice, with other bytes the second time. For the creation of a root only: two creates, what a
    refused one costs, and a delete.

    Raises `NoExclusiveCreate` when the second one is not refused, `StorageError`.
    """
    path = f"{TEMP_FOLDER}/{ids.fresh()}"
    storage.create(path, b"first")
    try:
        storage.create(path, b"second")
    except AlreadyExists:
        return
    else:
        raise NoExclusiveCreate(
            "the store overwrites an object that a create must leave alone; two drivers would overwrite each other's "
            "batches. Nothing was created",
            path=storage.url,
            hint="use a store that honours If-None-Match on uploads: Amazon S3, or a release of yours that does",
        )
    finally:
        # A job may lack the right to delete; what it leaves is an unfinished file.
        with suppress(StorageError):
            storage.delete([path])
