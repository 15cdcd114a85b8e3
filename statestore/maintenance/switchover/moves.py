"""Takes files out of the way of the other structure, and puts them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from statestore.errors import AlreadyExists, ObjectMissing
from statestore.format import names
from statestore.maintenance.quarantine import require_deleted
from statestore.storage import Storage


def quarantined(storage: Storage, run: str, path: str) -> None:
    """Below `_statekeeper/aside`, under the run's id. Nothing happens when the file is gone already. Raises
    `StorageError`."""
    try:
        body = storage.read(path)
    except ObjectMissing:
        return  # an interrupted run did
    # A file that a query has written again since an interrupted run put it aside is no worse than the one before.
    storage.replace(names.quarantine(run, path), body, like=path)
    require_deleted(storage, path, body)


def put_back(storage: Storage, run: str, paths: Iterable[str], still_held: Callable[[], None]) -> None:
    """Where the run took them from. What the query has written again since stays as it wrote it, and a sidecar of what was
    taken stays aside then: it is the checksum of another file. Raises `StorageError`, and what `still_held` does."""
    written_again: set[str] = set()
    for path in sorted(paths):  # a file before the sidecar beside it
        still_held()
        quarantined = names.quarantine(run, path)
        if path in written_again:
            continue
        body = storage.read(quarantined)
        try:
            storage.create(path, body, like=quarantined)
        except AlreadyExists:
            if storage.read(path) != body:
                written_again |= {path, names.sidecar(path)}
                continue
            # An interrupted run has put it back already.
        storage.delete([quarantined])
