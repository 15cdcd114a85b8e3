"""Progress of a batch, as the driver reports it to an observer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pipelines.reports import PartitionReport


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
    """Report of a committed batch. `milliseconds`: phase -> time until the next phase."""

    batch: int
    outcome: Outcome
    attempts: int
    partitions: tuple[PartitionReport, ...]
    milliseconds: Mapping[Phase, float]
    driver_requests: int
    notes: tuple[str, ...] = ()


class Observer(Protocol):
    """Receives the progress of a query, on the driver."""

    def phase(self, batch: int, phase: Phase) -> None:
        """Called when the batch enters a phase."""

    def finished(self, report: BatchReport) -> None:
        """Called when the batch is committed."""
