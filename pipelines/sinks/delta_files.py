"""Commit of data files to a Delta table, without Spark: `deltalake` writes the log, tasks wrote the files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statekeeper.pipelines.sinks.data_files import DataFile, TableFiles, table_files
from statekeeper.pipelines.sinks.delta_log import DeltaLog
from statekeeper.pipelines.sinks.delta_rows import Commit
from statekeeper.statestore.base.errors import SchemaMismatch, StorageError, UnsupportedTable

_FEATURES = {"appendOnly", "invariants", "timestampNtz"}
_ATTEMPTS = 3
_WRITER_VERSIONS = (1, 2, 3, 4)
"""Versions whose features show in properties and columns. A table with a constraint gets version 3, and keeps it."""
_TABLE_FEATURES_VERSION = 7
_PARTITION_TYPES = {"string", "byte", "short", "integer", "long", "date", "boolean"}
_FORBIDDEN = {
    "delta.constraints.": "CHECK constraints",
    "delta.columnMapping.mode": "column mapping",
    "delta.enableChangeDataFeed": "a change data feed",
    "delta.enableRowTracking": "row tracking",
    "delta.enableInCommitTimestamps": "in-commit timestamps",
    "delta.enableIcebergCompat": "Iceberg compatibility",
    "delta.universalFormat.enabledFormats": "metadata in the formats of Iceberg or Hudi",
    "delta.compatibility.symlinkFormatManifest.enabled": "symlink manifests",
}
_FORBIDDEN_OF_COLUMNS = {
    "delta.generationExpression": "a generated column",
    "delta.identity.": "an identity column",
    "delta.invariants": "an invariant",
    "CURRENT_DEFAULT": "a default value",
    "__CHAR_VARCHAR_TYPE_STRING": "a limited length",
}
_HINT = 'use DeltaSink(..., writer="spark")'


class DeltaFiles:
    """A Delta table to which a driver adds the files of its tasks. `partition_by`: partition columns of a new table; None
    accepts those of an existing table. `add_columns`: whether a batch may add columns to an existing table."""

    def __init__(
        self,
        path: str,
        options: Mapping[str, str],
        *,
        log: DeltaLog,
        partition_by: Sequence[str] | None,
        add_columns: bool = False,
    ) -> None:
        self._path = path
        self._log = log
        self._options = dict(options)
        self._partition_by = partition_by
        self._add_columns = add_columns
        self._opened: Any = None

    def plan(self, output: pa.Schema) -> TableFiles:
        """Return where and how tasks write the output. Raises `UnsupportedTable` for a table with a feature that only
        Spark's writer supports, `SchemaMismatch` for columns that differ from the table's."""
        table = self._table()
        columns = _delta_columns(output)
        partition_by = list(self._partition_by or ())
        if table is not None:
            self._require_supported(table)
            columns = self._columns_of(table, output, columns)
            partition_by = list(table.metadata().partition_columns)
            require_partition_columns(self._path, partition_by, self._partition_by)
        self._require_partition_columns(columns, partition_by)
        return TableFiles(path=self._path, columns=columns, partition_by=tuple(partition_by), options=self._options)

    def commit(self, plan: TableFiles, files: Sequence[DataFile], commit: Commit) -> None:
        """Add files in one commit. Writes nothing if the table holds the batch. A concurrent commit of the same application
        fails.

        Raises `StorageError`, `SchemaMismatch` if the table was changed after the plan.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction

        properties = CommitProperties(
            custom_metadata={"userMetadata": commit.note},
            app_transactions=[Transaction(commit.application, commit.batch)],
        )
        actions = [
            AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values=file.partition_values,
                modification_time=file.modified_at_milliseconds,
                data_change=True,
                stats=file.statistics,
            )
            for file in files
        ]
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                table = self._table() or self._created(plan)
                held = table.transaction_version(commit.application)
                if held is not None and held >= commit.batch:
                    return
                self._require_as_planned(table, plan)
                if _new_columns(table, plan.columns):
                    _add_with_new_columns(table, plan, files, properties)
                    return
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    partition_by=list(plan.partition_by),
                    commit_properties=properties,
                )
                return
            except DeltaError as error:
                # The table then tells whether the other commit was of this batch.
                if attempt < _ATTEMPTS:
                    continue
                raise StorageError(
                    f"the commit of batch {commit.batch} failed: {str(error).splitlines()[0]}",
                    path=self._path,
                    hint="restart the query: it runs the batch again",
                ) from error

    def _created(self, plan: TableFiles) -> Any:
        """Make the table without rows.

        Race: when two drivers make a table at once, `deltalake` lets both commits succeed. If the first commit had rows,
        they would be in the table twice. An append has the transaction, and the second one fails.
        """
        from deltalake import DeltaTable

        DeltaTable.create(
            self._path,
            _delta_schema(plan.columns),
            mode="ignore",
            partition_by=list(plan.partition_by),
            storage_options=self._options or None,
        )
        return self._table()

    def _table(self) -> Any:
        """Return the table in its newest version; None if there is none."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        known = self._log.look()
        if known is None:
            self._opened = None
            return None
        # A table that replaced this one has another id; an update in place would read the log of both.
        if self._opened is not None and str(self._opened.metadata().id) == known.metadata().id:
            try:
                self._opened.update_incremental()
                return self._opened
            except DeltaError:  # rolled back
                pass
        self._opened = DeltaTable(self._path, storage_options=self._options or None)
        return self._opened

    def _require_as_planned(self, table: Any, plan: TableFiles) -> None:
        self._require_supported(table)
        columns = self._columns_of(table, plan.columns, plan.columns)
        if columns != plan.columns or tuple(table.metadata().partition_columns) != tuple(plan.partition_by):
            raise SchemaMismatch(
                "the columns of the table changed while the batch was running; the batch was not committed",
                path=self._path,
                hint="restart the query: it runs the batch again",
            )

    def _require_supported(self, table: Any) -> None:
        protocol, metadata = table.protocol(), table.metadata()
        version = protocol.min_writer_version
        features = set(protocol.writer_features or ()) | set(protocol.reader_features or ())
        found = sorted(features - _FEATURES)
        if version not in _WRITER_VERSIONS and version != _TABLE_FEATURES_VERSION:
            found.append(f"writer version {version}")
        for prefix, name in _FORBIDDEN.items():
            values = [value for key, value in metadata.configuration.items() if key.startswith(prefix)]
            if any(str(value).lower() not in ("false", "none") for value in values):
                found.append(name)
        for column in json.loads(table.schema().to_json())["fields"]:
            for prefix, name in _FORBIDDEN_OF_COLUMNS.items():
                if any(key.startswith(prefix) for key in column["metadata"]):
                    found.append(f"{name} (column {column['name']})")
        if found:
            raise UnsupportedTable(
                f"tasks cannot write the files of a table with {', '.join(found)}", path=self._path, hint=_HINT
            )

    def _columns_of(self, table: Any, output: pa.Schema, columns: pa.Schema) -> pa.Schema:
        """Return `columns` under the table's names. Raises `SchemaMismatch` unless the table has these columns and types,
        and accepts null in all other columns."""
        of_table = {column["name"].lower(): column for column in json.loads(table.schema().to_json())["fields"]}
        of_output = json.loads(_delta_schema(columns).to_json())["fields"]
        problems, named = [], []
        for given, column, arrow in zip(output, of_output, columns, strict=True):
            theirs = of_table.pop(column["name"].lower(), None)
            if theirs is None and self._add_columns:
                require_nullable(self._path, [given])
                named.append(arrow)
                continue
            if theirs is None:
                problems.append(f"the table has no column {column['name']}")
                continue
            if theirs["type"] != column["type"]:
                problems.append(
                    f"column {column['name']} is {_text(column['type'])}, in the table {_text(theirs['type'])}"
                )
            if not theirs["nullable"] and given.nullable:
                problems.append(f"column {column['name']} can be null, in the table it cannot")
            named.append(arrow.with_name(theirs["name"]).with_nullable(given.nullable))
        problems += [
            f"the output has no column {name}, which cannot be null in the table"
            for name, column in of_table.items()
            if not column["nullable"]
        ]
        if problems:
            raise SchemaMismatch("; ".join(problems), path=self._path, hint=f"change the output, or {_HINT}")
        return pa.schema(named)

    def _require_partition_columns(self, columns: pa.Schema, partition_by: Sequence[str]) -> None:
        kinds = {column["name"]: column["type"] for column in json.loads(_delta_schema(columns).to_json())["fields"]}
        for name in partition_by:
            if name not in kinds:
                raise SchemaMismatch(f"the output has no partition column {name}", path=self._path)
            if kinds[name] not in _PARTITION_TYPES:
                raise UnsupportedTable(
                    f"tasks cannot write partition column {name}: it is {_text(kinds[name])}",
                    path=self._path,
                    hint=f"partition by strings, integers, dates or booleans, or {_HINT}",
                )
        if len(partition_by) == len(columns):
            raise SchemaMismatch(
                "all columns are partition columns, so the files have no columns",
                path=self._path,
                hint="remove one column from partition_by",
            )


def require_partition_columns(path: str, held: Sequence[str], wanted: Sequence[str] | None) -> None:
    """Raise `SchemaMismatch` unless a table has the partition columns that its sink names; None names none."""
    if wanted is not None and list(held) != list(wanted):
        raise SchemaMismatch(
            f"the table is partitioned by {list(held)}, not by {list(wanted)}",
            path=path,
            hint=f"use partition_by={list(held)}",
        )


def require_nullable(path: str, added: Sequence[pa.Field]) -> None:
    """Raise `SchemaMismatch` for columns that cannot be added to a table, because its rows have no value for them."""
    wrong = [column.name for column in added if not column.nullable]
    if wrong:
        raise SchemaMismatch(
            f"the table has no columns {wrong}, and its rows have no value for columns that cannot be null",
            path=path,
            hint="declare the new columns nullable in the output",
        )


def _new_columns(table: Any, columns: pa.Schema) -> bool:
    there = {column.name for column in table.schema().fields}
    return any(name not in there for name in columns.names)


def _add_with_new_columns(table: Any, plan: TableFiles, files: Sequence[DataFile], properties: Any) -> None:
    """Add the rows of files together with new columns of the table.

    `deltalake` commits files of others only with the columns that a table has. So the first batch with a new column is
    written again, by the driver. The files of the tasks stay out of the table, and VACUUM deletes them.
    """
    from deltalake import write_deltalake

    rows = _rows_of(plan, files)
    # `deltalake` asks for rows in a thread of its runtime, where it cannot read files for others.
    with ThreadPoolExecutor(1) as reader:
        batches = iter(lambda: reader.submit(next, rows, None).result(), None)
        write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(plan.columns, batches),
            mode="append",
            schema_mode="merge",
            partition_by=list(plan.partition_by) or None,
            commit_properties=properties,
        )


def _rows_of(plan: TableFiles, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    """Read the rows of data files, with the partition columns that the files do not contain."""
    system = table_files(plan.path, plan.options)
    for file in files:
        for batch in pq.ParquetFile(system.open_input_file(file.path)).iter_batches():
            columns = [
                pa.array([file.partition_values[column.name]] * batch.num_rows, pa.string()).cast(column.type)
                if column.name in file.partition_values
                else batch.column(column.name)
                for column in plan.columns
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=plan.columns)


def _delta_columns(output: pa.Schema) -> pa.Schema:
    """Return the output's columns with Delta's Arrow types: nullable at each depth, as Spark's writer makes a table."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    nullable = from_arrow_schema(output)
    if "variant" in nullable.simpleString().lower():
        raise UnsupportedTable("tasks cannot write columns of the type VARIANT", hint=_HINT)
    named = pa.schema(to_arrow_schema(_all_nullable(nullable), timezone="UTC"))
    return pa.schema([column.with_nullable(given.nullable) for column, given in zip(named, output, strict=True)])


def _all_nullable(kind: Any) -> Any:
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _all_nullable(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_all_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_all_nullable(kind.keyType), _all_nullable(kind.valueType))
    return kind


def _delta_schema(columns: pa.Schema) -> Any:
    from deltalake import Schema

    try:
        return Schema.from_arrow(pa.schema([column.with_nullable(True) for column in columns]))
    except Exception as error:
        raise UnsupportedTable(f"tasks cannot write these columns: {str(error).splitlines()[0]}", hint=_HINT) from error


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)
