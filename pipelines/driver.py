"""One batch on the driver: from the query's offsets to `commits/N`, so that state and sink always agree.

    begin -> offsets/N -> [ the sink holds N? its attempt's ids ] -> tasks -> reports checked -> pending/N-<attempt>
          -> sink -> the sink asked again -> commits/N

The driver can die at each arrow. A re-run of the batch starts at `begin` and detects the completed steps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pipelines.assignments import Assignments
from pipelines.batch_log import LogLayout, changelogs_of, part_of
from pipelines.data_files import OutputFiles
from pipelines.emergency import EmergencySnapshots
from pipelines.host import Host
from pipelines.initial import InitialState
from pipelines.known_snapshots import KnownSnapshots, Snapshots
from pipelines.materialised import Materialised
from pipelines.metrics import MetricsWindow
from pipelines.operator import StatefulOperator
from pipelines.operator_job import run_to_files
from pipelines.partitioning import Partitioning
from pipelines.progress import BatchReport, Observer, Outcome, Phase
from pipelines.report_channel import AttemptReporter, ReportChannel
from pipelines.reports import PartitionReport, Reported, TaskReport, checked, initial_digest, latest_event_ms
from pipelines.sinks import Attempt, FileSink, Sink, TracedSink
from pipelines.spark_errors import named, output_is_unreadable
from pipelines.spark_log import hide_end_of_query
from pipelines.stored import store_schemas
from pipelines.task import TaskPlan
from pipelines.times import Batch
from statestore.binding import Binding
from statestore.clock import Clock, Ids
from statestore.engine.sweep import SweepLimits
from statestore.errors import ForeignBlock, SinkConflict, StatekeeperError
from statestore.format import logs, names
from statestore.format.structure import Structure
from statestore.root import Done, Pending, Ready, SinkPosition, StateRoot
from statestore.storage import Storage, StorageSpec, open_storage

_LOG = logging.getLogger("statekeeper")
_ATTEMPTS = 3
_QUERY_ID = "sql.streaming.queryId"


class StopWanted(Exception):
    """Raised between two batches to end a query."""


class BatchDriver:
    """Runs the batches of one streaming query over one state root; it is the function for `foreachBatch`."""

    def __init__(
        self,
        operator: StatefulOperator,
        row_columns: pa.Schema,
        *,
        root: StorageSpec,
        checkpoint: Storage,
        sink: Sink,
        host: Host,
        partitions: int,
        key_groups: int,
        tasks: int | None = None,
        structure: Structure = Structure.V2,
        log: LogLayout = LogLayout.STORES,
        initial: InitialState | None = None,
        inputs: tuple[str, ...] = (),
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
        self._sink = sink
        self._host = host
        self._partitions = partitions
        self._key_groups = key_groups
        self._tasks = tasks
        self._structure = structure
        self._log = log
        self._initial = initial
        self._inputs = inputs
        self._clock = clock
        self._ids = ids
        self._observer = observer
        self._warn = warn
        self._root: StateRoot | None = None
        self._channel: ReportChannel | None = None
        self._sink_position: SinkPosition | None = None
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
            self.failure = named(error) or error
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

    def refuse_further_batches(self) -> None:
        """Finish the current batch and start no other. An interrupt would be worse: Spark then matches the whole text of
        the exception against one regular expression, which can overflow the stack of its thread."""
        self._stop_is_wanted.set()

    def look_for_snapshots(self) -> None:
        """Find new snapshots of maintenance, so that the lineage of the next versions starts at the newest. Runs outside
        of batches."""
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
            held = self._look_at_sink(root, query_id, batch)
            if held is not None:
                outcome = Outcome.TAKEN_FROM_SINK
                taken = self._pending_of(root, query_id, batch, held, outer.sources)
                ids, watermark_ms = self._taken_over(root, taken), max(begin.times.watermark_ms, taken.watermark_ms)
            else:
                outcome = Outcome.COMPUTED
                self._keep_lineage_short(batch)
                partitions, mine, attempts = self._compute_and_write(root, rows, query_id, batch, begin, outer.sources)
                chosen, notes = self._settled_with_sink(root, query_id, batch, mine, outer.sources)
                ids, watermark_ms = chosen.ids, max(begin.times.watermark_ms, chosen.watermark_ms)
            root.commit(batch, ids, watermark_ms=watermark_ms)
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
            )
        )

    def _bound_root(self, query_id: str, batch: int) -> StateRoot:
        if self._root is None:
            schemas = store_schemas(self._operator, self._row_columns)
            wanted = Binding(
                root_id="",
                query_id=query_id,
                partitions=self._partitions,
                key_groups=self._key_groups,
                stores=schemas,
                initial=self._initial is not None,
                inputs=self._inputs,
            )
            self._root = StateRoot.open(self._storage, wanted, batch=batch, ids=self._ids, structure=self._structure)
            held = self._root.binding
            if (held.partitions, held.key_groups) != (self._partitions, self._key_groups):
                self._warn(
                    f"the state root has {held.partitions} partitions and {held.key_groups} key groups; the "
                    f"{self._partitions} and {self._key_groups} that are asked for are ignored; see: statekeeper rescale"
                )
        return self._root

    def _look_at_sink(self, root: StateRoot, query_id: str, batch: int) -> str | None:
        """Return the attempt of the batch that the sink holds. Raises `SinkChanged` if others replaced its rows."""
        if not isinstance(self._sink, TracedSink):
            return self._sink.held(query_id, batch)
        look = self._sink.look(query_id, batch, self._sink_position or root.sink_before(batch - 1))
        self._sink_position = look.position
        return look.held

    def _compute_and_write(
        self, root: StateRoot, rows: DataFrame, query_id: str, batch: int, ready: Ready, sources: tuple[str, ...]
    ) -> tuple[Sequence[PartitionReport], Pending, int]:
        files = self._sink.plan_files(self._operator.output) if isinstance(self._sink, FileSink) else None
        if files is not None:
            return self._compute_and_commit(root, rows, query_id, batch, ready, sources, files)
        channel = self._channel_of(rows.sparkSession)
        for number in range(1, _ATTEMPTS + 1):
            self._enter(batch, Phase.COMPUTING)
            reporter = channel.open(self._ids.fresh())
            attempt = Attempt(query_id, root.binding.root_id, batch, self._ids.fresh())
            plan = self._plan(root, ready, attempt, reporter, rows.sparkSession)
            with Materialised(plan, rows, self._initial_of(batch)) as output:
                tasks = self._checked(channel.take(reporter), ready, plan)
                reports = [report for task in tasks for report in task.partitions]
                pending = self._record(root, ready, attempt, reports, sources)
                try:
                    self._sink.write(output.rows_of([task.tag for task in tasks]), attempt)
                except Exception as error:
                    # Race: two drivers write at once and the sink's check stops this one, or the reply to its commit
                    # is lost. The content of the sink decides, not the reply.
                    if self._sink.held(query_id, batch) is not None:
                        self._enter(batch, Phase.SINK_WRITTEN)
                        return reports, pending, number
                    # Race: speculative twins leave one block each, and a read can take either; or the only block is
                    # lost with its executor. The sink committed nothing, so the batch is computed again.
                    if not output_is_unreadable(error):
                        raise
                    if number == _ATTEMPTS:
                        raise ForeignBlock(
                            f"batch {batch}: the driver failed {number} times to read the output of the task attempts that "
                            "it selected; the batch was not committed",
                            hint="executors are lost, often for lack of memory. Restart the query: it runs the batch again",
                        ) from error
                    self._warn(
                        f"batch {batch}: the operator's output is lost or from another attempt; the batch is computed again"
                    )
                    continue
                self._enter(batch, Phase.SINK_WRITTEN)
                return reports, pending, number
        raise AssertionError("unreachable")

    def _compute_and_commit(
        self,
        root: StateRoot,
        rows: DataFrame,
        query_id: str,
        batch: int,
        ready: Ready,
        sources: tuple[str, ...],
        files: OutputFiles,
    ) -> tuple[Sequence[PartitionReport], Pending, int]:
        """Run the batch in one Spark job, whose tasks write the sink's data files, and commit these files."""
        assert isinstance(self._sink, FileSink)
        self._enter(batch, Phase.COMPUTING)
        attempt = Attempt(query_id, root.binding.root_id, batch, self._ids.fresh())
        plan = self._plan(root, ready, attempt, files, rows.sparkSession)
        tasks = self._checked(run_to_files(plan, rows, self._initial_of(batch)), ready, plan)
        reports = [report for task in tasks for report in task.partitions]
        pending = self._record(root, ready, attempt, reports, sources)
        try:
            self._sink.commit_files(files, [file for task in tasks for file in task.files], attempt)
        except Exception:
            # Race: two drivers commit at once and Delta stops this one, or the reply to its commit is lost. The content of
            # the sink decides, not the reply.
            if self._sink.held(query_id, batch) is None:
                raise
        self._enter(batch, Phase.SINK_WRITTEN)
        return reports, pending, 1

    def _record(
        self,
        root: StateRoot,
        ready: Ready,
        attempt: Attempt,
        reports: Sequence[PartitionReport],
        sources: tuple[str, ...],
    ) -> Pending:
        """Write the record of an attempt, with the changelogs that its tasks returned, before the sink is written."""
        self._enter(attempt.batch, Phase.COMPUTED)
        pending = Pending(
            batch=attempt.batch,
            attempt=attempt.attempt,
            root_id=attempt.root_id,
            query_id=attempt.query_id,
            sources=sources,
            schema=root.schema(),
            ids=_ids_by_operator(reports, ready),
            structure=root.structure,
            sink=self._sink_position,
            initial=initial_digest(reports),
            watermark_ms=ready.times.next_watermark_ms(latest_event_ms(reports), self._operator.lateness_ms),
        )
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

    def _plan(
        self,
        root: StateRoot,
        ready: Ready,
        attempt: Attempt,
        output: OutputFiles | AttemptReporter,
        session: SparkSession,
    ) -> TaskPlan:
        partitions = root.binding.partitions
        initial = self._initial_of(attempt.batch)
        slots = self._tasks or session.sparkContext.defaultParallelism
        return TaskPlan(
            root=self._root_spec,
            root_id=root.binding.root_id,
            local_folder=self._host.local_folder,
            operator=self._operator,
            row_columns=self._row_columns,
            partitioning=Partitioning(partitions, root.binding.key_groups, min(slots, partitions)),
            assignments=Assignments.of(ready.bases, self._snapshots.versions),
            rewrites=root.rewrites(attempt.batch),
            structure=root.structure,
            batch_log=part_of(self._log, attempt.attempt, partitions * len(ready.bases)),
            times=ready.times,
            limits=self._host.limits,
            sweep=SweepLimits(self._host.quota_bytes, self._host.unused_seconds),
            output=output,
            initial=None if initial is None else initial.columns,
        )

    def _initial_of(self, batch: int) -> InitialState | None:
        return self._initial if batch == 0 else None

    def _checked(self, reports: Sequence[Reported], ready: Ready, plan: TaskPlan) -> list[TaskReport]:
        tasks = checked(reports, ready.bases, plan.partitioning)
        self._metrics.add_tasks(tasks)
        return tasks

    def _settled_with_sink(
        self, root: StateRoot, query_id: str, batch: int, mine: Pending, sources: tuple[str, ...]
    ) -> tuple[Pending, tuple[str, ...]]:
        """Return the attempt to commit. The sink decides: it skips this write if another driver was first."""
        if not self._sink.supports_exactly_once:
            return mine, ()
        held = self._sink.held(query_id, batch)
        if held == mine.attempt:
            return mine, ()
        if held is None:
            raise SinkConflict(
                f"the job wrote batch {batch} to the sink, but the sink does not contain it; the batch was not committed",
                hint="search the history of the sink for a deletion or a rollback. Then restart the query",
            )
        note = f"batch {batch}: the sink has another driver's attempt {held} instead of {mine.attempt}"
        self._warn(f"{note}; two drivers run this query, stop one")
        return self._pending_of(root, query_id, batch, held, sources), (note,)

    def _taken_over(self, root: StateRoot, pending: Pending) -> Mapping[int, tuple[str, ...]]:
        """Return the ids of an attempt of an earlier run, and record the current position of the sink: else the next run
        would start from the position before a change that the user has accepted, and report the change again."""
        if self._sink_position not in (None, pending.sink):
            root.write_pending(replace(pending, attempt=self._ids.fresh(), sink=self._sink_position))
        return pending.ids

    def _pending_of(
        self, root: StateRoot, query_id: str, batch: int, attempt: str, sources: tuple[str, ...]
    ) -> Pending:
        pending = root.pending(batch, attempt)
        if pending is not None and pending.structure is not root.structure:
            # The root was switched between the sink's commit and its own. Or batch 0 ran with the other argument.
            held, mine = pending.structure, root.structure
            switch = "statekeeper switch " + self._storage.url + " --to {} --apply --confirm-stopped"
            first = "" if batch == 0 else f"stop the job and run: {switch.format(held.value)}. Then "
            raise SinkConflict(
                f"the sink contains batch {batch} from attempt {attempt}, which ran in structure {held.name}; the batch "
                "was not committed",
                path=self._root_spec.url,
                hint=f"{first}start the job with structure {held.name} until it commits batch {batch}. To use structure "
                f"{mine.name}, then stop the job and run: {switch.format(mine.value)}",
            )
        expected = (root.binding.root_id, query_id, sources, root.schema())
        if pending is None or (pending.root_id, pending.query_id, pending.sources, pending.schema) != expected:
            problem = "the record of this attempt has another query id, other source offsets or another schema"
            problem = "this root has no record of this attempt" if pending is None else problem
            raise SinkConflict(
                f"the sink contains batch {batch} from attempt {attempt}, but {problem}; the batch was not committed",
                path=self._root_spec.url,
                hint="restore both to the same batch: the state root with statekeeper rewind, the table with RESTORE",
            )
        return pending

    def _enter(self, batch: int, phase: Phase) -> None:
        now = self._clock.monotonic_seconds()
        if self._now is not None:
            earlier, since = self._now
            self._phases[earlier] = self._phases.get(earlier, 0.0) + (now - since) * 1000
        self._now = (phase, now)
        self._observer.phase(batch, phase)


def _ids_by_operator(reports: Sequence[PartitionReport], ready: Ready) -> dict[int, tuple[str, ...]]:
    return {operator: tuple(str(report.stores[operator].new.mark) for report in reports) for operator in ready.bases}
