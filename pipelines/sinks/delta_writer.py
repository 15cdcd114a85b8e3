"""Choice of the program that writes a batch into a Delta table: the operator's tasks, or Spark's own writer.

Tasks are faster, because a batch is then one Spark job. Spark's writer supports every table. The choice is made before each
batch, because a table can change while the query runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from statekeeper.pipelines.sinks.data_files import TableFiles
from statekeeper.pipelines.sinks.delta_files import DeltaFiles
from statekeeper.pipelines.sinks.delta_log import DeltaLog, KnownTable, TableMetadata
from statekeeper.statestore.base.errors import (
    SchemaMismatch,
    StatekeeperError,
    UnsupportedEnvironment,
    UnsupportedTable,
)

_EXTENSIONS = "spark.sql.extensions"
_DELTA_CONF = {
    _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_DEFAULT_PROPERTIES = "spark.databricks.delta.properties.defaults."
_LOG_STORE = "spark.delta.logStore."
_COMMON_LOG_STORES = ("S3SingleDriverLogStore", "HDFSLogStore", "AzureLogStore", "LocalLogStore", "GCSLogStore")
"""Log stores that Delta uses without a setting. They do not coordinate the commits of several processes."""
_S3_SCHEMES = ("s3", "s3a", "s3n")
_PACKS_FILES = {
    "spark.databricks.delta.autoCompact.enabled": "auto compaction",
    "spark.databricks.delta.optimizeWrite.enabled": "optimized writes",
}
_PACKS_FILES_OF_TABLE = {
    "delta.autoOptimize": "auto compaction",
    "delta.autoOptimize.autoCompact": "auto compaction",
    "delta.autoOptimize.optimizeWrite": "optimized writes",
}


class Writer(StrEnum):
    """The program that writes the rows of a batch into a table."""

    AUTO = "auto"
    """The tasks, if they support the table and the settings of the session, otherwise Spark."""
    SPARK = "spark"
    """Spark's own writer, in a second job of the batch. It supports every table."""
    TASKS = "tasks"
    """The operator's tasks, so that a batch is one Spark job. The driver commits the files."""


@dataclass(frozen=True)
class WriterUsed:
    """The writer of a batch, `Writer.SPARK` or `Writer.TASKS`, and why it was chosen."""

    writer: Writer
    reason: str

    @property
    def is_fallback(self) -> bool:
        """Return whether Spark writes although the sink does not ask for it."""
        return self.writer is Writer.SPARK and self.reason not in (_ASKED, _MERGES)


_ASKED = "the sink names it"
_MERGES = "merge_on replaces rows, and tasks only add files"
_SINGLE_DRIVER = (
    "on S3, Delta coordinates only writers in one Spark driver. If no Spark job writes this table beside the query, also "
    'no OPTIMIZE, name writer="tasks"'
)


class WriterChoice:
    """Chooses the writer of one table. `used`: of the newest batch; None before the first one."""

    def __init__(self, path: str, asked: Writer, *, merges: bool, log: DeltaLog, files: DeltaFiles) -> None:
        self.used: WriterUsed | None = None
        self._path = path
        self._asked = asked
        self._merges = merges
        self._log = log
        self._files = files
        self._conf: Mapping[str, str] = {}
        self._without_delta: UnsupportedEnvironment | None = None
        self._refused: tuple[TableMetadata | None, pa.Schema, str] | None = None

    def remember(self, conf: Mapping[str, str]) -> None:
        """Take over the settings of the session."""
        self._conf = conf
        self._without_delta = _problem_of(self._conf)

    def plan(self, output: pa.Schema) -> TableFiles | None:
        """Return where tasks write the output; None if Spark writes it.

        Raises `UnsupportedTable` and `SchemaMismatch` if the sink asks for the tasks and they cannot write the table,
        `UnsupportedEnvironment` if Spark has to write and the session is without Delta.
        """
        if self._asked is Writer.TASKS:
            self.used = WriterUsed(Writer.TASKS, _ASKED)
            return self._files.plan(output)
        if self._asked is Writer.SPARK:
            self._use_spark(_ASKED)
            return None
        reason = self._reason_of_session()
        table = self._log.look() if reason is None else None
        if reason is None:
            reason = self._reason_of_table(table)
        if reason is None and self._refused is not None:
            # Opening a table reads all of its state: not again until its metadata changes.
            metadata, columns, refusal = self._refused
            if metadata == (None if table is None else table.metadata()) and columns.equals(output):
                reason = refusal
        if reason is None:
            try:
                plan = self._files.plan(output)
            except (UnsupportedTable, SchemaMismatch) as error:
                reason = error.what
                self._refused = (None if table is None else table.metadata(), output, reason)
            else:
                self.used = WriterUsed(Writer.TASKS, "they support the table")
                return plan
        self._use_spark(reason)
        return None

    def _use_spark(self, reason: str) -> None:
        if self._without_delta is not None:
            raise _because(self._without_delta, reason)
        self.used = WriterUsed(Writer.SPARK, reason)

    def _reason_of_session(self) -> str | None:
        if self._merges:
            return _MERGES
        for key, what in _PACKS_FILES.items():
            if _is_on(self._conf.get(key)):
                return f"the session has {key}: only Spark's writer does {what}"
        store = self._log_store()
        if store is not None:
            return f"the session commits with {store}, which tasks do not use"
        return _SINGLE_DRIVER if self._scheme in _S3_SCHEMES else None

    def _reason_of_table(self, table: KnownTable | None) -> str | None:
        if table is None:
            defaults = sorted(key for key in self._conf if key.startswith(_DEFAULT_PROPERTIES))
            return f"the session has {defaults[0]}: only Spark's writer gives it to a new table" if defaults else None
        held = table.metadata().configuration
        for key, what in _PACKS_FILES_OF_TABLE.items():
            if _is_on(held.get(key)):
                return f"the table has {key}: only Spark's writer does {what}"
        return None

    @property
    def _scheme(self) -> str:
        return self._path.partition("://")[0].lower() if "://" in self._path else "file"

    def _log_store(self) -> str | None:
        """Return the log store of the session for this table, if it is not one that Delta uses without a setting."""
        schemes = _S3_SCHEMES if self._scheme in _S3_SCHEMES else (self._scheme,)
        keys = [f"{_LOG_STORE}{one}.impl" for one in schemes] + [f"{_LOG_STORE}class"]
        found = next((self._conf[key] for key in keys if self._conf.get(key)), None)
        return None if found is None or found.endswith(_COMMON_LOG_STORES) else found


def _is_on(value: str | None) -> bool:
    # Auto compaction also has the values "auto" and "legacy".
    return value is not None and value.strip().lower() not in ("", "false")


def _problem_of(conf: Mapping[str, str]) -> UnsupportedEnvironment | None:
    """Return the error of a session in which Spark cannot write Delta tables."""
    for key, wanted in _DELTA_CONF.items():
        # Other catalogs may extend Delta's catalog; the extension is one item of a list.
        held = conf.get(key, "")
        if not held or (key == _EXTENSIONS and wanted not in held):
            return UnsupportedEnvironment(
                f"the session cannot write Delta tables: {key} is {held or 'not set'}",
                hint=f"set it to {wanted}, or make the session with statekeeper.pipelines.spark_session",
            )
    return None


def _because(error: StatekeeperError, reason: str) -> UnsupportedEnvironment:
    if reason == _ASKED:
        return UnsupportedEnvironment(error.what, hint=error.hint)
    return UnsupportedEnvironment(f"{error.what}; Spark's writer is needed because {reason}", hint=error.hint)
