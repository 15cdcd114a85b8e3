"""How far a batch is, and what it did: what a driver tells whoever watches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pipelines.task import PartitionReport


class Phase(Enum):
    """Where a batch is, in the order of the protocol."""

    STARTED = "started"
    OFFSETS_WRITTEN = "offsets written"
    COMPUTING = "computing"
    COMPUTED = "computed"
    PENDING_WRITTEN = "pending attempt written"
    SINK_WRITING = "writing to the sink"
    SINK_WRITTEN = "sink written"
    COMMITTED = "committed"


class Outcome(Enum):
    """How a batch ended."""

    COMPUTED = "computed"
    TAKEN_FROM_SINK = "the sink held it already"
    DONE_BEFORE = "committed before"


@dataclass(frozen=True)
class BatchReport:
    """What a batch did. `milliseconds` by phase: the time until the next one."""

    batch: int
    outcome: Outcome
    attempts: int
    partitions: tuple[PartitionReport, ...]
    milliseconds: Mapping[Phase, float]
    driver_requests: int
    notes: tuple[str, ...] = ()


class Observer(Protocol):
    """Is told what happens, on the driver."""

    def phase(self, batch: int, phase: Phase) -> None:
        """The batch has come this far."""

    def finished(self, report: BatchReport) -> None:
        """The batch is committed."""
