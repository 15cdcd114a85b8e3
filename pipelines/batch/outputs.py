"""The outputs of a job with their sinks: which attempt of a batch the sinks hold, and how they get one.

The first sink chooses the attempt of all sinks, see decision 045. A job with one output is the case of one sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from statekeeper.pipelines.batch.initial import InitialState
from statekeeper.pipelines.batch.operator_job import operator_job
from statekeeper.pipelines.batch.spark import FOREIGN_BLOCK
from statekeeper.pipelines.operator.declaration import LATE_OUTPUT, StatefulOperator
from statekeeper.pipelines.sinks.data_files import DataFile, NoFiles, OutputFiles
from statekeeper.pipelines.sinks.delta_writer import WriterUsed
from statekeeper.pipelines.sinks.sink import (
    Attempt,
    ChoosingSink,
    FileSink,
    NoSink,
    RowsCheckingSink,
    Sink,
    TracedSink,
)
from statekeeper.pipelines.task.reports import PartitionReport, TaskReport
from statekeeper.pipelines.task.task_outputs import MARKER_COLUMN, TAG_COLUMN, TaskOutputs
from statekeeper.pipelines.task.work import TaskPlan
from statekeeper.statestore.base.errors import SchemaMismatch, SinkConflict, UnsafeSink, UnsupportedEnvironment
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.root.attempts import DEFAULT_OUTPUT, OutputRecord, SinkPosition
from statekeeper.statestore.root.state_root import Pending
from statekeeper.statestore.store.engine.rows_digest import RowsDigest


class Materialised:
    """The operator's output of one attempt: computed once, with its Spark lineage cut; freed on exit.

    Because the lineage is cut, reading a lost block raises an error; Spark never runs the operator a second time.
    """

    def __init__(self, plan: TaskPlan, rows: DataFrame, initial: InitialState | None) -> None:
        self._is_one = len(plan.output.rows) == 1
        self._frame = operator_job(plan, rows, initial).localCheckpoint(eager=True)

    def rows_of(self, output: str, tags: Sequence[int]) -> DataFrame:
        """Return the rows of an output without markers. `tags`: of each task. Reading a row of another attempt fails."""
        # The tags are in an array, because Spark compiles single numbers into code, again for each batch (0.15 s).
        chosen = f"element_at(array({', '.join(f'{tag}L' for tag in tags)}), spark_partition_id() + 1) = {TAG_COLUMN}"
        foreign = f"CAST(raise_error('{FOREIGN_BLOCK}') AS BOOLEAN)"
        column = f"`{output}`"
        # One condition: Spark could drop rows by a second one before it compares their tags.
        wanted = f"NOT {MARKER_COLUMN}" if self._is_one else f"NOT {MARKER_COLUMN} AND {column} IS NOT NULL"
        rows = self._frame.where(f"CASE WHEN {chosen} THEN {wanted} ELSE {foreign} END")
        return rows.drop(TAG_COLUMN, MARKER_COLUMN) if self._is_one else rows.selectExpr(f"{column}.*")

    def __enter__(self) -> Materialised:
        return self

    def __exit__(self, *_: object) -> None:
        plan: Any = self._frame._jdf.queryExecution().logical()  # noqa: SLF001 - Spark frees it only when Java's GC runs
        plan.rdd().unpersist(False)


@dataclass(frozen=True)
class Held:
    """The attempt of a batch that the sinks hold; None if none holds the batch. `missing`: outputs whose sinks do not
    hold it."""

    attempt: str | None
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Computed:
    """The outputs of an attempt that its tasks have computed. Use it as a context, which frees the rows."""

    tasks: Sequence[TaskReport]
    plans: Mapping[str, OutputFiles]
    rows: Materialised | None

    @property
    def reports(self) -> list[PartitionReport]:
        """Return the reports of all partitions."""
        return [report for task in self.tasks for report in task.partitions]

    def files(self, name: str) -> list[DataFile]:
        """Return the data files of an output."""
        return [file for task in self.tasks for file in task.files[name]]

    def rows_of(self, name: str) -> DataFrame:
        """Return the rows of an output that go through Spark."""
        assert self.rows is not None
        return self.rows.rows_of(name, [task.tag for task in self.tasks])

    def digest(self, name: str) -> str | None:
        """Return number and digest of the rows of an output; None if the tasks did not compute it."""
        total, found = RowsDigest(), [task.digests[name] for task in self.tasks if name in task.digests]
        for of_task in found:
            total.merge(of_task)
        return str(total) if found else None

    def __enter__(self) -> Computed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            if self.rows is not None:
                stack.enter_context(self.rows)


class Outputs:
    """The outputs of a job. `columns` and `sinks`: by the name of the output."""

    def __init__(self, columns: Mapping[str, pa.Schema], sinks: Mapping[str, Sink]) -> None:
        self.columns = columns
        self.positions: dict[str, SinkPosition] = {}
        self._sinks = sinks
        self._is_one = set(columns) == {DEFAULT_OUTPUT}

    def look(self, query_id: str, batch: int, recorded: Callable[[], Mapping[str, SinkPosition]]) -> Held:
        """Read the sinks before a batch. `recorded`: returns their positions before the write of the previous batch.

        Raises `SinkChanged` if others replaced rows, `UnsafeSink`, `SinkConflict`.
        """
        traced = {name: sink for name, sink in self._sinks.items() if isinstance(sink, TracedSink)}
        known = self.positions if set(traced) <= set(self.positions) else recorded()
        held: dict[str, str | None] = {}
        for name, sink in self._sinks.items():
            if isinstance(sink, TracedSink):
                look = sink.look(query_id, batch, known.get(name))
                self.positions[name] = look.position
                held[name] = look.held
            else:
                held[name] = sink.held(query_id, batch)
        return self._agreed(held, batch)

    def held(self, query_id: str, batch: int) -> Held:
        """Ask the sinks again after a write. Raises `SinkConflict`."""
        return self._agreed({name: sink.held(query_id, batch) for name, sink in self._sinks.items()}, batch)

    def plan(self) -> TaskOutputs:
        """Return where the tasks put the outputs of a batch. The outputs in rows are digested if there are several: a later
        run may have to compare them with rows that it computes again. Raises `UnsupportedTable`, `SchemaMismatch`."""
        files = self._files()
        rows = self._through_spark(files)
        return TaskOutputs(files=files, rows=rows, digested=frozenset() if self._is_one else frozenset(rows))

    @property
    def writers(self) -> Mapping[str, WriterUsed]:
        """Return output -> the writer of the newest batch that was planned, for sinks that choose one."""
        chosen = {name: sink.used for name, sink in self._sinks.items() if isinstance(sink, ChoosingSink)}
        return {name: used for name, used in chosen.items() if used is not None}

    def plan_only(self, names: Sequence[str]) -> TaskOutputs:
        """Return where the tasks put the outputs `names` if they compute a batch again. They drop the others."""
        planned = self._files()
        dropped = {name: planned.get(name, NoFiles()) for name in self.columns if name not in names}
        files = {**dropped, **{name: planned[name] for name in names if name in planned}}
        return TaskOutputs(files=files, rows=self._through_spark(files), digested=frozenset(names))

    def _files(self) -> dict[str, OutputFiles]:
        """Return output -> where its data files go, for outputs that do not go through Spark."""
        plans = {
            name: sink.plan_files(self.columns[name])
            for name, sink in self._sinks.items()
            if isinstance(sink, FileSink)
        }
        return {name: plan for name, plan in plans.items() if plan is not None}

    def _through_spark(self, files: Mapping[str, OutputFiles]) -> dict[str, pa.Schema]:
        return {name: columns for name, columns in self.columns.items() if name not in files}

    def recorded(self, pending: Pending, computed: Computed) -> Pending:
        """Return the record of an attempt with its outputs."""
        if self._is_one:
            return replace(pending, sink=self.positions.get(DEFAULT_OUTPUT))
        outputs = {
            name: OutputRecord(
                columns=spark_schema_json(columns),
                sink=self.positions.get(name),
                rows=computed.digest(name),
                files=tuple(file.as_json() for file in computed.files(name)) if _has_files(computed, name) else None,
            )
            for name, columns in self.columns.items()
        }
        return replace(pending, outputs=outputs)

    def at_current_positions(self, pending: Pending) -> Pending:
        """Return a record with the current positions of the sinks."""
        if self._is_one:
            return replace(pending, sink=self.positions.get(DEFAULT_OUTPUT))
        outputs = {
            name: replace(output, sink=self.positions.get(name, output.sink))
            for name, output in pending.outputs.items()
        }
        return replace(pending, outputs=outputs)

    def write(self, computed: Computed, attempt: Attempt) -> str:
        """Write an attempt to the sinks, in their order. Return the attempt that they hold: another driver's attempt if the
        first sink holds that one. Then nothing else is written.

        Raises `SinkConflict` if a sink does not hold what was written, `WrongResult` before any sink is written.
        """
        self.check_rows(sorted(self._sinks), computed, attempt.batch)
        for name in sorted(self._sinks, key=lambda name: (name in computed.plans, name)):
            held = self.write_one(name, computed, attempt)
            if held != attempt.attempt:
                return held
        return attempt.attempt

    def check_rows(self, names: Sequence[str], computed: Computed, batch: int) -> None:
        """Let the sinks of outputs check their rows, if these go through Spark. Raises `WrongResult`."""
        for name in names:
            sink = self._sinks[name]
            if name not in computed.plans and isinstance(sink, RowsCheckingSink):
                sink.check_rows(computed.rows_of(name), batch)

    def write_one(self, name: str, computed: Computed, attempt: Attempt) -> str:
        """Write an attempt to one sink, and return the attempt that the sink holds afterwards."""
        sink = self._sinks[name]
        if name not in computed.plans:
            return _held_after(lambda: sink.write(computed.rows_of(name), attempt), sink, attempt)
        assert isinstance(sink, FileSink)
        plan, files = computed.plans[name], computed.files(name)
        return _held_after(lambda: sink.commit_files(plan, files, attempt), sink, attempt)

    def plan_recorded(self, name: str, files: Sequence[DataFile], attempt: Attempt) -> OutputFiles:
        """Return the place of data files in the record of an attempt. Raises `SinkConflict` if they cannot be committed."""
        sink = self._sinks[name]
        plan = sink.plan_files(self.columns[name]) if isinstance(sink, FileSink) else None
        if not isinstance(sink, FileSink) or plan is None:
            raise SinkConflict(
                f"the tasks of attempt {attempt.attempt} wrote the files of output {name!r}, but the sink now takes rows; "
                f"batch {attempt.batch} was not committed",
                hint=f'start the job with writer="tasks" for output {name!r} until it commits batch {attempt.batch}. If '
                "the table has a new feature that tasks do not support, remove it first. To continue without these rows, "
                f"start the job once with NoSink for this output until it commits batch {attempt.batch}, then with "
                f"DeltaSink(..., continue_at_batch={attempt.batch + 1})",
            )
        lost = plan.missing(files)
        if lost:
            raise SinkConflict(
                f"{len(lost)} data files of output {name!r} that attempt {attempt.attempt} of batch {attempt.batch} wrote "
                f"do not exist any more, the first is {lost[0]}; the batch was not committed",
                hint="VACUUM has deleted them, for example. Restore them from a backup. To continue without them, start "
                f"the job once with NoSink for output {name!r} until it commits batch {attempt.batch}, then with "
                f"DeltaSink(..., continue_at_batch={attempt.batch + 1})",
            )
        return plan

    def commit_recorded(self, name: str, plan: OutputFiles, files: Sequence[DataFile], attempt: Attempt) -> str:
        """Commit data files of the record of an attempt, and return the attempt that the sink holds afterwards."""
        sink = self._sinks[name]
        assert isinstance(sink, FileSink)
        return _held_after(lambda: sink.commit_files(plan, files, attempt), sink, attempt)

    def require_complete(self, attempt: Attempt) -> None:
        """Raise `SinkConflict` unless all sinks hold an attempt."""
        held = self.held(attempt.query_id, attempt.batch)
        if held != Held(attempt.attempt, ()):
            raise SinkConflict(
                f"the job wrote attempt {attempt.attempt} of batch {attempt.batch} to the sinks of all outputs, but those "
                f"of {list(held.missing)} do not contain it; the batch was not committed",
                hint="search the history of these sinks for a deletion or a rollback. Then restart the query",
            )

    def _agreed(self, held: Mapping[str, str | None], batch: int) -> Held:
        attempts = {name: attempt for name, attempt in held.items() if attempt is not None}
        if len(set(attempts.values())) > 1:
            texts = ", ".join(f"{name!r} has attempt {attempt}" for name, attempt in sorted(attempts.items()))
            raise SinkConflict(
                f"the sinks contain batch {batch} from different attempts: {texts}; the batch was not committed",
                hint="two drivers with different sinks ran this query at the same time. Stop both. "
                + (
                    f"Restore the root and all tables to batch {batch - 1}: the tables with RESTORE in SQL, and the root "
                    f"with: statekeeper rewind ROOT --to-batch {batch - 1} --apply --confirm-stopped"
                    if batch > 0
                    else "Start one of them with a new checkpoint, a new root and empty tables"
                ),
            )
        exact = [name for name, sink in self._sinks.items() if sink.supports_exactly_once]
        missing = tuple(name for name in exact if held[name] is None)
        return Held(next(iter(attempts.values()), None), missing)


def columns_of_outputs(
    operator: StatefulOperator, row_columns: pa.Schema, sinks: Mapping[str, Sink]
) -> Mapping[str, pa.Schema]:
    """Return output -> its columns, also for the late rows if there is a sink for them."""
    late = {LATE_OUTPUT: row_columns} if LATE_OUTPUT in sinks else {}
    return {**operator.outputs, **late}


def require_sinks(
    operator: StatefulOperator, sink: Sink | Mapping[str, Sink], structure: Structure, late: Sink | None = None
) -> Mapping[str, Sink]:
    """Return output -> its sink. Raises `SchemaMismatch` unless the sinks have the names of the outputs, `UnsafeSink` for a
    sink that cannot be one of several, `UnsupportedEnvironment` in structure V1."""
    sinks = dict(_sinks_of(operator, sink))
    if late is not None:
        if operator.event_time is None:
            raise SchemaMismatch(
                "there is a sink `late`, but no row is late", hint="declare the operator's `event_time`"
            )
        if LATE_OUTPUT in sinks:
            raise SchemaMismatch(
                f"the operator has an output {LATE_OUTPUT!r}, the name of the output with the late rows",
                hint="rename the output of the operator",
            )
        sinks[LATE_OUTPUT] = late
    if len(sinks) > 1:
        _require_agreeing(sinks, structure)
    return sinks


def _sinks_of(operator: StatefulOperator, sink: Sink | Mapping[str, Sink]) -> Mapping[str, Sink]:
    if operator.has_one_output:
        if isinstance(sink, Mapping):
            raise SchemaMismatch(
                f"the sinks have the names {sorted(sink)}, but the operator declares one output without a name",
                hint="use one sink, or declare the outputs with names: output={'facts': ...}",
            )
        return dict.fromkeys(operator.outputs, sink)
    names = sorted(operator.outputs)
    if not isinstance(sink, Mapping) or sorted(sink) != names:
        given = f"the sinks have the names {sorted(sink)}" if isinstance(sink, Mapping) else "there is one sink"
        raise SchemaMismatch(
            f"{given}, but the operator has the outputs {names}",
            hint="use a mapping with one sink for each output, or NoSink() to drop an output",
        )
    return sink


def _require_agreeing(sinks: Mapping[str, Sink], structure: Structure) -> None:
    for name, of_output in sinks.items():
        if not of_output.supports_exactly_once and not isinstance(of_output, NoSink):
            raise UnsafeSink(
                f"the sink of output {name!r} cannot report its batches: after a crash, it could hold another attempt of a "
                "batch than the other sinks",
                hint="use a DeltaSink. Or run the function of AtLeastOnceSink in a stream that reads the table",
            )
    through_spark = [name for name, one in sinks.items() if not (isinstance(one, FileSink) and one.takes_files)]
    if structure is Structure.V1 and len(through_spark) > 1:
        raise UnsupportedEnvironment(
            f"the outputs {sorted(through_spark)} can go through Spark in structure V1: after a crash one of them could "
            "not be completed",
            hint='use structure V2, or DeltaSink(..., writer="tasks") for all outputs but one',
        )


def _held_after(write: Callable[[], None], sink: Sink, attempt: Attempt) -> str:
    """Write an attempt, and return the attempt that the sink holds afterwards."""
    try:
        write()
    except Exception:
        # Race: two drivers write at once and the sink's check stops this one, or the reply to its commit is lost. The
        # content of the sink decides, not the reply.
        if sink.held(attempt.query_id, attempt.batch) is None:
            raise
    if not sink.supports_exactly_once:
        return attempt.attempt
    held = sink.held(attempt.query_id, attempt.batch)
    if held is None:
        raise SinkConflict(
            f"the job wrote batch {attempt.batch} to the sink, but the sink does not contain it; the batch was not "
            "committed",
            hint="search the history of the sink for a deletion or a rollback. Then restart the query",
        )
    return held


def _has_files(computed: Computed, name: str) -> bool:
    return name in computed.plans and not isinstance(computed.plans[name], NoFiles)
