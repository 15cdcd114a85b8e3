"""Progress of a batch, as the driver reports it to an observer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from statekeeper.pipelines.operator.times import Batch
from statekeeper.pipelines.sinks.delta_writer import WriterUsed
from statekeeper.pipelines.task.reports import PartitionReport, StoreReport
from statekeeper.statestore.format import batch_log
from statekeeper.statestore.storage.query_metrics import QueryMetrics


class Phase(Enum):
    """Phases of a batch, in the order of the protocol."""

    STARTED = "started"
    OFFSETS_WRITTEN = "offsets written"
    COMPUTING = "computing"
    COMPUTED = "computed"
    PENDING_WRITTEN = "pending attempt written"
    SINK_WRITING = "writing to the sink"
    SINK_WRITTEN = "sink written"
    COMMITTED = "committed"


class Outcome(Enum):
    """Result of a batch."""

    COMPUTED = "computed"
    TAKEN_FROM_SINK = "the sink held it already"
    DONE_BEFORE = "committed before"


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """Report of a committed batch.

    milliseconds  phase -> time until the next phase
    metrics       the figures of this batch and the newest ones before it
    times         time and watermark of the batch; None if it was committed before
    writers       output -> the writer of its rows and the reason, for sinks that choose one; empty for a batch that was not
                  computed
    """

    batch: int
    outcome: Outcome
    attempts: int
    partitions: tuple[PartitionReport, ...]
    milliseconds: Mapping[Phase, float]
    driver_requests: int
    metrics: QueryMetrics
    notes: tuple[str, ...] = ()
    times: Batch | None = None
    writers: Mapping[str, WriterUsed] = field(default_factory=dict)

    @property
    def late_rows(self) -> int:
        """The rows that were dropped because they were late."""
        return sum(report.times.late_rows for report in self.partitions)

    @property
    def fired_timers(self) -> int:
        """The timers that were due."""
        return sum(report.times.fired_timers for report in self.partitions)

    @property
    def expired_rows(self) -> int:
        """The rows of the state that were deleted because they had expired."""
        return sum(report.times.expired_rows for report in self.partitions)

    @property
    def early_upload_share(self) -> float | None:
        """The share of the bytes of changelogs with an object of their own that was in storage before the commits; None
        if all changelogs are in the batch log."""
        own = [store.commit for store in self._stores() if batch_log.path_of(store.new) is None]
        uploaded_bytes = sum(commit.uploaded_bytes for commit in own)
        return sum(commit.early_bytes for commit in own) / uploaded_bytes if uploaded_bytes else None

    @property
    def back_pressure_seconds(self) -> float:
        """The time that tasks waited for their uploads before the commits, in total."""
        return sum(store.commit.back_pressure_seconds for store in self._stores())

    def _stores(self) -> Iterator[StoreReport]:
        return (store for partition in self.partitions for store in partition.stores)


class Observer(Protocol):
    """Receives the progress of a query, on the driver."""

    def phase(self, batch: int, phase: Phase) -> None:
        """Called when the batch enters a phase."""

    def finished(self, report: BatchReport) -> None:
        """Called when the batch is committed."""
