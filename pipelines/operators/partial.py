"""Aggregates as tables of partial results, which can be merged: those of rows, and those of the state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.base.errors import SchemaMismatch, WrongResult
from statekeeper.statestore.format.state_rows import encode_bare_keys

Aggregates = Mapping[str, tuple[str, str | None]]
"""Name of the result -> function (`count`, `sum`, `min`, `max`) and column of the rows. A count without a column, `None`,
counts all rows. As in Spark, nulls do not count, and NaN is the largest number."""

_MERGED_BY = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
_OPTIONS = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
_DIGITS_OF_A_SUM, _MOST_DIGITS, _DIGITS_OF_AN_EXACT_SUM = 10, 38, 76
_IS_NAN = "is NaN: "


def result_columns(columns: pa.Schema, aggregates: Aggregates) -> pa.Schema:
    """Return the columns of the results. As in Spark, sums of integers are longs, those of floats doubles, and those of
    decimals have ten more digits.

    Raises `SchemaMismatch` for an unknown function or column.
    """
    return pa.schema([(name, _type(columns, name, *aggregate)) for name, aggregate in aggregates.items()])


def _type(columns: pa.Schema, name: str, function: str, column: str | None) -> pa.DataType:
    if function not in _MERGED_BY or (column is None and function != "count"):
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


def _require_sum(rows: pa.Table, keys: Sequence[str], name: str) -> None:
    """Raise `WrongResult` if the sum of a key does not fit into its type. Arrow would return another number."""
    kind = rows.schema.field(name).type
    is_decimal = pa.types.is_decimal(kind)
    end = Decimal(10) ** (kind.precision - kind.scale) if is_decimal else Decimal(2**63)
    bounds = [abs(Decimal(bound)) for bound in pc.min_max(rows[name]).as_py().values() if bound is not None]
    if not bounds or max(bounds) * rows.num_rows < end:
        return
    exact = rows[name].cast(pa.decimal256(_DIGITS_OF_AN_EXACT_SUM, kind.scale if is_decimal else 0))
    by_key = rows.select(list(keys)).append_column(name, exact).group_by(list(keys), use_threads=False)
    sums = pc.min_max(by_key.aggregate([(name, "sum")])[f"{name}_sum"]).as_py()
    for found in sums.values():
        # A long has one negative number more. Arithmetic of `Decimal` would round to 28 digits; this does not.
        if found.copy_abs() >= end and (is_decimal or found != -end):
            raise WrongResult(
                f"the sum {name!r} of a key is {found}, which does not fit into {kind}",
                hint="cast its column to a wider decimal before the operator, and declare "
                f"ColumnMapping(widened=[{name!r}])",
            )


def merged(partial: Iterable[pa.Table], keys: Sequence[str], aggregates: Aggregates) -> pa.Table:
    """Merge partial results to one row for each key, in the order in which the keys appear. Raises `WrongResult`."""
    tables = list(partial)
    schema = tables[0].schema
    rows = pa.concat_tables(table.cast(schema) for table in tables)
    functions = {name: _MERGED_BY[function] for name, (function, _) in aggregates.items()}
    wanted = [(name, function, _OPTIONS) for name, function in functions.items()]
    # Arrow's largest number of several ignores NaN.
    maxima = {name for name, of in functions.items() if of == "max" and pa.types.is_floating(schema.field(name).type)}
    for name, (function, _) in aggregates.items():
        if function == "sum" and not pa.types.is_floating(schema.field(name).type):
            _require_sum(rows, keys, name)
    for name in maxima:
        rows = rows.append_column(_IS_NAN + name, pc.is_nan(rows[name]))
        wanted.append((_IS_NAN + name, "any", _OPTIONS))
    found = rows.group_by(list(keys), use_threads=False).aggregate(wanted)

    def result(name: str, function: str) -> pa.ChunkedArray:
        column = found.column(f"{name}_{function}")
        if name not in maxima:
            return column.cast(schema.field(name).type)
        return pc.if_else(found.column(f"{_IS_NAN}{name}_any"), pa.scalar(math.nan, column.type), column)

    columns = [found.column(key) for key in keys] + [result(*one) for one in functions.items()]
    return pa.table(columns, names=[*keys, *aggregates])
