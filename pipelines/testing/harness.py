"""Batches of a stateful operator without Spark, for unit tests of its update function.

    given rows -> columns of the stream -> key groups, sorted -> Task -> changelogs in a temporary folder -> Result

Checks, task and stores are those of a streaming query. `given_rows` replaces the shuffle of Spark, and this module the
driver: it remembers the versions of the stores.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from statekeeper.pipelines.operator.declaration import LATE_OUTPUT, TIMER_COLUMN, StatefulOperator
from statekeeper.pipelines.operator.times import Batch
from statekeeper.pipelines.startup import preflight
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.event_time import EventClock
from statekeeper.pipelines.task.initial_rows import InitialColumns, require_times
from statekeeper.pipelines.task.partitioning import Partitioning
from statekeeper.pipelines.task.reports import Reported, checked
from statekeeper.pipelines.task.stored import TIMER_VALUES, StoredStore, stored
from statekeeper.pipelines.task.task_outputs import TaskOutputs
from statekeeper.pipelines.task.work import Task, TaskPlan, Worker, store_address
from statekeeper.pipelines.testing.given_rows import GivenRows, GivenStream, columns_in, sorted_by
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.format.due_keys import decode_due_keys
from statekeeper.statestore.format.names import EMPTY
from statekeeper.statestore.format.state_rows import decode_keys, decode_values
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.times import TIMERS, BatchTimes
from statekeeper.statestore.storage import StorageSpec, open_storage
from statekeeper.statestore.store.engine.sweep import SweepLimits
from statekeeper.statestore.store.loading.open_copies import OpenCopies
from statekeeper.statestore.store.state_store import StateStore, StoreLimits

_ROOT_ID = "harness"
_START_MS = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() * 1000)
_TICK_MS = 1000


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a batch of `OperatorHarness`.

    batch      number and times of the batch
    output     the output of all calls, one after another; for several outputs a mapping: name -> table
    state      key and value columns of all keys that have state after the batch, sorted by key; with several named stores a
               mapping: name -> table. With a TTL, the column `expires_at` is before the value columns. State that expires
               by the time of the next batch is still in it
    timers     key columns and the time `at` of all timers that are set after the batch, sorted by key
    late       the late rows, with the columns of the stream
    """

    batch: Batch
    output: pa.Table | Mapping[str, pa.Table]
    state: pa.Table | Mapping[str, pa.Table]
    timers: pa.Table
    late: pa.Table


class OperatorHarness:
    """Runs the batches of a stateful operator in this process, without Spark and Java, for unit tests.

    operator     the operator to test
    columns      columns of the stream; the default is the columns of the first batch. For several inputs a mapping: name ->
                 columns
    initial      rows of the state before the first batch, with the key and value columns; with several stores a mapping:
                 name -> rows. See `start`
    partitions   number of partitions, see `start`. One task processes all of them
    key_groups   number of hash groups of the keys, see `start`

    The code is that of a query's tasks, with RocksDB in a temporary folder: the same checks, conversions and errors. The
    state is kept from batch to batch. Use the harness as a context manager or call `close`. Not thread-safe.

    Raises the errors of `start` for an operator that a query cannot run: `SchemaMismatch`, `UnsupportedType`,
    `UnusableFunction`, `UnsupportedEnvironment`.
    """

    def __init__(
        self,
        operator: StatefulOperator,
        *,
        columns: pa.Schema | Mapping[str, pa.Schema] | None = None,
        initial: GivenRows | None = None,
        partitions: int = 1,
        key_groups: int = 128,
    ) -> None:
        preflight.require_usable(operator)
        preflight.require_partitions(partitions, key_groups)
        self._operator = operator
        self._partitioning = Partitioning(partitions, key_groups, tasks=1)
        self._stream = None if columns is None else GivenStream(operator, columns)
        self._initial = None if initial is None else self._by_store(initial)
        if self._initial is not None:
            require_times(operator, self._initial)
        self._event_clock = EventClock(operator, self._stream.inputs if self._stream else ())
        self._next = BatchTimes(batch=0, time_ms=_START_MS)
        self._stored = stored(operator)
        self._bases = dict.fromkeys(range(len(self._stored)), (EMPTY,) * partitions)
        self._folder = tempfile.TemporaryDirectory(prefix="statekeeper-", ignore_cleanup_errors=True)
        self._root = StorageSpec(f"{self._folder.name}/root")
        self._worker = Worker(open_storage(self._root), OpenCopies(SystemClock()))

    def batch(self, rows: GivenRows = (), *, at: dt.datetime | None = None) -> Result:
        """Run the next batch.

        rows   a `pyarrow.Table`, a `pandas.DataFrame` or a list of dicts, in any order. A key that a dict lacks is null.
               For several inputs a mapping: name -> rows; an input without an entry has no rows. Without rows, timers fire
               and state expires
        at     the time of the batch, with a time zone. The default is one second after the previous batch, and 2026-01-01
               in UTC for the first batch

        The function gets the rows in the order in which Spark sorts them. Rows of a key with equal `order_by` columns stay
        in the given order; in Spark, their order is undefined.

        Raises `SchemaMismatch` and `UnsupportedType` for rows that do not fit the stream, `WrongInput`, `WrongResult`,
        `WrongInitial`, `HotKey`, `TooLarge`, and each error of the function. The state is then as before, and the batch can
        be run again.
        """
        stream = self._stream or GivenStream(self._operator, columns_in(rows))
        initial = self._initial if self._next.batch == 0 else None
        placed = stream.routed(rows, self._partitioning.key_groups, initial)
        if self._stream is None:
            self._stream, self._event_clock = stream, EventClock(self._operator, stream.inputs)
        times = self._times(at)
        reports = _Reports()
        plan = self._plan(stream, reports, times)
        task = Task(plan, 0, self._worker)
        returned = pa.Table.from_batches(list(task.run(iter(placed.to_batches()))), schema=plan.output.result_schema())
        [report] = checked(reports.all, self._bases, self._partitioning)
        task.maintain_host()
        new = [[store.new for store in partition.stores] for partition in report.partitions]
        self._bases = dict(enumerate(zip(*new, strict=True)))
        watermark_ms = self._event_clock.next_watermark_ms(times, report.partitions)
        self._next = BatchTimes(
            batch=times.batch + 1,
            time_ms=times.time_ms + _TICK_MS,
            watermark_ms=watermark_ms,
            late_watermark_ms=times.watermark_ms,
        )
        outputs = {name: plan.output.rows_in(returned, name) for name in plan.output.rows}
        late = outputs.pop(LATE_OUTPUT, stream.columns.empty_table())
        return Result(
            batch=Batch.of(times),
            output=next(iter(outputs.values())) if self._operator.has_one_output else outputs,
            state=self._state(plan),
            timers=self._timers(plan),
            late=late,
        )

    def close(self) -> None:
        """Delete the state."""
        self._worker.copies.close()
        self._folder.cleanup()

    def __enter__(self) -> OperatorHarness:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _by_store(self, initial: GivenRows) -> Mapping[str, GivenRows]:
        stores = list(self._operator.stores)
        if self._operator.has_one_store:
            return {stores[0]: initial}
        if not isinstance(initial, Mapping) or not initial.keys() <= set(stores):
            raise SchemaMismatch(
                "initial is not a dict of the stores", hint=f"give a dict from store to rows: {stores}"
            )
        return {name: initial[name] for name in stores if name in initial}

    def _times(self, at: dt.datetime | None) -> BatchTimes:
        if at is None:
            return self._next
        if at.tzinfo is None:
            raise SchemaMismatch(f"at={at} has no time zone", hint="use datetime(..., tzinfo=datetime.UTC)")
        return replace(self._next, time_ms=int(at.timestamp() * 1000))

    def _plan(self, stream: GivenStream, reports: _Reports, times: BatchTimes) -> TaskPlan:
        late = {} if self._operator.event_time is None else {LATE_OUTPUT: stream.columns}
        return TaskPlan(
            root=self._root,
            root_id=_ROOT_ID,
            local_folder=f"{self._folder.name}/local",
            operator=self._operator,
            row_columns=stream.columns,
            partitioning=self._partitioning,
            assignments=Assignments.of(self._bases, {}),
            rewrites={},
            structure=Structure.V2,
            batch_log=None,
            times=times,
            inputs=stream.inputs,
            initial=InitialColumns(tuple(self._initial)) if self._initial is not None and times.batch == 0 else None,
            limits=StoreLimits(),
            sweep=SweepLimits(),
            output=TaskOutputs(rows={**self._operator.outputs, **late}, reporter=reports),
        )

    def _state(self, plan: TaskPlan) -> pa.Table | Mapping[str, pa.Table]:
        stores = {store.name: self._rows_of(plan, store) for store in self._stored[: len(self._operator.stores)]}
        return next(iter(stores.values())) if self._operator.has_one_store else stores

    def _timers(self, plan: TaskPlan) -> pa.Table:
        keys = self._operator.key_columns(plan.row_columns)
        if self._operator.timer_key is not None:
            rows = self._rows_of(plan, self._stored[0]).select(keys.names)
            return rows.append_column(TIMER_COLUMN, rows[self._operator.timer_key])
        held = next((store for store in self._stored if store.name == TIMERS), None)
        rows = pa.schema([*keys, *TIMER_VALUES]).empty_table() if held is None else self._rows_of(plan, held)
        return rows.rename_columns([*keys.names, TIMER_COLUMN])

    def _rows_of(self, plan: TaskPlan, stored: StoredStore) -> pa.Table:
        store = self._stored.index(stored)
        pairs: list[tuple[bytes, bytes]] = []
        for partition, version in enumerate(self._bases[store]):
            with StateStore.load(
                store_address(plan.copies_folder(), store, partition),
                version,
                storage=self._worker.storage,
                clock=SystemClock(),
                ids=RandomIds(),
            ) as opened:
                pairs += opened.scan()
        keys, values = self._operator.key_columns(plan.row_columns), stored.values
        decode = decode_due_keys if stored.is_by_time else decode_keys
        key_rows = decode(pa.array([key for key, _ in pairs], pa.large_binary()), keys)
        value_rows = decode_values(pa.array([value for _, value in pairs], pa.large_binary()), values)
        rows = pa.Table.from_arrays([*key_rows.columns, *value_rows.columns], schema=pa.schema([*keys, *values]))
        return sorted_by(rows, keys.names)


class _Reports:
    """Collects the report of the task, which Spark sends through an accumulator."""

    def __init__(self) -> None:
        self.all: list[Reported] = []

    def add(self, report: Reported) -> None:
        self.all.append(report)
