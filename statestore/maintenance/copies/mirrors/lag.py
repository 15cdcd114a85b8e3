"""The lag of a mirror: the batches that a failover loses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statekeeper.statestore.base.errors import NotACheckpoint
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.copies.mirrors import model as records
from statekeeper.statestore.storage import Entry, Storage


@dataclass(frozen=True, kw_only=True)
class Lag:
    """The committed batches of a source that its mirror does not have.

    batch    the newest batch of the mirror
    newest   the newest batch of the source
    seconds  between the commits of both, by the clock of the source; None if the source no longer has the first
    size_bytes  of the changelogs of these batches in the source
    """

    batch: int
    newest: int
    seconds: float | None
    size_bytes: int

    @property
    def batches(self) -> int:
        """The number of these batches."""
        return self.newest - self.batch


def lag_of(files: Mapping[str, Entry], batch: int, newest: int) -> Lag:
    """Measure the lag from the files of the source by path."""
    ends = [files.get(names.commits(number)) for number in (batch, newest)]
    first, last = (None if entry is None else entry.modified_at_seconds for entry in ends)
    seconds = None if first is None or last is None else max(0.0, last - first)
    # Later changelogs belong to a batch that is not committed.
    size_bytes = sum(entry.size_bytes for path, entry in files.items() if batch + 1 < _version(path) <= newest + 1)
    return Lag(batch=batch, newest=newest, seconds=seconds, size_bytes=size_bytes)


def measure(source: Storage, destination: Storage) -> Lag:
    """Measure the lag of a mirror. Two listings of the source. Raises `NotACheckpoint` if the destination is no mirror,
    or the source has no batch; `CorruptFile`, `StorageError`."""
    record = records.read(destination)
    if record is None:
        raise NotACheckpoint(
            "is not a mirror",
            path=destination.url,
            hint=f"create it: statekeeper mirror {source.url} {destination.url}",
        )
    newest = catalog.newest_batch(source)
    if newest is None:
        raise NotACheckpoint("has no committed batch", path=source.url, hint="start its query, or correct the URL")
    return lag_of({entry.path: entry for entry in source.list("")}, record.batch, newest)


def _version(path: str) -> int:
    """The version of a changelog or of a batch log; -1 for another file."""
    if (log := names.parse_batch_log(path)) is not None:
        return log[0]
    found = names.parse_store_path(path)
    return found[1].version.version if found and found[1].kind is names.StoreFileKind.CHANGELOG else -1
