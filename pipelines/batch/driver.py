"""One batch on the driver: from the query's offsets to `commits/N`, so that state and sink always agree.

    begin -> offsets/N -> [ the sink holds N? its attempt's ids ] -> tasks -> reports checked -> pending/N-<attempt>
          -> sink -> the sink asked again -> commits/N

The driver can die at each arrow. A re-run of the batch starts at `begin` and detects the completed steps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from statekeeper.pipelines.batch.initial import InitialState
from statekeeper.pipelines.batch.interrupted_attempt import complete
from statekeeper.pipelines.batch.metrics import MetricsWindow
from statekeeper.pipelines.batch.operator_job import run_to_files
from statekeeper.pipelines.batch.outputs import Computed, Held, Materialised, Outputs, columns_of_outputs
from statekeeper.pipelines.batch.progress import BatchReport, Observer, Outcome, Phase
from statekeeper.pipelines.batch.snapshots import KnownSnapshots, Snapshots
from statekeeper.pipelines.batch.spark import hide_end_of_query, named, output_is_unreadable
from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.operator.times import Batch
from statekeeper.pipelines.sinks.delta_writer import WriterUsed
from statekeeper.pipelines.sinks.sink import Attempt, Sink
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.batch_log import LogLayout, changelogs_of, part_of
from statekeeper.pipelines.task.emergency import EmergencySnapshots
from statekeeper.pipelines.task.event_time import EventClock
from statekeeper.pipelines.task.host import Host
from statekeeper.pipelines.task.partitioning import Partitioning
from statekeeper.pipelines.task.reports import (
    PartitionReport,
    ReportChannel,
    Reported,
    TaskReport,
    checked,
    column_notes,
    initial_digest,
)
from statekeeper.pipelines.task.stored import store_schemas
from statekeeper.pipelines.task.task_outputs import TaskOutputs
from statekeeper.pipelines.task.work import TaskPlan
from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import ForeignBlock, StatekeeperError
from statekeeper.statestore.base.messages import of_job
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.state_root import Done, Pending, Ready, StateRoot
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from statekeeper.statestore.store.engine.sweep import SweepLimits

_LOG = logging.getLogger("statekeeper")
_ATTEMPTS = 3
_QUERY_ID = "sql.streaming.queryId"


class StopWanted(Exception):
    """Raised between two batches to end a query."""


@dataclass(frozen=True, kw_only=True)
class BegunBatch:
    """A batch that is not committed yet.

    rows      of all inputs
    root      the state root, which has written the offsets of the batch
    ready     the versions of the state before the batch, and its times
    sources   the offsets of the query's sources, one line each
    """

    number: int
    query_id: str
    rows: DataFrame
    root: StateRoot
    ready: Ready
    sources: tuple[str, ...]

    def attempt(self, attempt: str) -> Attempt:
        """Return an attempt at this batch. `attempt`: its id."""
        return Attempt(self.query_id, self.root.binding.root_id, self.number, attempt)


class BatchDriver:
    """Runs the batches of one streaming query over one state root; it is the function for `foreachBatch`."""

    def __init__(
        self,
        operator: StatefulOperator,
        row_columns: pa.Schema,
        *,
        root: StorageSpec,
        checkpoint: Storage,
        sink: Sink | Mapping[str, Sink],
        host: Host,
        partitions: int,
        key_groups: int,
        tasks: int | None = None,
        structure: Structure = Structure.V2,
        log: LogLayout = LogLayout.STORES,
        initial: InitialState | None = None,
        inputs: tuple[str, ...] = (),
        ticks: bool = False,
        clock: Clock,
        ids: Ids,
        observer: Observer,
        warn: Callable[[str], None],
    ) -> None:
        self.failure: BaseException | None = None
        self.is_in_batch = False
        self.is_awaited = False
        self._stop_is_wanted = threading.Event()
        self._operator = operator
        self._row_columns = row_columns
        self._root_spec = root
        self._storage = open_storage(root, clock=clock, ids=ids)
        self._checkpoint = checkpoint
        sinks = sink if isinstance(sink, Mapping) else dict.fromkeys(operator.outputs, sink)
        self._outputs = Outputs(columns_of_outputs(operator, row_columns, sinks), sinks)
        self._host = host
        self._partitions = partitions
        self._key_groups = key_groups
        self._tasks = tasks
        self._structure = structure
        self._log = log
        self._initial = initial
        self._ticks = ticks
        self._event_clock = EventClock(operator, inputs)
        self._clock = clock
        self._ids = ids
        self._observer = observer
        self._warn = warn
        self._root: StateRoot | None = None
        self._channel: ReportChannel | None = None
        self._tail_changelogs: int | None = None
        self._snapshots = KnownSnapshots(self._storage)
        self._emergency = EmergencySnapshots(
            self._storage,
            changelogs=host.emergency_changelogs,
            scratch=Path(host.local_folder).absolute(),
            clock=clock,
            ids=ids,
            warn=warn,
        )
        self._writers: Mapping[str, WriterUsed] = {}
        self._metrics = MetricsWindow(clock)
        self._phases: dict[Phase, float] = {}
        self._now: tuple[Phase, float] | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Run one batch. Raises the library's errors; `failure` holds the error that stopped the query.

        The error is logged unless a caller waits for the query (`is_awaited`) and receives it."""
        self.is_in_batch = True
        try:
            if self._stop_is_wanted.is_set():
                raise StopWanted(f"batch {batch} was not started: the query is stopping")
            self._run(rows, batch)
        except Exception as error:
            self.failure = named(error, self._pasteable) or error
            if not isinstance(self.failure, StatekeeperError | StopWanted):
                raise
            _LOG.debug("batch %d failed", batch, exc_info=error)
            query_id = str(rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID))
            hide_end_of_query(rows.sparkSession, query_id)
            if isinstance(self.failure, StatekeeperError) and not self.is_awaited:
                _LOG.error("batch %d failed: %s: %s", batch, self.failure.code, self.failure)
            raise self.failure.with_traceback(None) from None
        finally:
            self.is_in_batch = False

    def _pasteable(self, text: str) -> str:
        return of_job(text, self._storage.url, self._checkpoint.url)

    def refuse_further_batches(self) -> None:
        """Finish the current batch and start no other. An interrupt would be worse: Spark then matches the whole text of
        the exception against one regular expression, which can overflow the stack of its thread."""
        self._stop_is_wanted.set()

    def look_for_snapshots(self) -> None:
        """Find new snapshots of maintenance: the next lineages start at the newest. Runs outside of batches."""
        self._snapshots.look(open_storage(self._root_spec, clock=self._clock, ids=self._ids))

    @property
    def snapshots(self) -> Snapshots:
        """Return the known snapshots."""
        return self._snapshots.versions

    def _run(self, rows: DataFrame, batch: int) -> None:
        self._phases = {}
        self._now = None
        self._metrics.begin()
        self._enter(batch, Phase.STARTED)
        before = self._storage.requests.snapshot()
        query_id = str(rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID))
        root = self._bound_root(query_id, batch)
        path = names.offsets(batch)
        outer = logs.parse_offsets(self._checkpoint.read(path), path)
        begin = root.begin(batch, outer)
        self._enter(batch, Phase.OFFSETS_WRITTEN)
        notes: tuple[str, ...] = ()
        partitions: Sequence[PartitionReport] = ()
        attempts = 0
        if isinstance(begin, Done):
            outcome = Outcome.DONE_BEFORE
        else:
            begun = BegunBatch(
                number=batch, query_id=query_id, rows=rows, root=root, ready=begin, sources=outer.sources
            )
            held = self._outputs.look(query_id, batch, lambda: root.sinks_before(batch - 1))
            if held.attempt is not None:
                outcome = Outcome.TAKEN_FROM_SINK
                chosen, notes = self._completed(begun, held)
                self._record_positions(root, chosen)
            else:
                outcome = Outcome.COMPUTED
                self._keep_lineage_short(batch)
                partitions, chosen, attempts, notes = self._compute_and_write(begun)
            watermark_ms = max(begin.times.watermark_ms, chosen.watermark_ms)
            root.commit(batch, chosen.ids, watermark_ms=watermark_ms)
            tails = [store.commit.tail_changelogs for report in partitions for store in report.stores]
            self._tail_changelogs = max(tails, default=None)
        self._enter(batch, Phase.COMMITTED)
        spent = self._storage.requests.since(before)
        self._observer.finished(
            BatchReport(
                batch=batch,
                outcome=outcome,
                attempts=attempts,
                partitions=tuple(partitions),
                milliseconds=dict(self._phases),
                driver_requests=spent.total,
                metrics=self._metrics.end(spent),
                notes=notes,
                times=None if isinstance(begin, Done) else Batch.of(begin.times),
                writers=self._outputs.writers if outcome is Outcome.COMPUTED else {},
            )
        )

    def _bound_root(self, query_id: str, batch: int) -> StateRoot:
        if self._root is None:
            wanted = Binding(
                root_id="",
                query_id=query_id,
                partitions=self._partitions,
                key_groups=self._key_groups,
                stores=store_schemas(self._operator, self._row_columns),
                initial=self._initial is not None,
                inputs=self._event_clock.inputs,
                ticks=self._ticks,
            )
            self._root = StateRoot.open(
                self._storage,
                wanted,
                batch=batch,
                ids=self._ids,
                structure=self._structure,
                mappings=self._operator.mappings,
            )
            held = self._root.binding
            if (held.partitions, held.key_groups) != (self._partitions, self._key_groups):
                self._warn(
                    self._pasteable(
                        f"the state root has {held.partitions} partitions and {held.key_groups} key groups; the "
                        f"{self._partitions} and {self._key_groups} that are asked for are ignored. To change the "
                        f"partitions, stop the job and run: statekeeper rescale ROOT --partitions {self._partitions}"
                    )
                )
        return self._root

    def _compute_and_write(self, begun: BegunBatch) -> tuple[Sequence[PartitionReport], Pending, int, tuple[str, ...]]:
        """Compute an attempt and write it to the sinks. Return the record of the attempt that they hold. The first sink
        decides: it skips the write if another driver was first."""
        batch, outputs = begun.number, self._outputs.plan()
        self._tell_writers(batch)
        for number in range(1, _ATTEMPTS + 1):
            self._enter(batch, Phase.COMPUTING)
            attempt = begun.attempt(self._ids.fresh())
            with self._computed(begun, attempt, outputs) as computed:
                pending = self._record(begun, attempt, computed)
                try:
                    written = self._outputs.write(computed, attempt)
                except Exception as error:
                    # Race: speculative twins leave one block each, and a read can take either; or the only block is
                    # lost with its executor.
                    if not output_is_unreadable(error):
                        raise
                    if number == _ATTEMPTS:
                        raise _unreadable(batch) from error
                    written = None
            held = self._outputs.held(begun.query_id, batch) if written != attempt.attempt else Held(written, ())
            if held.attempt is None:
                # The sinks committed nothing, so the batch is computed again.
                self._warn(
                    f"batch {batch}: the operator's output is lost or from another attempt; the batch is computed again"
                )
                continue
            self._enter(batch, Phase.SINK_WRITTEN)
            changed = column_notes(begun.root.rewrites(batch), computed.reports)
            if written == attempt.attempt:
                return computed.reports, pending, number, changed
            notes = changed
            if held.attempt != attempt.attempt:
                note = (
                    f"batch {batch}: the sink has another driver's attempt {held.attempt} instead of {attempt.attempt}"
                )
                self._warn(f"{note}; two drivers run this query, stop one")
                notes = (*notes, note)
            chosen, further = self._completed(begun, held)
            return computed.reports, chosen, number, (*notes, *further)
        raise AssertionError("unreachable")

    def _tell_writers(self, batch: int) -> None:
        """Warn when Spark has to write an output, because its batches are slower then."""
        writers = self._outputs.writers
        for output, used in writers.items():
            if used.is_fallback and used != self._writers.get(output):
                self._warn(f"batch {batch}: Spark's writer writes {output!r}, in a second Spark job: {used.reason}")
        self._writers = writers

    def _completed(self, begun: BegunBatch, held: Held) -> tuple[Pending, tuple[str, ...]]:
        """Return the record of the attempt that a sink holds, when all sinks have it."""
        assert held.attempt is not None

        def compute_again(outputs: TaskOutputs) -> Computed:
            self._enter(begun.number, Phase.COMPUTING)
            # Its versions have fresh ids, which no commit names.
            return self._computed(begun, begun.attempt(self._ids.fresh()), outputs)

        try:
            completed = complete(
                self._outputs, begun.root, begun.attempt(held.attempt), begun.sources, held.missing, compute_again
            )
        except Exception as error:
            if not output_is_unreadable(error):
                raise
            raise _unreadable(begun.number) from error
        if held.missing:
            self._enter(begun.number, Phase.SINK_WRITTEN)
        return completed

    def _computed(self, begun: BegunBatch, attempt: Attempt, outputs: TaskOutputs) -> Computed:
        """Run the operator. If all outputs go to files or nowhere, this is one Spark job, and only reports come back."""
        initial = self._initial_of(begun.number)
        if not outputs.rows:
            plan = self._plan(begun, attempt, outputs)
            tasks = self._checked(run_to_files(plan, begun.rows, initial), begun, plan)
            return Computed(tasks, outputs.files, None)
        channel = self._channel_of(begun.rows.sparkSession)
        reporter = channel.open(self._ids.fresh())
        plan = self._plan(begun, attempt, replace(outputs, reporter=reporter))
        with ExitStack() as stack:
            materialised = stack.enter_context(Materialised(plan, begun.rows, initial))
            tasks = self._checked(channel.take(reporter), begun, plan)
            stack.pop_all()
            return Computed(tasks, outputs.files, materialised)

    def _record(self, begun: BegunBatch, attempt: Attempt, computed: Computed) -> Pending:
        """Write the record of an attempt, with the changelogs that its tasks returned, before the sink is written."""
        self._enter(attempt.batch, Phase.COMPUTED)
        root, ready, reports = begun.root, begun.ready, computed.reports
        root.record_changes(attempt.batch)
        pending = Pending(
            batch=attempt.batch,
            attempt=attempt.attempt,
            root_id=attempt.root_id,
            query_id=attempt.query_id,
            sources=begun.sources,
            schema=root.schema(),
            ids=_ids_by_operator(reports, ready),
            structure=root.structure,
            initial=initial_digest(reports),
            watermark_ms=self._event_clock.next_watermark_ms(ready.times, reports),
        )
        pending = self._outputs.recorded(pending, computed)
        changelogs = None if self._log is LogLayout.STORES else changelogs_of(reports)
        began = self._clock.monotonic_seconds()
        size_bytes = root.write_pending(pending, changelogs, metrics=self._metrics.newest)
        self._metrics.add_record(size_bytes, len(changelogs or ()), self._clock.monotonic_seconds() - began)
        self._enter(attempt.batch, Phase.PENDING_WRITTEN)
        self._enter(attempt.batch, Phase.SINK_WRITING)
        return pending

    def _keep_lineage_short(self, batch: int) -> None:
        """Make snapshots if maintenance has stopped, before the lineage reaches the ceiling."""
        if self._structure is Structure.V1:
            return  # V1 has no lineage and no ceiling
        tail = batch if self._tail_changelogs is None else self._tail_changelogs
        if self._emergency.before(batch, tail):
            # Includes snapshots of others: this driver may not know the newest ones.
            self._snapshots.look_at_all(self._storage)

    def _channel_of(self, session: SparkSession) -> ReportChannel:
        if self._channel is None:
            self._channel = ReportChannel(session.sparkContext)
        return self._channel

    def _plan(self, begun: BegunBatch, attempt: Attempt, outputs: TaskOutputs) -> TaskPlan:
        root, ready = begun.root, begun.ready
        partitions = root.binding.partitions
        initial = self._initial_of(begun.number)
        slots = self._tasks or begun.rows.sparkSession.sparkContext.defaultParallelism
        return TaskPlan(
            root=self._root_spec,
            root_id=root.binding.root_id,
            local_folder=self._host.local_folder,
            operator=self._operator,
            row_columns=self._row_columns,
            partitioning=Partitioning(partitions, root.binding.key_groups, min(slots, partitions)),
            assignments=Assignments.of(ready.bases, self._snapshots.versions),
            rewrites=root.rewrites(begun.number),
            structure=root.structure,
            batch_log=part_of(self._log, attempt.attempt, partitions * len(ready.bases)),
            times=ready.times,
            inputs=self._event_clock.inputs,
            limits=self._host.limits,
            sweep=SweepLimits(self._host.quota_bytes, self._host.unused_seconds),
            output=outputs,
            initial=None if initial is None else initial.columns,
        )

    def _initial_of(self, batch: int) -> InitialState | None:
        return self._initial if batch == 0 else None

    def _checked(self, reports: Sequence[Reported], begun: BegunBatch, plan: TaskPlan) -> list[TaskReport]:
        tasks = checked(reports, begun.ready.bases, plan.partitioning)
        self._metrics.add_tasks(tasks)
        return tasks

    def _record_positions(self, root: StateRoot, pending: Pending) -> None:
        """Record the current positions of the sinks for an attempt of an earlier run: else the next run would start from
        the position before a change that the user has accepted, and report the change again."""
        current = self._outputs.at_current_positions(pending)
        if current.positions != pending.positions:
            root.write_pending(replace(current, attempt=self._ids.fresh()))

    def _enter(self, batch: int, phase: Phase) -> None:
        now = self._clock.monotonic_seconds()
        if self._now is not None:
            earlier, since = self._now
            self._phases[earlier] = self._phases.get(earlier, 0.0) + (now - since) * 1000
        self._now = (phase, now)
        self._observer.phase(batch, phase)


def _ids_by_operator(reports: Sequence[PartitionReport], ready: Ready) -> dict[int, tuple[str, ...]]:
    return {operator: tuple(str(report.stores[operator].new.mark) for report in reports) for operator in ready.bases}


def _unreadable(batch: int) -> ForeignBlock:
    return ForeignBlock(
        f"batch {batch}: the driver failed {_ATTEMPTS} times to read the output of the task attempts that it selected; the "
        "batch was not committed",
        hint="executors are lost, often for lack of memory. Restart the query: it runs the batch again",
    )
