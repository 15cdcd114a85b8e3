"""The figures of the newest batches, on the driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from statekeeper.pipelines.task.reports import TaskReport
from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.format import batch_log
from statekeeper.statestore.storage import RequestCounts
from statekeeper.statestore.storage.hedging import percentile
from statekeeper.statestore.storage.query_metrics import QueryMetrics

_WINDOW_BATCHES = 1000
_SHARES = (0.5, 0.99, 0.999)


@dataclass(kw_only=True)
class _Batch:
    began_seconds: float
    ended_seconds: float = 0.0
    requests: RequestCounts = field(default_factory=RequestCounts)
    record_milliseconds: float = 0.0
    record_bytes: int = 0
    members: int = 0
    uploaded_bytes: int = 0
    early_bytes: int = 0
    back_pressure_seconds: float = 0.0


class MetricsWindow:
    """Collects the figures of a batch while it runs, and sums up those of the newest batches."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._finished: deque[_Batch] = deque(maxlen=_WINDOW_BATCHES)
        self._now = _Batch(began_seconds=0.0)

    def begin(self) -> None:
        """Begin a batch."""
        self._now = _Batch(began_seconds=self._clock.monotonic_seconds())

    def add_tasks(self, tasks: Iterable[TaskReport]) -> None:
        """Add the figures of an attempt's tasks. Those of attempts that failed are unknown."""
        for task in tasks:
            self._now.requests += task.requests
            for store in (store for partition in task.partitions for store in partition.stores):
                self._now.back_pressure_seconds += store.commit.back_pressure_seconds
                if batch_log.path_of(store.new) is None:
                    self._now.uploaded_bytes += store.commit.uploaded_bytes
                    self._now.early_bytes += store.commit.early_bytes

    def add_record(self, size_bytes: int, members: int, seconds: float) -> None:
        """Add the record of an attempt, the number of changelogs in it, and the time to write it."""
        self._now.record_bytes = size_bytes
        self._now.members = members
        self._now.record_milliseconds = seconds * 1000

    def end(self, requests_of_driver: RequestCounts) -> QueryMetrics:
        """End the batch. Returns the figures of the newest batches, including this one."""
        self._now.requests += requests_of_driver
        self._now.ended_seconds = self._clock.monotonic_seconds()
        self._finished.append(self._now)
        return self._summed()

    @property
    def newest(self) -> QueryMetrics | None:
        """The figures of the batches that have ended; None before the first."""
        return self._summed() if self._finished else None

    def _summed(self) -> QueryMetrics:
        batches = list(self._finished)
        requests = sum((one.requests for one in batches), RequestCounts())
        # A batch that another run computed has no record of its own.
        recorded = [one for one in batches if one.record_bytes]
        times = sorted(one.record_milliseconds for one in recorded)
        p50, p99, p999 = (percentile(times, share) if times else 0.0 for share in _SHARES)
        return QueryMetrics(
            batches=len(batches),
            seconds=batches[-1].ended_seconds - batches[0].began_seconds,
            writes=requests.writes,
            reads=requests.reads,
            hedges_sent=requests.hedges_sent,
            hedges_won=requests.hedges_won,
            wait_seconds=requests.wait_seconds,
            record_bytes=recorded[-1].record_bytes if recorded else 0,
            members=recorded[-1].members if recorded else 0,
            record_milliseconds=(p50, p99, p999),
            uploaded_bytes=sum(one.uploaded_bytes for one in batches),
            early_bytes=sum(one.early_bytes for one in batches),
            back_pressure_seconds=sum(one.back_pressure_seconds for one in batches),
        )
