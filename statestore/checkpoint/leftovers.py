"""Finds hidden Hadoop checksums of deleted logs: `commits/.7.crc` without `commits/7`.

Spark rejects a log with a stale checksum, so that the query cannot write the batch again. Audit reports these files, repair
quarantines them, and retention deletes those below the floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
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


@dataclass(frozen=True)
class GivenUp:
    """The rolled-back versions of one store that have files, ascending."""

    changelogs: tuple[VersionId, ...]
    snapshots: tuple[VersionId, ...]

    @property
    def versions(self) -> tuple[VersionId, ...]:
        """All versions with a changelog or a snapshot, ascending."""
        return _ordered({*self.changelogs, *self.snapshots})


def newest_known(*, committed: Iterable[int], begun: Iterable[int]) -> int:
    """Return the newest version that a batch may have made, from the batches in the commit log and in the offset log. Spark
    and Statekeeper's own jobs write the offsets of a batch before its tasks start."""
    return max((*committed, *begun), default=-1) + 1


def given_up(files: StoreFiles, newest: int) -> GivenUp:
    """Return the versions after `newest`, the newest version that the logs contain."""
    return GivenUp(
        _ordered(version for version in files.changelogs if version.version > newest),
        _ordered(version for version in files.snapshots if version.version > newest),
    )


def leads_back(version: VersionId, *, switched: int | None, head: VersionId, base: VersionId | None) -> bool:
    """Return whether a file of the structure before the switchover is still needed to restore a version.

    The switchover's own snapshot, of version `switched`, is the only base until a later snapshot becomes the base of the
    floor. `head`: shows the current structure; `base`: the base of the oldest retained version.
    """
    if switched is None or version.version > switched or (version.id is None) == (head.id is None):
        return False
    return base is None or base.version <= switched


def _ordered(versions: Iterable[VersionId]) -> tuple[VersionId, ...]:
    """Sort by number; several versions may have one number, with and without an id."""
    return tuple(sorted(versions, key=lambda version: (version.version, version.id or "")))
