"""Recognizes the batches that Spark skips after a rewind without its file sink.

The log of a file sink still has the batches that a rewind removed, and the sink skips them: no task runs, so no store gets
a version. In structure V1, Spark commits each skipped batch, and the query fails in the first batch that is not skipped. In
structure V2, it fails in the first skipped batch (`CheckpointInfo length: 0`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import quarantine
from statekeeper.statestore.maintenance.records.quarantine import QuarantineRecord
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class SkippedBatches:
    """Batches without any state after a rewind.

    target        the batch of the rewind
    first, last   the batches
    is_committed  whether Spark has committed them; otherwise the first one may also have been stopped before its first task
    """

    target: int
    first: int
    last: int
    is_committed: bool

    @property
    def in_words(self) -> str:
        """The batches, such as "batches 3 to 5"."""
        return f"batch {self.first}" if self.first == self.last else f"batches {self.first} to {self.last}"

    @property
    def way_out(self) -> str:
        """The command that rolls back the sink, too."""
        return (
            f"statekeeper rewind ROOT --to-batch {self.target} --file-sink URL --apply --confirm-stopped. URL is the "
            "`path` of the sink"
        )


def find(
    rewinds: Iterable[QuarantineRecord], *, committed: Collection[int], begun: Collection[int], newest_version: int
) -> SkippedBatches | None:
    """Find the batches that Spark skipped after the newest rewind. Pure.

    rewinds         the records of earlier rewinds
    committed       the batches in the commit log
    begun           the batches that have offsets
    newest_version  the newest version of any store that has a file; 0 without files
    """
    newest = max(committed, default=-1)
    target = newest_version - 1
    if target < 0:
        return None
    for record in rewinds:
        if record.position.batch != target or record.file_sink is not None or not record.rewound:
            continue
        last = min(max(record.rewound), max(newest, max(begun, default=-1)))
        if target < newest <= last:
            return SkippedBatches(target=target, first=target + 1, last=newest, is_committed=True)
        if target == newest < last:
            return SkippedBatches(target=target, first=target + 1, last=last, is_committed=False)
    return None


def rewinds(storage: Storage, paths: Iterable[str]) -> list[QuarantineRecord]:
    """Read the records of the rewinds that can still be undone. `paths`: a listing that includes the quarantine.

    One request for each record. Raises `StorageError`.
    """
    found = []
    for path in paths:
        place = names.parse_quarantined(path)
        if place is None or place[1]:
            continue
        try:
            record = quarantine.recorded(storage, place[0])
        except CorruptFile:
            continue  # the undo reports it
        if record is not None and record.order:
            found.append(record)
    return found
