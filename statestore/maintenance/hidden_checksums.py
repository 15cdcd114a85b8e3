"""Finds hidden Hadoop checksums of deleted logs: `commits/.7.crc` without `commits/7`.

Spark rejects a log with a stale checksum, so that the query cannot write the batch again. Audit reports these files, repair
quarantines them, and retention deletes those below the floor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statekeeper.statestore.format import names
from statekeeper.statestore.storage import Entry, Storage, is_hidden


def are_kept(storage: Storage) -> bool:
    """Return whether Hadoop writes and verifies hidden checksums in this storage: only on a local disk."""
    return storage.url.startswith("file:")


def log_of(path: str) -> str | None:
    """Return the log of a hidden checksum in `commits/` or `offsets/`; None for any other path."""
    folder, _, name = path.rpartition("/")
    number = name[1:].removesuffix(names.SIDECAR)
    is_of_log = folder in (names.COMMITS, names.OFFSETS) and names.parse_batch(number) is not None
    return f"{folder}/{number}" if is_of_log and path == names.hidden_checksum(f"{folder}/{number}") else None


def of_deleted_logs(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the hidden checksums of deleted logs. `entries`: a listing of a folder of logs, with hidden files.

    Such a checksum remains if a run dies between the two deletions on a local disk. It also remains if a checkpoint with
    hidden files was copied to a bucket, where a delete does not remove the checksum of the log.
    """
    there = {entry.path for entry in entries}
    for entry in entries:
        log = log_of(entry.path)
        if log is not None and log not in there:
            yield entry


def blocking(storage: Storage, entries: Sequence[Entry]) -> list[str]:
    """Return the hidden checksums that block later logs. `entries`: as in `of_deleted_logs`. One request each, because a
    listing may show the checksum of a running batch without its log."""
    if not are_kept(storage):
        return []
    newest = max((_batch(entry.path) for entry in entries if not is_hidden(entry.path)), default=-1)
    later = {entry.path: log for entry in of_deleted_logs(entries) if (log := log_of(entry.path))}
    return [path for path, log in later.items() if _batch(log) > newest and storage.stat(log) is None]


def _batch(path: str) -> int:
    batch = names.parse_batch(path)
    return -1 if batch is None else batch
