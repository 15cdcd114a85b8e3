"""The columns of a savepoint's tables, and the conversion of decoded rows to them. Pure.

    operator_id, operator, store, family, partition    the place of the row
    element                                            its position in a list; null if the value is no list
    expires_at                                         the end of its time to live; null if none before the year 10000
    key_<column>, value_<column>                       the columns of Spark's schemas

Parquet, Delta, Spark and DuckDB restrict names and types. A character of a name other than a letter, a digit or "_"
becomes "_", and a name that repeats gets a number. A column of Spark's type void becomes a boolean that is always null.
Rows that cannot be decoded are in `key_bytes` and `value_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from statekeeper.statestore.contents import Layout
from statekeeper.statestore.format import savepoint_names
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.family_rows import DecodedRows
from statekeeper.statestore.format.ragged import Counts, Ragged
from statekeeper.statestore.format.types import children
from statekeeper.statestore.format.unsafe_row import encode_rows

_MOST_DIGESTS = 2**128
_WITH_EXPIRY = "transformWithState"
"""The beginning of the names of operators whose values can expire."""
_EXPIRY = "ttlExpirationMs"
_YEAR_10000_MS = 253_402_300_800_000
"""A later end of a time to live is none: no date shows it."""
_PIECE_BYTES = 16 * 1024 * 1024
_PLACE = [
    pa.field("operator_id", pa.int32()),
    pa.field("operator", pa.string()),
    pa.field("store", pa.string()),
    pa.field("family", pa.string()),
    pa.field("partition", pa.int32()),
]
_ELEMENT = pa.field("element", pa.int32())
_EXPIRES = pa.field("expires_at", pa.timestamp("us", tz="UTC"))
_BYTES = [pa.field("key_bytes", pa.binary()), pa.field("value_bytes", pa.binary())]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table of one column family of an operator's store, or of a store without families.

    rows      the layout of the rows; None if they cannot be decoded
    problem   the reason why they cannot be decoded
    schema    of the table
    """

    operator: int
    operator_name: str
    store: str
    family: str | None
    rows: Family | None
    problem: str | None
    schema: pa.Schema

    @property
    def folder(self) -> str:
        """The folder of the table's files."""
        return savepoint_names.table(self.operator, self.store, self.family)

    @property
    def columns(self) -> dict[str, str]:
        """The columns with Spark's names: those of the key as key.<name>, those of the value as value.<name>."""
        if self.rows is None:
            return {}
        names = [f"{part}.{name}" for part, of in self._parts() for name in of.names]
        own = [field.name for field in list(self.schema)[len(_PLACE) + 2 :]]
        return dict(zip(own, names, strict=True))

    def _parts(self) -> Iterable[tuple[str, pa.Schema]]:
        assert self.rows is not None
        return ("key", self.rows.key), ("value", self.rows.value)


def tables_of(operator: int, operator_name: str, store: str, layout: Layout) -> list[Table]:
    """The tables of the families in a layout; none if the layout cannot be read."""
    return [table_of(operator, operator_name, store, family, layout) for family in layout.families]


def table_of(operator: int, operator_name: str, store: str, family: str | None, layout: Layout) -> Table:
    """The table of a family, typed if its rows can be decoded and stored."""
    rows = layout.families.get(family)
    problem = None if layout.unreadable is None else str(layout.unreadable)
    columns = list(_BYTES)
    if rows is not None:
        unstorable = next((name for part in (rows.key, rows.value) for name in _without_columns(part)), None)
        if unstorable is None:
            columns = [*_columns("key", rows.key), *_columns("value", rows.value)]
        else:
            rows = None
            problem = (
                f"Parquet cannot store column {unstorable}, a struct without fields; the rows are written as bytes"
            )
    return Table(
        operator=operator,
        operator_name=operator_name,
        store=store,
        family=family,
        rows=rows,
        problem=problem,
        schema=pa.schema([*_PLACE, _ELEMENT, _EXPIRES, *columns]),
    )


def typed_rows(table: Table, partition: int, decoded: DecodedRows) -> Iterator[pa.RecordBatch]:
    """Convert decoded rows to rows of a typed table, one for each element of a list.

    Each element repeats the columns of its key, so that a long list of a large key is yielded in pieces of bounded size.
    """
    if not decoded.are_lists:
        yield _typed(table, partition, decoded.keys, decoded.values, pa.nulls(decoded.values.num_rows, _ELEMENT.type))
        return
    key_of_row = np.repeat(np.arange(len(decoded.counts)), decoded.counts)
    firsts = np.cumsum(decoded.counts) - decoded.counts
    for begin, end in _pieces(decoded, key_of_row):
        of_key = key_of_row[begin:end]
        element = _indexes(np.arange(begin, end) - firsts[of_key]).cast(pa.int32())
        values = decoded.values.slice(begin, end - begin)
        yield _typed(table, partition, decoded.keys.take(_indexes(of_key)), values, element)


def _pieces(decoded: DecodedRows, key_of_row: Counts) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of each piece: at least one row, at most about `_PIECE_BYTES` of keys and values."""
    keys, rows = decoded.keys, decoded.values.num_rows
    of_value = decoded.values.nbytes / max(1, rows)
    if rows * (keys.nbytes + of_value) <= _PIECE_BYTES:
        yield 0, rows
        return
    of_key = np.fromiter((keys.slice(i, 1).nbytes for i in range(keys.num_rows)), np.int64, keys.num_rows)
    until = np.cumsum(of_key[key_of_row] + of_value)
    begin = 0
    while begin < rows:
        before = until[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(until, before + _PIECE_BYTES, side="right")))
        yield begin, end
        begin = end


def _typed(table: Table, partition: int, keys: pa.Table, values: pa.Table, element: pa.Array) -> pa.RecordBatch:
    columns = [_whole(column) for of in (keys, values) for column in of.columns]
    fields = list(table.schema)[len(_PLACE) + 2 :]
    stored = [_retyped(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return _batch(table, partition, [element, _expiry(table, values), *stored], values.num_rows)


def state_rows(table: Table, rows: pa.RecordBatch) -> tuple[pa.Table, pa.Table]:
    """Convert rows of a typed table back to the columns of their keys and of their values."""
    assert table.rows is not None
    columns = rows.columns[len(_PLACE) + 2 :]
    keys, values = columns[: len(table.rows.key)], columns[len(table.rows.key) :]
    return _of_schema(keys, table.rows.key, rows.num_rows), _of_schema(values, table.rows.value, rows.num_rows)


def _of_schema(columns: list[pa.Array], schema: pa.Schema, count: int) -> pa.Table:
    retyped = [_retyped(column, field.type) for column, field in zip(columns, schema, strict=True)]
    # A batch from a struct keeps its number of rows if it has no columns.
    struct = pa.Array.from_buffers(pa.struct(list(schema)), count, [None], children=retyped)
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(struct)], schema)


def raw_rows(table: Table, partition: int, keys: list[bytes], values: list[bytes]) -> pa.RecordBatch:
    """Convert pairs to rows of a table of bytes."""
    nulls = [pa.nulls(len(keys), field.type) for field in (_ELEMENT, _EXPIRES)]
    return _batch(table, partition, [*nulls, pa.array(keys, pa.binary()), pa.array(values, pa.binary())], len(keys))


def digest_of(rows: pa.RecordBatch) -> int:
    """Compute the digest of rows: the sum of the hashes of all rows modulo 2**128, so that their order does not matter.

    The hash of a row is XXH3 (128 bits) of the UnsafeRow of its columns `element`, `key_…` and `value_…`. Its place is not
    part of it.
    """
    names = [name for name in rows.schema.names if name == "element" or name.startswith(("key_", "value_"))]
    encoded = Ragged.from_arrow(encode_rows(rows.select(names)))
    data, edges = memoryview(encoded.data.data), encoded.offsets.tolist()
    hashed = xxhash.xxh3_128_intdigest
    return sum(hashed(data[edges[i] : edges[i + 1]]) for i in range(len(encoded))) % _MOST_DIGESTS


def digest_sum(digests: Iterable[int]) -> int:
    """Compute the digest of the rows of all these digests."""
    return sum(digests) % _MOST_DIGESTS


# -- names and types ---------------------------------------------------------------------------------------------------


def _columns(part: str, schema: pa.Schema) -> list[pa.Field]:
    names = _clean([f"{part}_{name}" for name in schema.names])
    return [pa.field(name, _stored_type(field.type)) for name, field in zip(names, schema, strict=True)]


def _clean(names: Iterable[str]) -> list[str]:
    """The names without special characters, unique also without regard to case."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W", "_", name) or "_"
        unique, number = plain, 1
        while unique.lower() in found:
            number += 1
            unique = f"{plain}_{number}"
        found[unique.lower()] = unique
    return list(found.values())


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.bool_()
    if pa.types.is_struct(kind):
        fields = list(kind)
        names = _clean([field.name for field in fields])
        return pa.struct([pa.field(name, _stored_type(field.type)) for name, field in zip(names, fields, strict=True)])
    if pa.types.is_map(kind):
        return pa.map_(_stored_type(kind.key_type), pa.field("value", _stored_type(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _stored_type(kind.value_type)))
    return kind


def _without_columns(fields: Iterable[pa.Field]) -> Iterable[str]:
    for field in fields:
        if pa.types.is_struct(field.type) and not field.type.num_fields:
            yield field.name
        yield from _without_columns(children(field.type))


# -- arrays ------------------------------------------------------------------------------------------------------------


def _retyped(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as another type, which differs in names and in columns of type void."""
    if array.type == kind:
        return array
    if pa.types.is_null(array.type) or pa.types.is_null(kind):
        return pa.nulls(len(array), kind)
    array = array if not array.offset else array.take(_indexes(np.arange(len(array))))
    buffers = array.buffers()
    if pa.types.is_struct(kind):
        fields = [_retyped(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), buffers[:1], children=fields)
    if pa.types.is_map(kind):
        entries = [_retyped(array.keys, kind.key_type), _retyped(array.items, kind.item_type)]
        pairs = pa.Array.from_buffers(
            pa.struct([kind.key_field, kind.item_field]), len(entries[0]), [None], children=entries
        )
        return pa.Array.from_buffers(kind, len(array), buffers[:2], children=[pairs])
    return pa.Array.from_buffers(kind, len(array), buffers[:2], children=[_retyped(array.values, kind.value_type)])


def _expiry(table: Table, values: pa.Table) -> pa.Array:
    count, schema = values.num_rows, values.schema
    # Spark's encoders append the column: it is the last one of several.
    has_expiry = len(schema) > 1 and (schema.names[-1], schema.types[-1]) == (_EXPIRY, pa.int64())
    if not has_expiry or not table.operator_name.startswith(_WITH_EXPIRY):
        return pa.nulls(count, _EXPIRES.type)
    milliseconds = _whole(values.columns[-1])
    is_date = pc.and_(pc.greater_equal(milliseconds, 0), pc.less(milliseconds, _YEAR_10000_MS))
    known = pc.if_else(is_date, milliseconds, pa.nulls(count, pa.int64()))
    return known.cast(pa.timestamp("ms", tz="UTC")).cast(_EXPIRES.type)


def _batch(table: Table, partition: int, columns: list[pa.Array], count: int) -> pa.RecordBatch:
    place = (table.operator, table.operator_name, table.store, table.family, partition)
    constant = [
        pa.nulls(count, field.type) if value is None else pa.repeat(pa.scalar(value, field.type), count)
        for field, value in zip(_PLACE, place, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*constant, *columns], schema=table.schema)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _indexes(numbers: Counts) -> pa.Array:
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers, np.int64))]
    )
