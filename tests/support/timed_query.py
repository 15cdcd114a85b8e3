"""An operator with times in one task, without Spark: batches with a time each, and the state as tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.operator.times import TIMESTAMP
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.event_time import EventClock
from statekeeper.pipelines.task.partitioning import GROUP_COLUMN, Partitioning
from statekeeper.pipelines.task.reports import PartitionReport, Reported, TaskFailure, TimeCounts
from statekeeper.pipelines.task.stored import stored
from statekeeper.pipelines.task.task_outputs import MARKER_COLUMN, TaskOutputs
from statekeeper.pipelines.task.work import Task, TaskPlan, Worker
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import due_keys, state_rows
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.unsafe_row import decode_rows
from statekeeper.statestore.root.times import BatchTimes
from statekeeper.statestore.storage import StorageSpec, open_storage
from statekeeper.statestore.store.engine.sweep import SweepLimits
from statekeeper.statestore.store.state_store import StateStore, StoreAddress, StoreLimits

ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("at", TIMESTAMP)])
KEY = pa.schema([("key", pa.int64())])
GROUPS = 8
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_TEXT_ENDS = 54


def at(minutes: float) -> dt.datetime:
    """A time in minutes after the start."""
    return START + dt.timedelta(minutes=minutes)


def minutes(time: dt.datetime | None) -> float | None:
    """The inverse of `at`."""
    return None if time is None else (time - START).total_seconds() / 60


class TimedQuery:
    """Runs batches. `watermark_ms` follows the protocol of the driver."""

    def __init__(self, folder: Path, operator: StatefulOperator, partitions: int = 2) -> None:
        self.folder = folder
        self.operator = operator
        self.partitioning = Partitioning(partitions, GROUPS, 1)
        self.stores = stored(operator)
        self.bases = dict.fromkeys(range(len(self.stores)), (EMPTY,) * partitions)
        self.number = 0
        self.event_clock = EventClock(operator)
        self.watermark_ms = 0
        self.late_watermark_ms = 0
        self.reports: list[PartitionReport] = []
        self.limits = StoreLimits()
        self._task: Task | None = None

    def batch(self, rows: pa.Table | Sequence[tuple[int, int, float]] = (), now: float = 0) -> list[dict[str, Any]]:
        """Process rows at a time in minutes: a table, or keys, values and minutes of the event time. Return the output."""
        if not isinstance(rows, pa.Table):
            keys, values, moments = ([row[place] for row in rows] for place in range(3))
            rows = pa.table({"key": keys, "value": values, "at": [at(moment) for moment in moments]}, schema=ROWS)
        groups = pa.array(rows["key"].to_numpy() % GROUPS, pa.int32())
        table = rows.append_column(GROUP_COLUMN, groups)
        table = table.sort_by([(name, "ascending") for name in (GROUP_COLUMN, "key", "at")])
        times = BatchTimes(
            batch=self.number,
            time_ms=int(at(now).timestamp() * 1000),
            watermark_ms=self.watermark_ms,
            late_watermark_ms=self.late_watermark_ms,
        )
        plan = TaskPlan(
            root=StorageSpec(str(self.folder / "root")),
            root_id="root",
            local_folder=str(self.folder / "local"),
            operator=self.operator,
            row_columns=ROWS,
            partitioning=self.partitioning,
            assignments=Assignments.of(self.bases, {}),
            rewrites={},
            structure=Structure.V2,
            batch_log=None,
            times=times,
            limits=self.limits,
            sweep=SweepLimits(),
            output=TaskOutputs(rows=self.operator.outputs, reporter=self),
        )
        self._task = Task(plan, 0, Worker.of(plan))
        size = 3 if table.num_rows < 1000 else None
        found = pa.Table.from_batches(list(self._task.run(iter(table.to_batches(max_chunksize=size)))))
        self.late_watermark_ms = self.watermark_ms
        self.watermark_ms = self.event_clock.next_watermark_ms(times, self.reports)
        self.number += 1
        self.bases = {
            number: tuple(report.stores[number].new for report in self.reports) for number in range(len(self.stores))
        }
        assert isinstance(self.operator.output, pa.Schema), "the operator has one output"
        rows_out = [row for row in found.to_pylist() if not row[MARKER_COLUMN]]
        return [{name: row[name] for name in self.operator.output.names} for row in rows_out]

    def advance_local_copies(self) -> None:
        """Do what a host does after a batch."""
        assert self._task is not None
        self._task.maintain_host()

    def add(self, report: Reported) -> None:
        """Receive the report of the task. Raises the error of a task that failed."""
        if isinstance(report, TaskFailure):
            raise report.error
        self.reports = list(report.partitions)

    @property
    def counts(self) -> TimeCounts:
        """The counts of the newest batch."""
        of_partitions = [report.times for report in self.reports]
        return TimeCounts(
            late_rows=sum(counts.late_rows for counts in of_partitions),
            fired_timers=sum(counts.fired_timers for counts in of_partitions),
            expired_rows=sum(counts.expired_rows for counts in of_partitions),
        )

    def state(self, name: str = "default") -> list[dict[str, Any]]:
        """The rows of a store, also those that have expired. An index has its time as text."""
        number = [store.name for store in self.stores].index(name)
        store = self.stores[number]
        storage = open_storage(str(self.folder / "root"))
        found: list[dict[str, Any]] = []
        for partition, base in enumerate(self.bases[number]):
            address = StoreAddress(
                StorePath(number, partition), self.folder / f"reader-{self.number}-{number}-{partition}"
            )
            with StateStore.load(address, base, storage=storage, clock=SystemClock(), ids=RandomIds()) as opened:
                pairs = list(opened.scan())
            if not pairs:
                continue
            keys, values = (pa.array(column, pa.large_binary()) for column in zip(*pairs, strict=True))
            value_rows = decode_rows(values, store.values, skip=1).to_pylist()
            state_keys = due_keys.keys_of(keys) if store.is_by_time else keys
            key_rows = state_rows.decode_keys(state_keys, KEY).to_pylist()
            for key, key_row, value_row in zip(keys.to_pylist(), key_rows, value_rows, strict=True):
                assert key_row["key"] % GROUPS * len(self.bases[number]) // GROUPS == partition
                due = {"due_at": key[_TEXT_ENDS - 25 : _TEXT_ENDS - 1].decode()} if store.is_by_time else {}
                found.append({**key_row, **due, **value_row})
        return sorted(found, key=repr)
