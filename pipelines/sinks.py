"""Where a batch's output goes, and how the sink is asked what it holds.

A sink that can be asked makes state and output agree whatever dies when: the attempt's name is in the sink's own commit,
and the ids of that attempt go into the commit log. One that cannot be asked is at-least-once, and says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pipelines.delta_log import DeltaLog, KnownTable
from statestore.errors import SchemaMismatch, SinkChanged, SinkConflict, UnsafeSink, UnsupportedEnvironment
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
"""What the names of those operations contain that put other rows in place of a table's."""


@dataclass(frozen=True)
class Attempt:
    """Who writes to the sink: one try at one batch of one query."""

    query_id: str
    root_id: str
    batch: int
    attempt: str


class Sink(Protocol):
    """Takes the output of batches."""

    supports_exactly_once: ClassVar[bool]

    def held(self, query_id: str, batch: int) -> str | None:
        """The attempt that the sink holds of a batch; None when it does not hold the batch. Asked before each batch
        and after each write. Raises `SinkConflict` when it holds the batch but cannot say from which attempt."""

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        """Write all rows and the attempt's name in one atomic commit, or, when the batch is held already, nothing."""


@dataclass(frozen=True)
class SinkLook:
    """A sink before a batch. `held` as in `Sink.held`."""

    held: str | None
    position: SinkPosition


@runtime_checkable
class TracedSink(Sink, Protocol):
    """A sink with a history, which shows what others did to the rows of earlier batches."""

    def look(self, query_id: str, batch: int, last: SinkPosition | None) -> SinkLook:
        """Look at the sink before a batch. `last`: where it was before the previous batch wrote; None if unknown.

        Raises `UnsafeSink`, `SinkChanged`, `SinkConflict`.
        """


@dataclass(frozen=True)
class DeltaSink:
    """Appends to a Delta table, exactly once: the query and batch are the commit's txn (Delta's idempotent writes), the
    attempt its `userMetadata`. `storage_options` are for reading the table's log where its files are not local.

    Before each batch the table's history is checked: that it still holds the previous batch, and that no one has
    deleted, replaced, overwritten or restored it since. Such a change stops the query with `SinkChanged`.

    continue_at_batch   the batch at which you accept the table as it is, after such a change, or to start a new table

    *Danger*: with `continue_at_batch` rows of earlier batches may be missing from the table permanently.
    """

    path: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    continue_at_batch: int | None = None
    supports_exactly_once: ClassVar[bool] = True
    _log: DeltaLog = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_log", DeltaLog(self.path, self.storage_options))

    def __repr__(self) -> str:
        # Without the options, which hold credentials.
        return f"{type(self).__name__}(path={redacted(self.path)!r})"

    def require_ready(self, session: SparkSession, output: pa.Schema) -> None:
        """Raises what the first write would raise: `UnsupportedEnvironment` in a session without Delta, `UnsafeSink`,
        `SchemaMismatch` for a table without a column of the output."""
        for conf, wanted in _DELTA_CONF.items():
            # Other catalogs may extend Delta's; the extension is a member of a list.
            held = str(session.conf.get(conf, ""))
            if not held or (conf == _EXTENSIONS and wanted not in held):
                raise UnsupportedEnvironment(
                    f"DeltaSink in a session whose {conf} is {held or 'not set'}",
                    hint=f"set it to {wanted}, or make the session with pipelines.spark_session",
                )
        default = f"spark.databricks.delta.properties.defaults.{_RETENTION.removeprefix('delta.')}"
        table = self._table()
        if table is None:
            if session.conf.get(default, None):
                raise UnsafeSink(
                    f"{default} is set: a new table would forget which batches it holds",
                    path=self.path,
                    hint="unset it",
                )
            return
        self._require_lasting_transactions(table)
        there = {field.name.lower() for field in table.opened().schema().fields}
        missing = [name for name in output.names if name.lower() not in there]
        if missing and str(session.conf.get(_AUTO_MERGE, "false")).lower() != "true":
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
        # Read by its log, without a Spark job: milliseconds instead of a second, twice a batch.
        return self._log.look()

    def _require_lasting_transactions(self, table: KnownTable) -> None:
        """Raises `UnsafeSink` for a table that forgets which batches it holds.

        Failure sequence: the sink commits batch N, the driver dies before `commits/N`, the transaction of N expires; the
        restarted query finds no N in the table, and Delta's own check finds none either: the rows are written twice.
        """
        duration = table.metadata().configuration.get(_RETENTION)
        if duration is not None:
            raise UnsafeSink(
                f"the table has {_RETENTION} = {duration}: it forgets which batches it holds, and a restart after a "
                "crash could write a batch twice",
                path=self.path,
                hint=f"run: ALTER TABLE delta.`{self.path}` UNSET TBLPROPERTIES ('{_RETENTION}')",
            )

    def _require_unchanged(
        self, table: KnownTable | None, query_id: str, batch: int, last: SinkPosition | None
    ) -> None:
        """Raises `SinkChanged` unless the table holds what earlier batches wrote, as far as its history shows."""
        if batch == 0:
            return
        if table is None:
            raise self._changed(batch, "there is no Delta table: it was deleted or moved")
        newest = table.transaction_version(_app_id(query_id))
        if newest is None or newest < batch - 1:
            held = "no batch of this query" if newest is None else f"no batch of this query after {newest}"
            raise self._changed(batch, f"the table holds {held}: it was deleted, replaced or rolled back")
        if last is None:
            return  # Written by a release that did not record it. From this batch on it is recorded.
        if last != _NO_TABLE and table.metadata().id != last.table:
            raise self._changed(batch, f"the table's id is {table.metadata().id}, it was {last.table}: it was replaced")
        since = table.version() - last.version
        if since < 0:
            what = f"the table is at version {table.version()}, it was at {last.version}: it was rolled back"
            raise self._changed(batch, what)
        history = table.history(since) if since else []
        for commit in history:
            if _replaces_rows(commit):
                what = f"{commit['operation']} in version {commit['version']} replaced rows of the table"
                raise self._changed(batch, what)
        if len(history) < since:
            _LOG.warning(
                "%s: the log of %d versions before version %d is deleted; changes in them cannot be seen",
                self.path,
                since - len(history),
                table.version() - len(history) + 1,
            )

    def _changed(self, batch: int, what: str) -> SinkChanged:
        return SinkChanged(
            f"{what}. The state includes batch {batch - 1}; rows of committed batches may be missing from the table",
            path=self.path,
            hint="restore the table as it was, or start over with a new root, checkpoint and table; if the table is right "
            f"as it is, start the query with DeltaSink(..., continue_at_batch={batch})",
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
            f"the table holds batch {newest} of query {query_id}, and no commit says which attempt made batch {batch}",
            path=self.path,
            hint="the table's log was cleaned or written by something else: compare table and state before going on",
        )

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", _app_id(attempt.query_id))
            .option("txnVersion", attempt.batch)
            .option("userMetadata", json.dumps({"statekeeper": vars(attempt)}))
            .save(self.path)
        )


@dataclass(frozen=True)
class AtLeastOnceSink:
    """Hands each batch to a function; after a crash a batch may come again, from another attempt.

    `function(rows, batch)` has to read `rows` to the end.
    """

    function: Callable[[DataFrame, int], None]
    supports_exactly_once: ClassVar[bool] = False

    def held(self, query_id: str, batch: int) -> str | None:
        del query_id, batch
        return None

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        self.function(rows, attempt.batch)


def _app_id(query_id: str) -> str:
    return f"statekeeper-{query_id}"


def _replaces_rows(commit: Mapping[str, Any]) -> bool:
    """Whether a commit put other rows in place of all rows. Delta's DELETE, UPDATE, MERGE and OPTIMIZE do not count:
    they are what an owner of a table does on purpose, row by row."""
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
