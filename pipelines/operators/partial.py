"""Aggregates as tables of partial results. Those of rows and those of the state are merged by `merging.merged`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.format.state_rows import encode_bare_keys

Aggregates = Mapping[str, tuple[str, str | None]]
"""Name of the result -> function (`count`, `sum`, `min`, `max`) and column of the rows. A count without a column, `None`,
counts all rows. As in Spark, nulls do not count, and NaN is the largest number."""

_FUNCTIONS = ("count", "sum", "min", "max")
_DIGITS_OF_A_SUM, _MOST_DIGITS = 10, 38


def result_columns(columns: pa.Schema, aggregates: Aggregates) -> pa.Schema:
    """Return the columns of the results. As in Spark, sums of integers are longs, those of floats doubles, and those of
    decimals have ten more digits.

    Raises `SchemaMismatch` for an unknown function or column.
    """
    return pa.schema([(name, _type(columns, name, *aggregate)) for name, aggregate in aggregates.items()])


def _type(columns: pa.Schema, name: str, function: str, column: str | None) -> pa.DataType:
    if function not in _FUNCTIONS or (column is None and function != "count"):
        raise SchemaMismatch(
            f"aggregate {name!r} is {(function, column)}", hint='use a pair such as ("sum", "value") or ("count", None)'
        )
    if column is not None and column not in columns.names:
        raise SchemaMismatch(f"aggregate {name!r}: there is no column {column!r}", hint=f"there are {columns.names}")
    if function == "count" or column is None:
        return pa.int64()
    kind = columns.field(column).type
    if function != "sum":
        return kind
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision + _DIGITS_OF_A_SUM, _MOST_DIGITS), kind.scale)
    return pa.float64() if pa.types.is_floating(kind) else pa.int64()


def of_rows(rows: pa.Table, keys: Sequence[str], aggregates: Aggregates, results: pa.Schema) -> pa.Table:
    """Return the partial results of each row, after its key columns."""
    columns = [rows.column(key) for key in keys]
    for field, (function, column) in zip(results, aggregates.values(), strict=True):
        if column is None:
            columns.append(pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))
        elif function == "count":
            columns.append(rows.column(column).is_valid().cast(pa.int64()))
        else:
            columns.append(rows.column(column).cast(field.type))
    return pa.table(columns, schema=pa.schema([*(rows.field(key) for key in keys), *results]))


def without(rows: pa.Table, others: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows whose key is not in `others`. Null is a key like any other; in joins of Arrow it is not."""
    mine, theirs = (encode_bare_keys(table.select(list(keys)).cast(_keys_of(rows, keys))) for table in (rows, others))
    return rows.filter(pc.invert(pc.is_in(mine, value_set=theirs)))


def _keys_of(rows: pa.Table, keys: Sequence[str]) -> pa.Schema:
    return pa.schema([rows.field(key) for key in keys])
