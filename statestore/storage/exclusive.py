"""A test that a store creates an object only if it does not exist.

Commits and leases depend on it: exactly one of two drivers commits a batch, and exactly one of two maintainers holds
the lease. A store that ignores `If-None-Match` overwrites silently, and this is only noticed when two writers meet.
"""

from __future__ import annotations

from contextlib import suppress

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.base.errors import AlreadyExists, NoExclusiveCreate, StorageError
from statekeeper.statestore.storage.base import TEMP_FOLDER, Storage


def require_exclusive_create(storage: Storage, ids: Ids) -> None:
    """Create one object twice, with other bytes the second time. Only for the creation of a root. Cost: two creates,
    the requests after a rejected create, and a delete.

    Raises `NoExclusiveCreate` if the second create succeeds, and `StorageError`.
    """
    path = f"{TEMP_FOLDER}/{ids.fresh()}"
    storage.create(path, b"first")
    try:
        storage.create(path, b"second")
    except AlreadyExists:
        return
    else:
        raise NoExclusiveCreate(
            "the storage overwrites an existing object on create; two drivers would overwrite each other's "
            "batches. Nothing was created",
            path=storage.url,
            hint="use a storage that supports If-None-Match on uploads: Amazon S3, or a newer release of your storage",
        )
    finally:
        # A job may lack the permission to delete. The object then remains as an unfinished file.
        with suppress(StorageError):
            storage.delete([path])
