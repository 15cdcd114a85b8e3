"""Sinks: they write a batch's output and report which attempt of a batch they hold.

With an exactly-once sink, state and output agree after each crash: the sink's commit names the attempt, and the commit log
gets the ids of that attempt. A sink that cannot report its batches is at-least-once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pipelines.data_files import DataFile, NoFiles, OutputFiles, TableFiles
from pipelines.delta_files import DeltaFiles
from pipelines.delta_log import DeltaLog, KnownTable
from statestore.errors import (
    BadConfiguration,
    SchemaMismatch,
    SinkChanged,
    SinkConflict,
    UnsafeSink,
    UnsupportedEnvironment,
)
from statestore.redaction import redacted
from statestore.root import SinkPosition

_LOG = logging.getLogger("statekeeper")
_HISTORY_PAGE = 50
_RETENTION = "delta.setTransactionRetentionDuration"
_EXTENSIONS = "spark.sql.extensions"
_AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"
_DELTA_CONF = {
    _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_NO_TABLE = SinkPosition("", -1)
_REPLACING = ("RESTORE", "REPLACE TABLE", "CLONE")
"""Parts of the names of operations that replace the rows of a table."""


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

    def plan_files(self, output: pa.Schema) -> OutputFiles | None:
        """Return where and how tasks write the output; None if the rows go through `write`. Called before each batch.

        Raises `UnsupportedTable`, `SchemaMismatch`.
        """

    def commit_files(self, plan: OutputFiles, files: Sequence[DataFile], attempt: Attempt) -> None:
        """Add all files and the attempt in one atomic commit. Add nothing if the sink already holds the batch."""


class Writer(StrEnum):
    """The program that writes the rows of a batch into a table."""

    SPARK = "spark"
    """Spark's own writer, in a second job of the batch. It supports every table."""
    TASKS = "tasks"
    """The operator's tasks, so that a batch is one Spark job. The driver commits the files."""


@dataclass(frozen=True)
class DeltaSink:
    """Appends to a Delta table exactly once: query and batch are the commit's txn (Delta's idempotent writes), the attempt
    is its `userMetadata`. `storage_options` give access to the table if it is not on local disk.

    writer              see `Writer`. "tasks" raises `UnsupportedTable` for a table with a feature that only Spark's writer
                        supports: constraints, generated or identity columns, default values, column mapping, change feed,
                        row tracking, deletion vectors, other features of a higher protocol
    partition_by        partition columns of a new table; an existing table must have the same

    Checks the table's history before each batch: the table must hold the previous batch, and since then no other writer may
    have deleted, replaced, overwritten or restored it. Otherwise the query stops with `SinkChanged`.

    continue_at_batch   the batch from which you accept the changed table, or a new one

    *Danger*: with `continue_at_batch` rows of earlier batches may be missing from the table permanently.
    """

    path: str
    _: KW_ONLY
    storage_options: Mapping[str, str] = field(default_factory=dict)
    continue_at_batch: int | None = None
    writer: Writer | str = Writer.SPARK
    partition_by: Sequence[str] | None = None
    supports_exactly_once: ClassVar[bool] = True
    _log: DeltaLog = field(init=False, repr=False, compare=False)
    _files: DeltaFiles = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.writer not in list(Writer):
            raise BadConfiguration(
                f"DeltaSink with writer={self.writer!r}", hint='use writer="spark" or writer="tasks"'
            )
        log = DeltaLog(self.path, self.storage_options)
        files = DeltaFiles(self.path, self.storage_options, log=log, partition_by=self.partition_by)
        object.__setattr__(self, "_log", log)
        object.__setattr__(self, "_files", files)

    def __repr__(self) -> str:
        # Leaves out the options, which hold credentials.
        return f"{type(self).__name__}(path={redacted(self.path)!r})"

    def require_ready(self, session: SparkSession, output: pa.Schema) -> None:
        """Check the table before the query starts. Raises `UnsupportedEnvironment` for a session without Delta,
        `UnsafeSink`, `SchemaMismatch` for a table without a column of the output."""
        if self.writer == Writer.TASKS:
            self._files.plan(output)
        for conf, wanted in _DELTA_CONF.items() if self.writer == Writer.SPARK else ():
            # Other catalogs may extend Delta's catalog; the extension is one item of a list.
            held = str(session.conf.get(conf, ""))
            if not held or (conf == _EXTENSIONS and wanted not in held):
                raise UnsupportedEnvironment(
                    f"the session cannot write Delta tables: {conf} is {held or 'not set'}",
                    hint=f"set it to {wanted}, or make the session with pipelines.spark_session",
                )
        default = f"spark.databricks.delta.properties.defaults.{_RETENTION.removeprefix('delta.')}"
        table = self._table()
        if table is None:
            if self.writer == Writer.SPARK and session.conf.get(default, None):
                raise UnsafeSink(
                    f"{default} is set: a new table would lose the record of its batches, and a crash could "
                    "write a batch twice",
                    path=self.path,
                    hint="unset this setting of the session",
                )
            return
        self._require_lasting_transactions(table)
        there = {field.name.lower() for field in table.opened().schema().fields}
        missing = [name for name in output.names if name.lower() not in there]
        if missing and self.writer == Writer.SPARK and str(session.conf.get(_AUTO_MERGE, "false")).lower() != "true":
            raise SchemaMismatch(
                f"the sink's table has no columns {missing}",
                path=self.path,
                hint="add them with ALTER TABLE ADD COLUMNS",
            )

    def held(self, query_id: str, batch: int) -> str | None:
        table = self._table()
        return None if table is None else self._attempt_of(table, query_id, batch)

    def look(self, query_id: str, batch: int, last: SinkPosition | None) -> SinkLook:
        table = self._table()
        if table is not None:
            self._require_lasting_transactions(table)
        if batch != self.continue_at_batch:
            self._require_unchanged(table, query_id, batch, last)
        if table is None:
            return SinkLook(None, _NO_TABLE)
        position = SinkPosition(table.metadata().id, table.version())
        return SinkLook(self._attempt_of(table, query_id, batch), position)

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

    def _require_unchanged(
        self, table: KnownTable | None, query_id: str, batch: int, last: SinkPosition | None
    ) -> None:
        """Raise `SinkChanged` unless the table holds the rows of earlier batches, as far as its history shows."""
        if batch == 0:
            return
        if table is None:
            raise self._changed(batch, "there is no Delta table: it was deleted or moved")
        newest = table.transaction_version(_app_id(query_id))
        if newest is None or newest < batch - 1:
            held = "no batch of this query" if newest is None else f"no batch of this query after {newest}"
            raise self._changed(batch, f"the table contains {held}: it was deleted, replaced or rolled back")
        if last is None:
            return  # Written by a release that did not record it. From this batch on it is recorded.
        if last != _NO_TABLE and table.metadata().id != last.table:
            raise self._changed(
                batch, f"the table was replaced: its id is {table.metadata().id} instead of {last.table}"
            )
        since = table.version() - last.version
        if since < 0:
            what = f"the table was rolled back: its version is {table.version()}, but it was {last.version}"
            raise self._changed(batch, what)
        history = table.history(since) if since else []
        for commit in history:
            if _replaces_rows(commit):
                what = f"{commit['operation']} in version {commit['version']} replaced rows of the table"
                raise self._changed(batch, what)
        if len(history) < since:
            _LOG.warning(
                "%s: Delta has deleted the log of the %d versions before version %d; Statekeeper cannot check whether they "
                "replaced rows",
                self.path,
                since - len(history),
                table.version() - len(history) + 1,
            )

    def _changed(self, batch: int, what: str) -> SinkChanged:
        return SinkChanged(
            f"{what}. The state includes batch {batch - 1}; rows of committed batches may be missing from the table",
            path=self.path,
            hint=f"if the rows of the table are correct, start the query with DeltaSink(..., continue_at_batch={batch}). "
            f"If they are wrong, first restore the table to its version after batch {batch - 1}. If this is not possible, "
            "start over with a new root, checkpoint and table",
        )

    def _attempt_of(self, table: KnownTable, query_id: str, batch: int) -> str | None:
        newest = table.transaction_version(_app_id(query_id))
        if newest is None or newest < batch:
            return None
        limit = _HISTORY_PAGE
        while True:
            history = table.history(limit)
            for commit in history:
                found = _attempt_in(commit)
                if found is not None and found.query_id == query_id and found.batch == batch:
                    return found.attempt
            if len(history) < limit:
                break
            limit *= 4
        raise SinkConflict(
            f"the table contains batch {newest} of query {query_id}, but its log does not name the attempt that wrote "
            f"batch {batch}; the batch was not committed",
            path=self.path,
            hint="another program has changed or cleaned the log of the table. Compare the table with the state before "
            "you continue",
        )

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        writer = (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", _app_id(attempt.query_id))
            .option("txnVersion", attempt.batch)
            .option("userMetadata", _note_of(attempt))
        )
        if self.partition_by is not None:
            writer = writer.partitionBy(*self.partition_by)
        writer.save(self.path)

    def plan_files(self, output: pa.Schema) -> TableFiles | None:
        return self._files.plan(output) if self.writer == Writer.TASKS else None

    def commit_files(self, plan: OutputFiles, files: Sequence[DataFile], attempt: Attempt) -> None:
        assert isinstance(plan, TableFiles)
        self._files.commit(
            plan, files, application=_app_id(attempt.query_id), batch=attempt.batch, note=_note_of(attempt)
        )


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

    def plan_files(self, output: pa.Schema) -> OutputFiles:
        del output
        return NoFiles()

    def commit_files(self, plan: OutputFiles, files: Sequence[DataFile], attempt: Attempt) -> None:
        """Do nothing."""


def _app_id(query_id: str) -> str:
    return f"statekeeper-{query_id}"


def _note_of(attempt: Attempt) -> str:
    return json.dumps({"statekeeper": vars(attempt)})


def _replaces_rows(commit: Mapping[str, Any]) -> bool:
    """Return whether a commit replaced all rows. Delta's DELETE, UPDATE, MERGE and OPTIMIZE do not count: the owner of a
    table runs them on purpose, for some rows."""
    operation = str(commit.get("operation", "")).upper()
    if any(name in operation for name in _REPLACING):
        return True
    parameters = commit.get("operationParameters") or {}
    is_partial = (
        str(parameters.get("predicate") or "[]") != "[]"
        or str(parameters.get("isDynamicPartitionOverwrite") or "false").lower() == "true"
    )
    return str(parameters.get("mode", "")).lower() == "overwrite" and not is_partial


def _attempt_in(commit: Mapping[str, Any]) -> Attempt | None:
    try:
        return Attempt(**json.loads(commit["userMetadata"])["statekeeper"])
    except (KeyError, TypeError, ValueError):
        return None
