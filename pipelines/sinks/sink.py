"""Sinks: they write a batch's output and report which attempt of a batch they hold.

With an exactly-once sink, state and output agree after each crash: the sink's commit names the attempt, and the commit log
gets the ids of that attempt. A sink that cannot report its batches is at-least-once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from statekeeper.pipelines.sinks.data_files import DataFile, NoFiles, OutputFiles, TableFiles
from statekeeper.pipelines.sinks.delta_files import DeltaFiles, require_nullable, require_partition_columns
from statekeeper.pipelines.sinks.delta_history import NO_TABLE, application, attempt_of, note_of, require_unchanged
from statekeeper.pipelines.sinks.delta_log import DeltaLog, KnownTable
from statekeeper.pipelines.sinks.delta_rows import Commit, append, merge, require_unique
from statekeeper.pipelines.sinks.delta_writer import Writer, WriterChoice, WriterUsed
from statekeeper.statestore.base.errors import BadConfiguration, SchemaMismatch, UnsafeSink, UnsupportedType
from statekeeper.statestore.base.redaction import redacted
from statekeeper.statestore.root.attempts import SinkPosition

_RETENTION = "delta.setTransactionRetentionDuration"
_AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"


@dataclass(frozen=True)
class Attempt:
    """Identifies a write to the sink: one attempt of one batch of one query."""

    query_id: str
    root_id: str
    batch: int
    attempt: str


class Sink(Protocol):
    """Writes the output of batches."""

    supports_exactly_once: ClassVar[bool]

    def held(self, query_id: str, batch: int) -> str | None:
        """Return the attempt of a batch that the sink holds; None if it does not hold the batch. Called before each batch
        and after each write. Raises `SinkConflict` if the sink holds the batch and the attempt is unknown."""

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        """Write all rows and the attempt in one atomic commit. Write nothing if the sink already holds the batch."""


@dataclass(frozen=True)
class SinkLook:
    """State of a sink before a batch. `held`: see `Sink.held`."""

    held: str | None
    position: SinkPosition


@runtime_checkable
class TracedSink(Sink, Protocol):
    """A sink whose history shows changes by others to the rows of earlier batches."""

    def look(self, query_id: str, batch: int, last: SinkPosition | None) -> SinkLook:
        """Read the sink before a batch. `last`: its position before the write of the previous batch; None if unknown.

        Raises `UnsafeSink`, `SinkChanged`, `SinkConflict`.
        """


@runtime_checkable
class FileSink(Sink, Protocol):
    """A sink whose files the tasks can write first and the driver commits later: one Spark job per batch."""

    @property
    def takes_files(self) -> bool:
        """Return whether the tasks write the output of every batch. Otherwise rows can go through `write`."""

    def plan_files(self, output: pa.Schema) -> OutputFiles | None:
        """Return where and how tasks write the output; None if the rows go through `write`. Called before each batch.

        Raises `UnsupportedTable`, `SchemaMismatch`.
        """

    def commit_files(self, plan: OutputFiles, files: Sequence[DataFile], attempt: Attempt) -> None:
        """Add all files and the attempt in one atomic commit. Add nothing if the sink already holds the batch."""


@runtime_checkable
class ChoosingSink(Sink, Protocol):
    """A sink that chooses the writer of each batch."""

    @property
    def used(self) -> WriterUsed | None:
        """Return the writer of the newest batch; None before the first one."""


@runtime_checkable
class RowsCheckingSink(Sink, Protocol):
    """A sink that checks the rows of a batch. With several outputs, all checks come before the first write."""

    def check_rows(self, rows: DataFrame, batch: int) -> None:
        """Raise `WrongResult` for rows that the sink cannot write. Called before each `write`."""


@dataclass(frozen=True)
class DeltaSink:
    """Appends to a Delta table exactly once: query and batch are the commit's txn (Delta's idempotent writes), the attempt
    is its `userMetadata`. `storage_options` give access to the table if it is not on local disk.

    writer              "auto": the operator's tasks write the files, so that a batch is one Spark job, if they support the
                        table and the settings of the session, and the table is not on S3. Otherwise Spark's writer does it
                        in a second job. The choice is made before each batch; `BatchReport.writers` has it with the reason.
                        "tasks" raises
                        `UnsupportedTable` for a table with a feature that only Spark's writer supports: constraints,
                        generated or identity columns, default values, column mapping, change feed, row tracking, deletion
                        vectors, other features of a higher protocol. "spark": always Spark's writer
    partition_by        partition columns of a new table; an existing table must have the same
    merge_on            key columns: a row of the output updates the row of the table with the same key (MERGE INTO), or is
                        inserted. Null equals null. A batch with two rows of a key stops with `WrongResult` before it
                        writes. Only Spark's writer does it
    add_columns         the first batch that has new columns adds them to the table, in the same commit. They must be
                        nullable; earlier rows have null

    Checks the table's history before each batch: the table must hold the previous batch, and since then no other writer may
    have deleted, replaced, overwritten or restored it. Otherwise the query stops with `SinkChanged`.

    continue_at_batch   the batch from which you accept the changed table, or a new one

    *Danger*: with `continue_at_batch` rows of earlier batches may be missing from the table permanently.
    """

    path: str
    _: KW_ONLY
    storage_options: Mapping[str, str] = field(default_factory=dict)
    continue_at_batch: int | None = None
    writer: Writer | str = Writer.AUTO
    partition_by: Sequence[str] | None = None
    merge_on: Sequence[str] | None = None
    add_columns: bool = False
    supports_exactly_once: ClassVar[bool] = True
    _log: DeltaLog = field(init=False, repr=False, compare=False)
    _files: DeltaFiles = field(init=False, repr=False, compare=False)
    _choice: WriterChoice = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.writer not in list(Writer):
            raise BadConfiguration(
                f"DeltaSink with writer={self.writer!r}", hint='use writer="auto", writer="spark" or writer="tasks"'
            )
        self._require_merge_columns()
        log = DeltaLog(self.path, self.storage_options)
        files = DeltaFiles(
            self.path, self.storage_options, log=log, partition_by=self.partition_by, add_columns=self.add_columns
        )
        object.__setattr__(self, "_log", log)
        object.__setattr__(self, "_files", files)
        merges = self.merge_on is not None
        object.__setattr__(
            self, "_choice", WriterChoice(self.path, Writer(self.writer), merges=merges, log=log, files=files)
        )

    def _require_merge_columns(self) -> None:
        if self.merge_on is None:
            return
        if isinstance(self.merge_on, str) or not self.merge_on:
            raise BadConfiguration(
                f"DeltaSink with merge_on={self.merge_on!r}", hint='name at least one column: merge_on=["key"]'
            )
        if self.writer == Writer.TASKS:
            raise BadConfiguration(
                'DeltaSink with merge_on and writer="tasks": tasks only add files, but a merge also replaces rows',
                hint='use merge_on without writer="tasks"',
            )

    def __repr__(self) -> str:
        # Leaves out the options, which hold credentials.
        return f"{type(self).__name__}(path={redacted(self.path)!r})"

    def require_ready(self, session: SparkSession, output: pa.Schema) -> None:
        """Check the table before the query starts. Raises `UnsupportedEnvironment` for a session without Delta,
        `UnsafeSink`, `SchemaMismatch` for a table without a column of the output."""
        _require_keys(self.merge_on or (), output)
        self._choice.remember(session.conf.getAll)
        through_spark = self._choice.plan(output) is None
        default = f"spark.databricks.delta.properties.defaults.{_RETENTION.removeprefix('delta.')}"
        table = self._table()
        if table is None:
            if through_spark and session.conf.get(default, None):
                raise UnsafeSink(
                    f"{default} is set: a new table would lose the record of its batches, and a crash could "
                    "write a batch twice",
                    path=self.path,
                    hint="unset this setting of the session",
                )
            return
        self._require_lasting_transactions(table)
        require_partition_columns(self.path, table.opened().metadata().partition_columns, self.partition_by)
        missing = _missing(output.names, table)
        if self.add_columns:
            require_nullable(self.path, [output.field(name) for name in missing])
        elif missing and through_spark and str(session.conf.get(_AUTO_MERGE, "false")).lower() != "true":
            raise SchemaMismatch(
                f"the sink's table has no columns {missing}",
                path=self.path,
                hint="use add_columns=True, or add them with ALTER TABLE ADD COLUMNS",
            )

    def held(self, query_id: str, batch: int) -> str | None:
        table = self._table()
        return None if table is None else attempt_of(self.path, table, query_id, batch)

    def look(self, query_id: str, batch: int, last: SinkPosition | None) -> SinkLook:
        table = self._table()
        if table is not None:
            self._require_lasting_transactions(table)
        if batch != self.continue_at_batch:
            require_unchanged(self.path, table, query_id, batch, last)
        if table is None:
            return SinkLook(None, NO_TABLE)
        position = SinkPosition(table.metadata().id, table.version())
        return SinkLook(attempt_of(self.path, table, query_id, batch), position)

    def _table(self) -> KnownTable | None:
        # Reads the log without a Spark job: milliseconds instead of a second, twice per batch.
        return self._log.look()

    def _require_lasting_transactions(self, table: KnownTable) -> None:
        """Raise `UnsafeSink` for a table that deletes the record of its batches.

        Failure sequence: the sink commits batch N, the driver dies before `commits/N`, the transaction of N expires; the
        restarted query finds no N in the table, and Delta's own check finds none either: the rows are written twice.
        """
        duration = table.metadata().configuration.get(_RETENTION)
        if duration is not None:
            raise UnsafeSink(
                f"the table has {_RETENTION} = {duration}: it loses the record of its batches, and a restart after "
                "a crash could write a batch twice",
                path=self.path,
                hint=f"run: ALTER TABLE delta.`{self.path}` UNSET TBLPROPERTIES ('{_RETENTION}')",
            )

    def check_rows(self, rows: DataFrame, batch: int) -> None:
        if self.merge_on is not None:
            require_unique(rows, self.path, on=self.merge_on, batch=batch)

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        commit = _commit_of(attempt)
        table = self._table()
        adds_columns = self.add_columns and table is not None and bool(_missing(rows.columns, table))
        if self.merge_on is None or table is None:
            append(rows, self.path, commit, partition_by=self.partition_by, adds_columns=adds_columns)
        else:
            merge(rows, self.path, commit, on=self.merge_on, adds_columns=adds_columns)

    @property
    def takes_files(self) -> bool:
        return self.writer == Writer.TASKS

    @property
    def used(self) -> WriterUsed | None:
        return self._choice.used

    def plan_files(self, output: pa.Schema) -> TableFiles | None:
        return self._choice.plan(output)

    def commit_files(self, plan: OutputFiles, files: Sequence[DataFile], attempt: Attempt) -> None:
        assert isinstance(plan, TableFiles)
        self._files.commit(plan, files, _commit_of(attempt))


@dataclass(frozen=True)
class AtLeastOnceSink:
    """Passes each batch to a function. After a crash a batch can arrive again, from another attempt.

    `function(rows, batch)` must read all `rows`.
    """

    function: Callable[[DataFrame, int], None]
    supports_exactly_once: ClassVar[bool] = False

    def held(self, query_id: str, batch: int) -> str | None:
        del query_id, batch
        return None

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        self.function(rows, attempt.batch)


@dataclass(frozen=True)
class NoSink:
    """Drops the output: for a job whose result is its state. A batch is one Spark job."""

    supports_exactly_once: ClassVar[bool] = False

    def held(self, query_id: str, batch: int) -> str | None:
        del query_id, batch
        return None

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        """Raise NotImplementedError: the tasks drop the rows."""
        raise NotImplementedError

    @property
    def takes_files(self) -> bool:
        """Return True: the tasks drop the rows."""
        return True

    def plan_files(self, output: pa.Schema) -> OutputFiles:
        del output
        return NoFiles()

    def commit_files(self, plan: OutputFiles, files: Sequence[DataFile], attempt: Attempt) -> None:
        """Do nothing."""


def _require_keys(merge_on: Sequence[str], output: pa.Schema) -> None:
    for name in merge_on:
        if name not in output.names:
            raise SchemaMismatch(
                f"merge_on names the column {name}, which the output does not have", hint=f"it has {output.names}"
            )
        if "map<" in str(output.field(name).type):
            raise UnsupportedType(f"merge_on names the column {name}: maps cannot be compared", hint="merge on others")


def _missing(columns: Sequence[str], table: KnownTable) -> list[str]:
    """Return the columns that a table does not have."""
    there = {name.lower() for name in table.metadata().columns}
    return [name for name in columns if name.lower() not in there]


def _commit_of(attempt: Attempt) -> Commit:
    return Commit(application=application(attempt.query_id), batch=attempt.batch, note=note_of(vars(attempt)))
