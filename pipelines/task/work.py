"""Work of Spark's Python workers: the partitions of one task of a batch, a group of them after another.

For each group: open the stores, pass the rows of whole keys and their state to the update function, commit. Then report.
The outputs go back to Spark or to data files, see `task_outputs`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.group_stores import Stores
from statekeeper.pipelines.task.initial_rows import InitialColumns, InitialRows
from statekeeper.pipelines.task.partition_group import PartitionGroup
from statekeeper.pipelines.task.partitioning import Partitioning
from statekeeper.pipelines.task.reports import PartitionReport, StoreReport, TaskFailure, TaskReport, tag_of
from statekeeper.pipelines.task.stored import stored
from statekeeper.pipelines.task.task_outputs import Tables, TaskOutputs
from statekeeper.statestore.base.clock import Ids, RandomIds, SystemClock
from statekeeper.statestore.base.errors import (
    HotKey,
    LineageCeiling,
    StatekeeperError,
    TooLarge,
    WrongInitial,
    WrongInput,
    WrongResult,
)
from statekeeper.statestore.base.garbage import freeze_modules
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_rows import (
    decode_values,
    encode_values,
)
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.columns import ColumnChange
from statekeeper.statestore.root.new_columns import NewColumns
from statekeeper.statestore.root.times import BatchTimes
from statekeeper.statestore.storage import BatchLogCache, Storage, StorageSpec, open_storage
from statekeeper.statestore.store.engine.rows_digest import RowsDigest
from statekeeper.statestore.store.engine.scratch import user_folder
from statekeeper.statestore.store.engine.sweep import SweepLimits, sweep_when_due
from statekeeper.statestore.store.loading.open_copies import OpenCopies
from statekeeper.statestore.store.state_store import (
    BatchLogPart,
    StateStore,
    StoreAddress,
    StoreLimits,
    advance_local_copy,
)

_REWRITTEN_ROWS = 65_536
_SWEEP_SECONDS = 10 * 60.0
_CACHED_SHARE = 1 / 8
"""Share of the quota for local copies that the batch logs of one root may use."""


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """Input of a task, the same for all tasks of a batch; sent to the workers.

    output    where the task puts its outputs
    inputs    the names of several inputs; empty for one stream
    initial   layout of the initial rows among the rows of batch 0; None without
    """

    root: StorageSpec
    root_id: str
    local_folder: str
    operator: StatefulOperator
    row_columns: pa.Schema
    partitioning: Partitioning
    assignments: Assignments
    rewrites: Mapping[int, ColumnChange]
    structure: Structure
    batch_log: BatchLogPart | None
    times: BatchTimes
    limits: StoreLimits
    sweep: SweepLimits
    output: TaskOutputs
    inputs: tuple[str, ...] = ()
    initial: InitialColumns | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task; the function for `mapInArrow`."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task = Task(self, context.partitionId(), Worker.of(self))
        try:
            yield from task.run(batches)
        except (HotKey, LineageCeiling, TooLarge, WrongInitial, WrongInput, WrongResult) as error:
            # Another attempt would fail too. Spark retries a failed task, and each retry logs its stacks. A report of the
            # error also stops the batch.
            yield from task.fail(error)
        else:
            freeze_modules()
            # Maintain the host after the task's work is done. A worker that is killed meanwhile loses nothing.
            threading.Thread(target=task.maintain_host, daemon=True).start()

    def copies_folder(self) -> Path:
        """Return the folder of the local copies of the root's stores on this host."""
        return user_folder(Path(self.local_folder).absolute()) / self.root_id


@dataclass(frozen=True)
class Worker:
    """The client of the root and the open local copies, which the tasks of a process share."""

    storage: Storage
    copies: OpenCopies

    @classmethod
    def of(cls, plan: TaskPlan) -> Worker:
        """Return the worker of this process."""
        return cls(
            _worker_storage(plan.root, plan.root_id, plan.local_folder, plan.sweep, os.getpid()),
            _worker_copies(plan.limits.block_cache_bytes, os.getpid()),
        )


class Task:
    """One task of a batch: processes its partitions. `TaskPlan` runs it in Spark, `OperatorHarness` without."""

    def __init__(self, plan: TaskPlan, task: int, worker: Worker) -> None:
        self._plan = plan
        self._task = task
        self._ids = RandomIds()
        self._tag = tag_of(self._ids.fresh())
        self._worker = worker
        self._storage = worker.storage
        self._requests_before = self._storage.requests.snapshot()
        self._reports: list[PartitionReport] = []
        self._wanting: list[tuple[StoreAddress, VersionId]] = []

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the rows of the task, sorted by key group, and return its results, see `TaskOutputs.result_schema`."""
        output = self._plan.output
        with output.open(self._task, self._tag, self._ids) as opened:
            with contextlib.closing(self._process_all(batches)) as outputs:
                for tables in outputs:
                    yield from opened.write(tables)
            report = TaskReport(
                task=self._task,
                tag=self._tag,
                partitions=tuple(self._reports),
                requests=self._storage.requests.since(self._requests_before),
                files=opened.complete(),
                digests=opened.digests,
            )
        yield from output.send(report, self._tag)

    def fail(self, error: StatekeeperError) -> Iterator[pa.RecordBatch]:
        """Return the last row of a task that cannot succeed."""
        yield from self._plan.output.send(TaskFailure(self._task, error), self._tag)

    def maintain_host(self) -> None:
        """Advance the host's local copies to this batch's bases, which are committed. Periodically delete unused copies."""
        plan = self._plan
        # Uses its own client, so that the next task counts only its own requests.
        storage = open_storage(plan.root, cache=_cache(plan.root_id, plan.local_folder, plan.sweep))
        for address, base in self._wanting:
            # A damaged copy is already marked: it is not used any more, and the next load rebuilds it.
            with contextlib.suppress(StatekeeperError):
                advance_local_copy(
                    address, base, storage=storage, clock=SystemClock(), ids=RandomIds(), limits=plan.limits
                )
        folder = user_folder(Path(plan.local_folder).absolute())
        sweep_when_due(folder, plan.sweep, clock=SystemClock(), every_seconds=_SWEEP_SECONDS)

    def _process_all(self, batches: Iterator[pa.RecordBatch]) -> Generator[Tables]:
        """Process the partitions and return their outputs piece by piece."""
        plan = self._plan
        host = f"{socket.gethostname()}:{Path(plan.local_folder).absolute()}"
        copies = plan.copies_folder()
        for numbers, rows in plan.partitioning.split(batches, self._task, len(plan.row_columns)):
            # The stores of the group are open together, each with changes that its local copy lacks.
            ahead = plan.limits.ahead.shared_by(len(numbers) * len(stored(plan.operator)))
            limits = replace(plan.limits, ahead=ahead)
            opened = {
                number: _Stores(plan, number, worker=self._worker, ids=self._ids, folder=copies, limits=limits)
                for number in numbers
            }
            with contextlib.ExitStack() as stack:
                stores = {number: partition.open(stack) for number, partition in opened.items()}
                initial = InitialRows(plan.operator, plan.row_columns, plan.initial) if plan.initial else None
                group = PartitionGroup(
                    plan.operator,
                    plan.row_columns,
                    stores,
                    partitioning=plan.partitioning,
                    times=plan.times,
                    inputs=plan.inputs,
                    initial=initial,
                )
                with contextlib.closing(group.process_all(rows)) as outputs:
                    yield from outputs
            peak_bytes = _peak_memory_bytes()
            for number, partition in opened.items():
                loaded = None if initial is None else initial.digests.get(number, RowsDigest())
                self._reports.append(partition.report(group, host, peak_bytes, loaded))
                self._wanting += partition.wanting()


class _Stores:
    """The stores of one partition: opened for the batch, and reported."""

    def __init__(
        self, plan: TaskPlan, partition: int, *, worker: Worker, ids: Ids, folder: Path, limits: StoreLimits
    ) -> None:
        self._plan = plan
        self._limits = limits
        self._partition = partition
        self._folder = folder
        self._assigned = plan.assignments.of_partition(partition)
        self._worker = worker
        self._ids = ids
        self.stores: dict[str, StateStore] = {}
        self._rewritten: dict[int, int] = {}
        """Operator -> the rows that got other columns."""

    def open(self, stack: contextlib.ExitStack) -> Stores:
        """Open the stores, and change the columns that the job declares otherwise. Leaving `stack` closes them."""
        for operator, store in enumerate(stored(self._plan.operator)):
            self.stores[store.name] = stack.enter_context(self._load(operator))
            if operator in self._plan.rewrites:
                self._rewritten[operator] = _rewrite(self.stores[store.name], self._plan.rewrites[operator].columns)
        return self.stores

    def _load(self, operator: int) -> StateStore:
        assigned = self._assigned[operator]
        return StateStore.load(
            store_address(self._folder, operator, self._partition),
            assigned.base,
            storage=self._worker.storage,
            clock=SystemClock(),
            ids=self._ids,
            snapshots=assigned.snapshots,
            limits=self._limits,
            structure=self._plan.structure,
            batch_log=self._plan.batch_log,
            open_copies=self._worker.copies,
        )

    def report(
        self, group: PartitionGroup, host: str, peak_memory_bytes: int, initial: RowsDigest | None
    ) -> PartitionReport:
        """Return the partition's report, after its commits."""
        return PartitionReport(
            partition=self._partition,
            host=host,
            rows_in=group.rows_in[self._partition],
            times=group.time_counts(self._partition),
            stores=tuple(
                StoreReport(
                    operator=operator,
                    base=store.base,
                    new=store.next,
                    load=store.load_report,
                    commit=store.commit_metrics,
                    member=store.member,
                    rewritten_rows=self._rewritten.get(operator, 0),
                )
                for operator, store in enumerate(self.stores.values())
            ),
            peak_memory_bytes=peak_memory_bytes,
            initial=initial,
        )

    def wanting(self) -> list[tuple[StoreAddress, VersionId]]:
        """Return the stores whose local copies need compaction, with the versions to which they may advance."""
        return [
            (store_address(self._folder, operator, self._partition), self._assigned[operator].base)
            for operator, store in enumerate(self.stores.values())
            if store.needs_compaction
        ]


def store_address(copies: Path, operator: int, partition: int) -> StoreAddress:
    """Return the address of a store whose local copy is in `copies`, see `TaskPlan.copies_folder`."""
    return StoreAddress(StorePath(operator, partition), copies / f"{operator}-{partition}")


def _rewrite(store: StateStore, columns: NewColumns) -> int:
    """Convert each row to the new columns, and return their number. Spark cannot distinguish rows of different schemas, so
    all rows change in one version."""
    rows = 0
    for keys, values in _batched(store.scan()):
        store.put(keys, encode_values(columns.table(decode_values(values, columns.before))))
        rows += len(keys)
    return rows


@functools.lru_cache(maxsize=4)
def _worker_storage(spec: StorageSpec, root_id: str, local_folder: str, sweep: SweepLimits, process_id: int) -> Storage:
    # Workers are forked and reused: one client per process, never one from before the fork.
    del process_id
    return open_storage(spec, cache=_cache(root_id, local_folder, sweep))


def _cache(root_id: str, local_folder: str, sweep: SweepLimits) -> BatchLogCache:
    folder = user_folder(Path(local_folder).absolute()) / root_id / names.CACHED_BATCH_LOGS
    return BatchLogCache(folder, int(sweep.quota_bytes * _CACHED_SHARE))


@functools.lru_cache(maxsize=1)
def _worker_copies(block_cache_bytes: int, process_id: int) -> OpenCopies:
    # As above: a forked process must not use the databases of its parent.
    del process_id
    return OpenCopies(SystemClock(), block_cache_bytes=block_cache_bytes)


def _batched(pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[pa.LargeBinaryArray, pa.LargeBinaryArray]]:
    keys: list[bytes] = []
    values: list[bytes] = []
    for key, value in pairs:
        keys.append(key)
        values.append(value)
        if len(keys) == _REWRITTEN_ROWS:
            yield pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())
            keys, values = [], []
    if keys:
        yield pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())


def _peak_memory_bytes() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
