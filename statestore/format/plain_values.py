"""Columns of state as JSON values, the same for people and for programs.

Instants and dates are ISO 8601: instants with a Z, local timestamps without. Decimals and numbers without a JSON form
(NaN, Infinity) are texts. Binary is base64. A map is a list of {"key", "value"}, because its keys may not be texts. If
columns of one row have the same name, as the sums of an aggregation do, a number is appended to the later names.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from itertools import count, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.format.ragged import Counts, offsets_of


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Convert each row to an object."""
    columns = [_plain(column.combine_chunks()) for column in table.columns]
    return _objects(table.schema.names, columns, table.num_rows)


def grouped(rows: list[dict[str, Any]], counts: Counts) -> list[list[dict[str, Any]]]:
    """Split consecutive rows into lists of `counts[i]` rows each."""
    edges = offsets_of(counts).tolist()
    return [rows[begin:end] for begin, end in pairwise(edges)]


def unique_names(names: Iterable[str]) -> list[str]:
    """Make the names unique: `sum`, `sum_2`."""
    found: dict[str, None] = {}
    newest: dict[str, int] = {}
    for name in names:
        # Continue after the last number used for this name, so that thousands of equal names do not take quadratic time.
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
