"""Aggregates as tables of partial results, which can be merged: those of rows, and those of the state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.format.state_rows import encode_bare_keys

Aggregates = Mapping[str, tuple[str, str | None]]
"""Name of the result -> function (`count`, `sum`, `min`, `max`) and column of the rows. A count without a column, `None`,
counts all rows. Nulls do not count, as in Spark."""

_MERGED_BY = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
_OPTIONS = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)


def result_columns(columns: pa.Schema, aggregates: Aggregates) -> pa.Schema:
    """Return the columns of the results: sums of integers are longs and sums of floats doubles, as in Spark.

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
    if function == "sum" and not pa.types.is_decimal(kind):
        return pa.float64() if pa.types.is_floating(kind) else pa.int64()
    return kind


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


def merged(partial: Iterable[pa.Table], keys: Sequence[str], aggregates: Aggregates) -> pa.Table:
    """Merge partial results to one row for each key, in the order in which the keys appear."""
    tables = list(partial)
    schema = tables[0].schema
    by_key = pa.concat_tables(table.cast(schema) for table in tables).group_by(list(keys), use_threads=False)
    functions = {name: _MERGED_BY[function] for name, (function, _) in aggregates.items()}
    found = by_key.aggregate([(name, function, _OPTIONS) for name, function in functions.items()])
    columns = [found.column(key) for key in keys]
    columns += [found.column(f"{name}_{function}") for name, function in functions.items()]
    return pa.table(columns, names=[*keys, *aggregates])
