"""Rows that a test gives to an operator, in the types and the order in which Spark's tasks get the rows of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pipelines.partitioning import GROUP_COLUMN
from pipelines.results import is_same, null_in
from statestore.errors import SchemaMismatch, UnsupportedType
from statestore.format.lossless import lossless
from statestore.format.murmur3 import partitions_of, row_hashes

GivenRows: TypeAlias = Any
"""A `pyarrow.Table`, a `pandas.DataFrame` or a list of dicts. A key that a dict lacks is null."""

_DECLARE = "declare the columns: OperatorHarness(operator, columns=pyarrow.schema(...))"
_REFUSALS = (pa.ArrowException, ValueError, TypeError, OverflowError)
_NULL = (0,)


def spark_schema(columns: pa.Schema) -> StructType:
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


def columns_in(given: GivenRows) -> pa.Schema:
    """Return the columns that the rows have. Raises `SchemaMismatch`."""
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


def with_columns(given: GivenRows, columns: pa.Schema) -> pa.Table:
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


def routed(rows: pa.Table, keys: pa.Schema, order_by: Sequence[str], key_groups: int) -> pa.Table:
    """Append the key group, and sort the rows by key group, key and order columns, as `operator_job` does in Spark."""
    groups = partitions_of(row_hashes(rows.select(keys.names).cast(keys)), key_groups)
    placed = rows.append_column(pa.field(GROUP_COLUMN, pa.int32()), pa.array(groups, pa.int32()))
    return sorted_by(placed, [GROUP_COLUMN, *keys.names, *order_by])


def sorted_by(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Sort rows by these columns as Spark sorts them. The sort is stable."""
    ranks = [_ranks(rows[name]) for name in columns]
    order = sorted(range(rows.num_rows), key=lambda row: [of[row] for of in ranks])
    return rows.take(pa.array(order, pa.int64()))


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
