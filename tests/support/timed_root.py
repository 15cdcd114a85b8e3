"""A job with timers and a TTL by event time over a real root, without Spark: driver and task as of a query."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch, Ttl
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.batch_log import LogLayout, changelogs_of, part_of
from statekeeper.pipelines.task.event_time import EventClock
from statekeeper.pipelines.task.partitioning import Partitioning
from statekeeper.pipelines.task.reports import PartitionReport, Reported, checked
from statekeeper.pipelines.task.stored import store_schemas
from statekeeper.pipelines.task.task_outputs import TaskOutputs
from statekeeper.pipelines.task.work import Task, TaskPlan, Worker
from statekeeper.pipelines.testing.given_rows import GivenStream
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.logs import OffsetLog
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.state_root import Done, Pending, Ready, StateRoot
from statekeeper.statestore.storage import Storage, StorageSpec
from statekeeper.statestore.store.engine.sweep import SweepLimits
from statekeeper.statestore.store.loading.open_copies import OpenCopies
from statekeeper.statestore.store.state_store import StoreLimits
from tests.support.roots import IDS, QUERY, outer

ROWS = pa.schema([("key", pa.int64()), ("at", TIMESTAMP)])
STATE = pa.schema([("rows", pa.int64()), ("last_at", TIMESTAMP)])
OUTPUT = pa.schema([("key", pa.int64()), ("at", TIMESTAMP), ("rows", pa.int64())])
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KEYS = 24
PERIOD = 8
"""Each key has rows in three batches of eight. Its timer is due before it has rows again, and then its state expires."""
STEADY = 6
"""From this batch on, each batch has timers that are due and rows that expire."""


def update(rows: pa.Table, state: pa.Table) -> Update:
    """Count the rows of each key. Set its timer to 15 minutes after the newest."""
    counts = dict(zip(state["key"].to_pylist(), state["rows"].to_pylist(), strict=True))
    newest: dict[int, dt.datetime] = {}
    for row in rows.to_pylist():
        counts[row["key"]] = counts.get(row["key"], 0) + 1
        newest[row["key"]] = row["at"]
    times = pa.array(newest.values(), TIMESTAMP)
    new = pa.table({"key": list(newest), "rows": [counts[key] for key in newest], "last_at": times})
    due = pa.array([moment + dt.timedelta(minutes=15) for moment in newest.values()], TIMESTAMP)
    return Update(OUTPUT.empty_table(), new, timers=pa.table({"key": list(newest), "at": due}))


def on_timer(keys: pa.Table, state: pa.Table, batch: Batch) -> Update:
    """Report the rows of the keys, and count the report as a row."""
    del batch
    held = {row["key"]: row for row in state.to_pylist()}
    told = [row | {"rows": held[row["key"]]["rows"]} for row in keys.to_pylist()]
    new = [held[row["key"]] | {"rows": row["rows"] + 1} for row in told]
    return Update(
        pa.Table.from_pylist(told, schema=OUTPUT), pa.Table.from_pylist(new, pa.schema([ROWS.field("key"), *STATE]))
    )


OPERATOR = StatefulOperator(
    ["key"],
    ["at"],
    state=STATE,
    output=OUTPUT,
    update=update,
    event_time="at",
    allowed_lateness="5m",
    timers="event",
    on_timer=on_timer,
    ttl=Ttl("30m", by="event", column="last_at"),
)


def rows_of(batch: int) -> pa.Table:
    """The rows of a batch, which are 10 minutes after those of the batch before."""
    keys = [key for key in range(KEYS) if (batch + key) % PERIOD < 3]
    return pa.table({"key": keys, "at": [START + dt.timedelta(minutes=10 * batch)] * len(keys)}, schema=ROWS)


Told = list[tuple[int, dt.datetime, int]]
"""Key, time and rows of the timers that a batch reports."""


def expected(batches: int) -> dict[int, Told]:
    """The reports of each batch. The timer of a key is due in the third batch after its last rows."""
    return {
        batch: [
            (key, START + dt.timedelta(minutes=10 * last + 15), min(3, last + 1))
            for key in range(KEYS)
            if (last := batch - 3) >= 0 and (last + key) % PERIOD == 2
        ]
        for batch in range(batches)
    }


@dataclass(kw_only=True)
class TimedJob:
    """`sink` and the root survive a driver: batch -> attempt, and what it reports."""

    folder: Path
    partitions: int = 2
    log: LogLayout = LogLayout.STORES
    structure: Structure = Structure.V2
    key_groups: int = 16
    query: str = QUERY
    operator: StatefulOperator = OPERATOR
    first: int = 0
    """The first batch that has rows."""
    sink: dict[int, tuple[str, Told]] = field(default_factory=dict)

    def grow(self, storage: Storage, batches: int) -> None:
        """Run the next batches."""
        newest = catalog.newest_batch(storage)
        first = 0 if newest is None else newest + 1
        for batch in range(first, first + batches):
            self.run(storage, batch)

    def run(self, storage: Storage, batch: int) -> None:
        """Run one batch as a fresh driver does."""
        stream = GivenStream(self.operator, ROWS)
        binding = Binding(
            root_id="",
            query_id=self.query,
            partitions=self.partitions,
            key_groups=self.key_groups,
            stores=store_schemas(self.operator, stream.columns),
        )
        root = StateRoot.open(storage, binding, batch=batch, ids=IDS, structure=self.structure)
        offsets = offsets_of(batch)
        begin = root.begin(batch, offsets)
        if isinstance(begin, Done):
            return
        if batch in self.sink:
            pending = root.pending(batch, self.sink[batch][0])
            assert pending is not None, "the sink holds an attempt without a record"
        else:
            pending = self._computed(root, stream, batch, begin, offsets)
        root.commit(batch, pending.ids, watermark_ms=max(begin.times.watermark_ms, pending.watermark_ms))

    def _computed(self, root: StateRoot, stream: GivenStream, batch: int, ready: Ready, offsets: OffsetLog) -> Pending:
        attempt = IDS.fresh()
        output, reports = self._task(root, stream, ready, attempt)
        ids = {operator: tuple(str(report.stores[operator].new.mark) for report in reports) for operator in ready.bases}
        pending = Pending(
            batch=batch,
            attempt=attempt,
            root_id=root.binding.root_id,
            query_id=self.query,
            sources=offsets.sources,
            schema=root.schema(),
            ids=ids,
            structure=self.structure,
            watermark_ms=EventClock(self.operator).next_watermark_ms(ready.times, reports),
        )
        root.write_pending(pending, changelogs_of(reports) if self.log is LogLayout.BATCH else None)
        told = [(row["key"], row["at"], row["rows"]) for row in output.to_pylist()]
        self.sink[batch] = attempt, told
        return pending

    def _task(
        self, root: StateRoot, stream: GivenStream, ready: Ready, attempt: str
    ) -> tuple[pa.Table, list[PartitionReport]]:
        reports = _Reports()
        partitioning = Partitioning(root.binding.partitions, root.binding.key_groups, 1)
        plan = TaskPlan(
            root=StorageSpec(root.storage.url),
            root_id=root.binding.root_id,
            local_folder=str(self.folder / "local"),
            operator=self.operator,
            row_columns=stream.columns,
            partitioning=partitioning,
            assignments=Assignments.of(ready.bases, catalog.snapshots(root.storage)),
            rewrites=root.rewrites(ready.times.batch),
            structure=self.structure,
            batch_log=part_of(self.log, attempt, len(ready.bases) * root.binding.partitions),
            times=ready.times,
            limits=StoreLimits(),
            sweep=SweepLimits(),
            output=TaskOutputs(rows=self.operator.outputs, reporter=reports),
        )
        batch = ready.times.batch
        given = rows_of(batch) if batch >= self.first else ROWS.empty_table()
        rows = stream.routed(given, root.binding.key_groups)
        worker = Worker(root.storage, OpenCopies(SystemClock()))
        try:
            returned = list(Task(plan, 0, worker).run(iter(rows.to_batches())))
        finally:
            worker.copies.close()
        [task] = checked(reports.all, ready.bases, partitioning)
        [name] = self.operator.outputs
        table = pa.Table.from_batches(returned, schema=plan.output.result_schema())
        return plan.output.rows_in(table, name), list(task.partitions)

    def told(self) -> dict[int, Told]:
        """The reports of each batch."""
        return {batch: sorted(rows) for batch, (_, rows) in sorted(self.sink.items())}

    def forget_after(self, batch: int) -> None:
        """Restore the sink to a batch."""
        self.sink = {number: held for number, held in self.sink.items() if number <= batch}


def offsets_of(batch: int) -> OffsetLog:
    """The streaming query's own log of a batch, which is planned each 10 minutes."""
    planned = START + dt.timedelta(minutes=10 * batch)
    return replace(outer(batch), timestamp_ms=int(planned.timestamp() * 1000))


class _Reports:
    """Collects the report of the task, which Spark sends through an accumulator."""

    def __init__(self) -> None:
        self.all: list[Reported] = []

    def add(self, report: Reported) -> None:
        self.all.append(report)
