"""Columns of state as values that JSON has, the same for a person and for a program.

Instants and dates are ISO 8601, instants with a Z, local timestamps without; decimals and the numbers that JSON lacks
(NaN, Infinity) are texts; binary is base64; a map is a list of {"key", "value"}, because its keys need not be texts. Where
columns of one row bear the same name, as the sums of an aggregation do, the later ones get a number behind it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from itertools import count, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statestore.format.ragged import Counts, offsets_of


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Each row as an object."""
    columns = [_plain(column.combine_chunks()) for column in table.columns]
    return _objects(table.schema.names, columns, table.num_rows)


def grouped(rows: list[dict[str, Any]], counts: Counts) -> list[list[dict[str, Any]]]:
    """Rows that lie one behind the other as lists of `counts[i]` each."""
    edges = offsets_of(counts).tolist()
    return [rows[begin:end] for begin, end in pairwise(edges)]


def unique_names(names: Iterable[str]) -> list[str]:
    """The names, each but once: `sum`, `sum_2`."""
    found: dict[str, None] = {}
    newest: dict[str, int] = {}
    for name in names:
        # From where the last column of that name ended: thousands of equal names take no time of their square.
        for number in count(newest.get(name, 1)):
            unique = name if number == 1 else f"{name}_{number}"
            if unique not in found:
                break
        found[unique] = None
        newest[name] = number
    return list(found)


def _objects(names: Iterable[str], columns: list[list[Any]], rows: int) -> list[dict[str, Any]]:
    unique = unique_names(names)
    if not columns:
        return [{} for _ in range(rows)]
    return [dict(zip(unique, row, strict=True)) for row in zip(*columns, strict=True)]


def _plain(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [_plain(array.field(i)) for i in range(kind.num_fields)]
        return _with_nulls(array, _objects([field.name for field in kind], fields, len(array)))
    if pa.types.is_map(kind):
        keys, items = _plain(array.keys), _plain(array.items)
        entries = [{"key": key, "value": item} for key, item in zip(keys, items, strict=True)]
        return _with_nulls(array, _slices(array, entries))
    if pa.types.is_list(kind):
        return _with_nulls(array, _slices(array, _plain(array.values)))
    if pa.types.is_floating(kind):
        return [_float(value) for value in array.to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]
    if pa.types.is_timestamp(kind):
        return list(pc.replace_substring(array.cast(pa.string()), " ", "T").to_pylist())
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return list(array.cast(pa.string()).to_pylist())
    return list(array.to_pylist())


def _slices(array: pa.Array, elements: list[Any]) -> list[Any]:
    edges = array.offsets.to_pylist()
    return [elements[begin:end] for begin, end in pairwise(edges)]


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def _float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
