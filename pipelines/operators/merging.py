"""Partial results merged to one row for each key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operators.partial import Aggregates
from statekeeper.statestore.base.errors import WrongResult

_MERGED_BY = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
_OPTIONS = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
_DIGITS_OF_AN_EXACT_SUM = 76
_IS_NAN = "is NaN: "


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
