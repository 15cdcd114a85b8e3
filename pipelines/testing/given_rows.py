"""Rows that a test gives to an operator, in the types and the order in which Spark's tasks get the rows of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from statekeeper.pipelines.operator.declaration import INPUT_COLUMN, StatefulOperator
from statekeeper.pipelines.startup import preflight
from statekeeper.pipelines.startup.inputs import columns_of_all
from statekeeper.pipelines.task.partitioning import GROUP_COLUMN
from statekeeper.pipelines.task.results import is_same, null_in
from statekeeper.statestore.base.errors import SchemaMismatch, UnsupportedType
from statekeeper.statestore.format.lossless import lossless
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes

GivenRows: TypeAlias = Any
"""A `pyarrow.Table`, a `pandas.DataFrame` or a list of dicts; for several inputs a mapping: name -> rows."""

_DECLARE = "declare the columns: OperatorHarness(operator, columns=pyarrow.schema(...))"
_REFUSALS = (pa.ArrowException, ValueError, TypeError, OverflowError)
_NULL = (0,)
_KIND, _STORE = "__statekeeper_kind", "__statekeeper_store"


class GivenStream:
    """The stream of a test. `columns`: those of its rows, for tasks. `inputs`: the names of several inputs.

    Raises `SchemaMismatch` and `UnsupportedType` as `start`.
    """

    def __init__(self, operator: StatefulOperator, given: pa.Schema | Mapping[str, pa.Schema]) -> None:
        self._operator = operator
        self.inputs: tuple[str, ...] = ()
        self._inputs: Mapping[str, pa.Schema] | None = None
        if isinstance(given, Mapping):
            in_spark = {name: _spark_schema(columns) for name, columns in given.items()}
            self.inputs = tuple(sorted(given))
            self._inputs = {name: to_arrow_schema(columns, timezone="UTC") for name, columns in in_spark.items()}
            self.columns = preflight.row_columns(operator, columns_of_all(operator, in_spark))
        else:
            self.columns = preflight.row_columns(operator, _spark_schema(given))

    def routed(self, given: GivenRows, key_groups: int, initial: Mapping[str, GivenRows] | None = None) -> pa.Table:
        """Convert rows without loss, append their key group, and sort them by key group, key and order columns, as
        `operator_job` does in Spark. Raises `SchemaMismatch`.

        initial   name of the store -> initial rows, which are added in the layout of `statekeeper.pipelines.batch.initial`
        """
        rows = _with_columns(given, self.columns) if self._inputs is None else self._rows_of_all(given, self._inputs)
        placed = self._with_group(rows, key_groups)
        order = [*self._operator.keys, *self._operator.order_by]
        if initial is None:
            return sorted_by(placed, [GROUP_COLUMN, *order])
        input_rows = placed.append_column(_KIND, pa.array([len(initial)] * placed.num_rows, pa.int32()))
        tables = [input_rows.append_column(_STORE, pa.nulls(placed.num_rows, pa.int32()))]
        for number, (name, of_store) in enumerate(initial.items()):
            values = self._operator.stores[name]
            state = _with_columns(of_store, pa.schema([*self._operator.key_columns(self.columns), *values]))
            table = self._with_group(state.select(list(self._operator.keys)), key_groups)
            for column in (_KIND, _STORE):
                table = table.append_column(column, pa.array([number] * table.num_rows, pa.int32()))
            for field in values:
                table = table.append_column(f"{_STORE}.{name}.{field.name}", state[field.name])
            tables.append(table)
        both = pa.concat_tables([_nullable(table) for table in tables], promote_options="default")
        return sorted_by(both, [GROUP_COLUMN, _KIND, *order]).drop_columns([_KIND])

    def _with_group(self, rows: pa.Table, key_groups: int) -> pa.Table:
        keys = self._operator.key_columns(self.columns)
        groups = partitions_of(row_hashes(rows.select(keys.names).cast(keys)), key_groups)
        return rows.append_column(pa.field(GROUP_COLUMN, pa.int32()), pa.array(groups, pa.int32()))

    def _rows_of_all(self, given: GivenRows, inputs: Mapping[str, pa.Schema]) -> pa.Table:
        if _is_empty(given):
            return self.columns.empty_table()
        if not isinstance(given, Mapping) or not given.keys() <= inputs.keys():
            raise SchemaMismatch(
                "the rows are not a dict of the inputs",
                hint=f"give a dict from input to rows; inputs: {sorted(inputs)}",
            )
        tables = [self.columns.empty_table()]
        for name, of_input in sorted(given.items()):
            rows = _with_columns(of_input, inputs[name])
            columns = {column.name: pa.nulls(rows.num_rows, column.type) for column in self.columns}
            columns |= dict(zip(rows.column_names, rows.columns, strict=True))
            columns[INPUT_COLUMN] = pa.array([name] * rows.num_rows, pa.string())
            tables.append(pa.table(columns).cast(self.columns))
        return pa.concat_tables(tables)


def columns_in(given: GivenRows) -> pa.Schema | Mapping[str, pa.Schema]:
    """Return the columns of the rows; for several inputs a mapping: name -> columns. Raises `SchemaMismatch`."""
    if isinstance(given, Mapping):
        return {name: columns_in(rows) for name, rows in given.items()}
    if not _are_dicts(given):
        return _table(given).schema
    if not given:
        raise SchemaMismatch("the first batch has no rows: the columns of the stream are unknown", hint=_DECLARE)
    fields = []
    for name in _names(given):
        try:
            fields.append(pa.field(name, pa.array([row.get(name) for row in given]).type))
        except _REFUSALS as error:
            raise SchemaMismatch(
                f"column {name} has values of different types: {_line(error)}", hint=_DECLARE
            ) from error
    return pa.schema(fields)


def sorted_by(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Sort rows by these columns as Spark sorts them. The sort is stable."""
    ranks = [_ranks(rows[name]) for name in columns]
    order = sorted(range(rows.num_rows), key=lambda row: [of[row] for of in ranks])
    return rows.take(pa.array(order, pa.int64()))


def _spark_schema(columns: pa.Schema) -> StructType:
    """Return the columns as those of a stream. Raises `UnsupportedType` for a type that Spark does not have."""
    found = StructType()
    for column in columns:
        if pa.types.is_null(column.type):
            raise UnsupportedType(f"column {column.name} has only nulls: its type is unknown", hint=_DECLARE)
        try:
            [in_spark] = from_arrow_schema(pa.schema([column]), prefer_timestamp_ntz=True)
        except (PySparkException, ValueError) as error:
            raise UnsupportedType(
                f"column {column.name} has the type {column.type}, which Spark does not have",
                hint="cast it to a type that Spark has",
            ) from error
        found.add(in_spark)
    return found


def _with_columns(given: GivenRows, columns: pa.Schema) -> pa.Table:
    """Convert rows to a table with these columns, without loss. Raises `SchemaMismatch`."""
    are_dicts = _are_dicts(given)
    table = None if are_dicts else _table(given)
    names = _names(given) if table is None else table.column_names
    missing = [] if are_dicts else [name for name in columns.names if name not in names]
    unknown = [name for name in names if name not in columns.names]
    for wrong, problem in ((missing, "lack the columns"), (unknown, "have other columns")):
        if wrong:
            raise SchemaMismatch(f"the rows {problem} {wrong}", hint=f"the stream has the columns: {columns.names}")
    converted = []
    for field in columns:
        if table is None:
            column = _from_objects([row.get(field.name) for row in given], field)
        else:
            column = _cast(table[field.name], field)
        place = null_in(column, field, field.name)
        if place is not None:
            raise SchemaMismatch(
                f"column {place} of the rows contains nulls, but is declared without nulls", hint="declare it nullable"
            )
        converted.append(column)
    return pa.Table.from_arrays(converted, schema=columns)


def _nullable(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([column.with_nullable(True) for column in rows.schema]))


def _is_empty(given: GivenRows) -> bool:
    return isinstance(given, Sequence) and not given


def _are_dicts(given: GivenRows) -> bool:
    return isinstance(given, Sequence) and all(isinstance(row, Mapping) for row in given)


def _names(given: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in given for name in row))


def _table(given: GivenRows) -> pa.Table:
    if isinstance(given, pa.Table):
        return given
    import pandas as pd

    if not isinstance(given, pd.DataFrame):
        raise SchemaMismatch(
            f"the rows have the type {type(given).__name__}",
            hint="give a pyarrow.Table, a pandas.DataFrame or a list of dicts",
        )
    try:
        return pa.Table.from_pandas(given, preserve_index=False).replace_schema_metadata()
    except _REFUSALS as error:
        raise SchemaMismatch(
            f"the frame cannot be converted to Arrow: {_line(error)}", hint="give a pyarrow.Table"
        ) from error


def _cast(given: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return lossless(given, field.type)
    except _REFUSALS as error:
        raise SchemaMismatch(
            f"column {field.name} of the rows is {given.type}, but that of the stream is {field.type}: {_line(error)}",
            hint=f"give values of that type, or {_DECLARE}",
        ) from error


def _from_objects(given: list[Any], field: pa.Field) -> pa.ChunkedArray:
    problem = ""
    try:
        column = pa.array(given, field.type)
    except _REFUSALS as error:
        problem = _line(error)
    else:
        changed = [
            one for one, kept in zip(given, column.to_pylist(), strict=True) if not is_same(one, kept, field.type)
        ]
        if not changed:
            return pa.chunked_array([column])
        problem = f"{changed[0]!r} would change"
    raise SchemaMismatch(
        f"column {field.name} of the rows cannot be {field.type}, the type in the stream: {problem}",
        hint=f"give values of that type, or {_DECLARE}",
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _ranks(column: pa.ChunkedArray) -> list[Any]:
    """Return objects that Python sorts as Spark sorts the values: nulls first, NaN last, -0.0 equal to 0.0."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        # Python supports no dates after the year 9999.
        column = column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    rank = _rank_of(column.type)
    return [_NULL if value is None else (1, rank(value)) for value in column.to_pylist()]


def _rank_of(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_floating(kind):
        return lambda value: (value != value, 0.0 if value != value else value)
    if pa.types.is_struct(kind):
        ranks = {field.name: _rank_of(field.type) for field in kind}
        return lambda value: [_NULL if value[name] is None else (1, rank(value[name])) for name, rank in ranks.items()]
    if pa.types.is_list(kind):
        element = _rank_of(kind.value_type)
        return lambda value: [_NULL if one is None else (1, element(one)) for one in value]
    # Python compares texts by code point, which is the order of their UTF-8 bytes in Spark.
    return lambda value: value
