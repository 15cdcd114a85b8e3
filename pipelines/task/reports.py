"""Reports of tasks to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from statekeeper.pipelines.sinks.data_files import DataFile
from statekeeper.pipelines.task.partitioning import Partitioning
from statekeeper.statestore.base.errors import BaseIdMismatch, PartitionMissing, StatekeeperError
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.root.columns import ColumnChange
from statekeeper.statestore.storage import RequestCounts
from statekeeper.statestore.store.engine.rows_digest import RowsDigest
from statekeeper.statestore.store.loading.loaded import LoadReport
from statekeeper.statestore.store.state_store import CommitMetrics


def tag_of(fresh_id: str) -> int:
    """Return 63 bits of an attempt's id, the tag of each of its rows; a long is cheap."""
    return int(fresh_id.replace("-", "")[:16], 16) >> 1


@dataclass(frozen=True, kw_only=True)
class StoreReport:
    """Load and commit of one store of a partition.

    member          its changelog, if the driver writes it into a batch log
    rewritten_rows  rows that got other columns, because the job has changed the columns of the state
    """

    operator: int
    base: VersionId
    new: VersionId
    load: LoadReport
    commit: CommitMetrics
    member: bytes | None = None
    rewritten_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class TimeCounts:
    """What time did in a partition.

    late_rows        rows that arrived too late, and were dropped
    fired_timers     timers that were due
    expired_rows     rows of the state that were deleted because they had expired
    latest_event_ms  input -> the latest event time of its rows in the partition, or in others of its task
    """

    late_rows: int = 0
    fired_timers: int = 0
    expired_rows: int = 0
    latest_event_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartitionReport:
    """Report of one partition after its commits.

    host                the place of the partition's local copies: the machine's name and the operator's folder on it
    peak_memory_bytes   peak memory of the worker's process
    initial             the initial rows of the partition, in batch 0
    times               what time did in the partition
    """

    partition: int
    host: str
    rows_in: int
    stores: tuple[StoreReport, ...]
    peak_memory_bytes: int
    initial: RowsDigest | None = None
    times: TimeCounts = TimeCounts()


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """Report of a task to the driver after the commits of all its partitions.

    tag       tag of the attempt's rows, see `tag_of`
    requests  its requests to the root
    files     output -> its data files, for outputs that the task writes
    digests   output -> number and digest of its rows, for outputs that the driver wants to compare
    """

    task: int
    tag: int
    partitions: tuple[PartitionReport, ...]
    requests: RequestCounts
    files: Mapping[str, tuple[DataFile, ...]] = field(default_factory=dict)
    digests: Mapping[str, RowsDigest] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskFailure:
    """Report of a task if the batch cannot succeed."""

    task: int
    error: StatekeeperError


Reported = TaskReport | TaskFailure


def checked(
    reports: Sequence[Reported], bases: Mapping[int, tuple[VersionId, ...]], partitioning: Partitioning
) -> list[TaskReport]:
    """Return one report per task, of partitions built on the bases that the driver sent. Raises `PartitionMissing`,
    `BaseIdMismatch`, and the error of a task."""
    chosen: dict[int, TaskReport] = {}
    for report in reports:
        if isinstance(report, TaskFailure):
            raise report.error
        chosen.setdefault(report.task, report)
    of_partitions = [report for task in chosen.values() for report in task.partitions]
    missing = sorted(set(range(partitioning.partitions)) - {report.partition for report in of_partitions})
    if missing:
        raise PartitionMissing(
            f"{len(missing)} of {partitioning.partitions} partitions reported no commit, the first is {missing[0]}; "
            "the batch was not committed",
            hint="restart the query: it runs the batch again",
        )
    for of_partition in of_partitions:
        for store in of_partition.stores:
            sent = bases[store.operator][of_partition.partition]
            if not store.base.is_same(sent):
                raise BaseIdMismatch(
                    f"the task of operator {store.operator}, partition {of_partition.partition} started from version "
                    f"{store.base.version} (id {store.base.mark}), but the driver sent version {sent.version} (id "
                    f"{sent.mark}); the batch was not committed",
                    hint="restart the query: it runs the batch again",
                )
    return [chosen[task] for task in range(partitioning.tasks)]


def initial_digest(reports: Sequence[PartitionReport]) -> str | None:
    """Return the digest of the initial rows of all partitions; None for a batch without."""
    total, found = RowsDigest(), [report.initial for report in reports if report.initial is not None]
    for of_partition in found:
        total.merge(of_partition)
    return str(total) if found else None


def column_notes(changes: Mapping[int, ColumnChange], reports: Sequence[PartitionReport]) -> tuple[str, ...]:
    """Return what a batch did to the columns of each changed store. The keys of `changes` are operator ids."""
    return tuple(
        f"{change}; {sum(one.stores[operator].rewritten_rows for one in reports):,} rows were rewritten"
        for operator, change in changes.items()
    )


_Tagged = list[tuple[str, Reported]]

_CREATION = Lock()
"""*Race*: two queries of one process create their accumulators at the same time. PySpark takes the next id in two steps, so
both could get the same id, and the reports of both queries would go to one of them."""


class _Concatenated(AccumulatorParam[_Tagged]):
    def zero(self, value: _Tagged) -> _Tagged:
        del value
        return []

    def addInPlace(self, value1: _Tagged, value2: _Tagged) -> _Tagged:  # noqa: N802 - Spark's name
        value1.extend(value2)
        return value1


@dataclass(frozen=True)
class AttemptReporter:
    """The task's side of the channel: sends the reports of one attempt of a batch."""

    accumulator: Accumulator[_Tagged]
    attempt: str

    def add(self, report: Reported) -> None:
        """Send a report. The driver receives it when the task has succeeded."""
        self.accumulator.add([(self.attempt, report)])


class ReportChannel:
    """The driver's side of the channel. Holds the reports of at most one attempt."""

    def __init__(self, context: SparkContext) -> None:
        with _CREATION:
            self._accumulator: Accumulator[Any] = context.accumulator([], _Concatenated())

    def open(self, attempt: str) -> AttemptReporter:
        """Return a reporter for the tasks of an attempt."""
        self._accumulator.value = []
        return AttemptReporter(self._accumulator, attempt)

    def take(self, reporter: AttemptReporter) -> Sequence[Reported]:
        """Return the reports of an attempt whose tasks have ended. Late reports of earlier attempts are dropped."""
        reports = self._accumulator.value
        self._accumulator.value = []
        return [report for attempt, report in reports if attempt == reporter.attempt]
