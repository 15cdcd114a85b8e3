"""Moves files of the old structure into quarantine, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from statekeeper.statestore.errors import AlreadyExists, ObjectMissing
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.quarantine import require_deleted
from statekeeper.statestore.storage import Storage


def move_to_quarantine(storage: Storage, run: str, path: str) -> None:
    """Move a file into the quarantine of the run; do nothing if the file is missing. Raises `StorageError`."""
    try:
        body = storage.read(path)
    except ObjectMissing:
        return  # an interrupted run has moved it
    # If a query wrote the file again after an interrupted run, the new file replaces the quarantined one.
    storage.replace(names.quarantine(run, path), body, like=path)
    require_deleted(storage, path, body)


def put_back(storage: Storage, run: str, paths: Iterable[str], still_held: Callable[[], None]) -> None:
    """Move files from the quarantine of the run back to their paths.

    A file that the query wrote again is kept; then the quarantined sidecar is not restored, because it is the checksum of
    the old file. Raises `StorageError`, and the errors of `still_held`.
    """
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
            # An interrupted run has restored it.
        storage.delete([quarantined])
