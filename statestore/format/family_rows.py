"""Keys and values of Spark's operators, decoded to columns. `families` gives the layout of a store.

    key      (int16 LE family id), then by encoder:
    WHOLE        version · row
    PREFIX       int32 LE size · version · row of the front columns · version · row of the others
    RANGE        int32 LE size · version · row of the front columns, each as bytes that sort · version · row of the others
    TIME_FIRST   8 bytes · version · row
    TIME_LAST    version · row · 8 bytes
    value    version · row, or for a list, once per element: int32 LE size · version · row
    with row checksums, for each put or append: int32 LE CRC32C(key, the value) · int32 LE size · the value

Spark's default provider stores bare rows: no version, one row for all columns of a key, no lists.

With the encoding Avro, a row is the int16 LE id of its schema and a record (`avro_rows`), and the row of front columns has
no id. A number of RANGE is two columns there: its sign, and the bytes that sort.

The version is a byte, 0. Bytes that sort: 0 negative, 1 not negative, 2 null, then the number, big-endian; negative
floats with flipped bits. The 8 bytes of a timestamp: big-endian, with the sign bit flipped. If all columns are front
columns, RANGE has no second row. If the merge operator uses a delimiter, it separates the elements.

Source: RocksDBStateEncoder and KeyValueChecksumEncoder of Spark 4.2, and the bytes that it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.avro_rows import decode_records
from statekeeper.statestore.format.families import Family, KeyEncoder, RowHead
from statekeeper.statestore.format.ragged import Bytes, Counts, Ragged, gather, offsets_of
from statekeeper.statestore.format.row_checksum import checksum
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.format.types import machine_type
from statekeeper.statestore.format.unsafe_row import decode_rows

FAMILY_BYTES = 2
_SIZE_BYTES = 4
_VERSION_BYTES = 1
_VERSION = b"\0"
_ID_BYTES = 2
_TIME_BYTES = 8
_HINT = "to find all damaged files, run: statekeeper audit ROOT --deep"
_NEGATIVE, _NULL = 0, 2


@dataclass(frozen=True)
class DecodedRows:
    """Rows of one family.

    `keys` has one row per key. `counts[i]` consecutive rows of `values` belong to key i: one, unless the family holds
    lists.
    """

    keys: pa.Table
    values: pa.Table
    counts: Counts
    are_lists: bool


def family_id(key: bytes) -> int:
    """Return the column family of a key in a store with families."""
    return int.from_bytes(key[:FAMILY_BYTES], "little", signed=True)


def decode_keys(keys: Sequence[bytes], family: Family, *, skip: int = 0) -> pa.Table:
    """Decode keys to columns, without their first `skip` bytes. Raises `CorruptFile`."""
    packed = _packed(keys)
    starts, sizes = packed.offsets[:-1] + skip, packed.lengths - skip
    if family.head is RowHead.NOTHING:
        return _decoded(packed.data, starts, sizes, family.key, head_bytes=0)
    head = None if family.avro is None else avro_head(family.avro.key)
    match family.encoder:
        case KeyEncoder.WHOLE:
            return _rows(packed.data, starts, sizes, family.key, avro=head)
        case KeyEncoder.TIME_FIRST | KeyEncoder.TIME_LAST:
            return _timed(packed.data, starts, sizes, family)
        case KeyEncoder.PREFIX | KeyEncoder.RANGE:
            return _in_two(packed.data, starts, sizes, family)


def decode_rows_of(
    keys: Sequence[bytes], values: Sequence[bytes], family: Family, conf: StateConf, *, skip: int = 0
) -> DecodedRows:
    """Decode keys with their values; `skip` as in `decode_keys`. Verifies row checksums. Raises `CorruptFile`."""
    packed, pieces = _packed(values), None
    starts, sizes = packed.offsets[:-1], packed.lengths
    if family.head is RowHead.NOTHING:
        # A load has verified and removed the checksums.
        decoded = _decoded(packed.data, starts, sizes, family.value, head_bytes=0)
        return DecodedRows(decode_keys(keys, family), decoded, np.ones(len(values), np.int64), are_lists=False)
    if conf.row_checksums:
        pieces = _pieces(keys, values, conf.merge_delimiter)
        starts, sizes = _edges(pieces, packed.offsets)
    _require((sizes > 0).all(), "a value is empty")
    head = None if family.avro is None else avro_head(family.avro.value)
    # A list starts with the size of its first element. The size is odd: a version byte and whole words.
    lists = packed.data[starts] != 0
    if head is not None:
        lists = np.fromiter(
            (not row.startswith(head) for row in _cut(packed.data, starts, sizes)), np.bool_, len(starts)
        )
    are_lists = bool(lists.any())
    counts: Counts = np.ones(len(values), np.int64)
    if are_lists:
        _require(lists.all(), "a column family has both lists and single values")
        pieces = pieces or [[(0, len(value))] for value in values]
        elements = [
            [one for start, end in of_key for one in _elements(value, start, end, conf.merge_delimiter)]
            for value, of_key in zip(values, pieces, strict=True)
        ]
        counts = np.fromiter((len(of_key) for of_key in elements), np.int64, len(elements))
        starts, sizes = _edges(elements, packed.offsets)
    elif pieces is not None:
        _require(len(starts) == len(values), "a key has several values, but its column family has no lists")
    decoded = _rows(packed.data, starts, sizes, family.value, avro=head)
    return DecodedRows(decode_keys(keys, family, skip=skip), decoded, counts, are_lists)


_Slices = list[tuple[int, int]]
"""Start and end of each part of a value."""


def _pieces(keys: Sequence[bytes], values: Sequence[bytes], delimiter: bytes) -> list[_Slices]:
    """Verify the checksums in each value, and return the parts that they cover."""
    found = []
    for key, value in zip(keys, values, strict=True):
        of_key: _Slices = []
        for begin, end in _sized(value, 0, len(value), _SIZE_BYTES, delimiter):
            _require(
                checksum(key, value[begin:end]) == int.from_bytes(value[begin - 8 : begin - 4], "little"),
                f"wrong checksum of the row whose key begins with {key[:24].hex()}",
            )
            of_key.append((begin, end))
        found.append(of_key)
    return found


def _elements(value: bytes, begin: int, end: int, delimiter: bytes) -> Iterator[tuple[int, int]]:
    return _sized(value, begin, end, 0, delimiter)


def _sized(value: bytes, begin: int, end: int, before: int, delimiter: bytes) -> Iterator[tuple[int, int]]:
    """Iterate over the parts of `value[begin:end]`. Each part follows `before` bytes and its size; the delimiter
    separates parts."""
    while begin < end:
        body = begin + before + _SIZE_BYTES
        behind = body + int.from_bytes(value[body - _SIZE_BYTES : body], "little", signed=True)
        _require(body < behind <= end, "a part of a value declares a size beyond the end of the value")
        yield body, behind
        begin = behind
        if begin < end and delimiter:
            _require(value.startswith(delimiter, begin), "the delimiter between two parts of a value is missing")
            begin += len(delimiter)
            _require(begin < end, "a value ends with a delimiter")


def _edges(slices: list[_Slices], offsets: Counts) -> tuple[Counts, Counts]:
    """Return the start in the whole buffer, and the size, of all parts of all values."""
    counts = np.fromiter((len(of_key) for of_key in slices), np.int64, len(slices))
    edges = np.array([edge for of_key in slices for edge in of_key], np.int64).reshape(-1, 2)
    return edges[:, 0] + np.repeat(offsets[:-1], counts), edges[:, 1] - edges[:, 0]


def _in_two(data: Bytes, starts: Counts, sizes: Counts, family: Family) -> pa.Table:
    """Decode keys whose front columns have their own row."""
    _require((sizes >= _SIZE_BYTES).all(), "a key is too short for the size of its front columns")
    front = _int32_at(data, starts)
    _require(
        ((front > 0) & (front <= sizes - _SIZE_BYTES)).all(), "the front columns of a key declare a size beyond its end"
    )
    starts, sizes = starts + _SIZE_BYTES, sizes - _SIZE_BYTES - front
    fields = [family.key.field(place) for place in family.front]
    front_head, head = (None, None) if family.avro is None else (_VERSION, avro_head(family.avro.key))
    if family.encoder is KeyEncoder.RANGE and family.avro is not None:
        marked = pa.schema([pa.field(name, pa.binary()) for field in fields for name in (field.name, f"{field.name}_")])
        pairs = _rows(data, starts, front, marked, avro=front_head)
        columns = {place: _unmarked(pairs, i, fields[i]) for i, place in enumerate(family.front)}
    elif family.encoder is KeyEncoder.RANGE:
        as_bytes = pa.schema([pa.field(field.name, pa.binary(), nullable=False) for field in fields])
        sorting = _rows(data, starts, front, as_bytes).combine_chunks()
        columns = {
            place: _unsorted(sorting.column(i).combine_chunks(), fields[i]) for i, place in enumerate(family.front)
        }
    else:
        table = _rows(data, starts, front, pa.schema(fields), avro=front_head)
        columns = dict(zip(family.front, table.columns, strict=True))
    behind = [place for place in range(len(family.key)) if place not in columns]
    if behind:
        behind_schema = pa.schema([family.key.field(place) for place in behind])
        rest = _rows(data, starts + front, sizes, behind_schema, avro=head)
        columns.update(zip(behind, rest.columns, strict=True))
    else:
        _require((sizes == 0).all(), "a key has extra bytes at its end")
    return pa.Table.from_arrays([columns[place] for place in range(len(family.key))], schema=family.key)


def _timed(data: Bytes, starts: Counts, sizes: Counts, family: Family) -> pa.Table:
    """Decode keys that start or end with the bytes of a timestamp, their last column."""
    rest = sizes - _TIME_BYTES
    _require((rest > 0).all(), "a key is too short for its timestamp")
    is_first = family.encoder is KeyEncoder.TIME_FIRST
    words = _fixed_at(data, starts if is_first else starts + rest, _TIME_BYTES).view(">u8")[:, 0]
    times = (words.astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)
    others = _rows(data, starts + _TIME_BYTES if is_first else starts, rest, pa.schema(list(family.key)[:-1]))
    column = pa.Array.from_buffers(pa.int64(), len(times), [None, pa.py_buffer(times)])
    return pa.Table.from_arrays([*others.columns, column], schema=family.key)


def _unsorted(column: pa.BinaryArray, field: pa.Field) -> pa.Array:
    """Decode numbers from the bytes that sort as they do."""
    machine = machine_type(field.type)
    assert machine is not None
    sorting = Ragged.from_arrow(column.cast(pa.large_binary()))
    _require((sorting.lengths == 1 + machine.itemsize).all(), f"column {field.name} of a key has the wrong size")
    rows = _fixed_at(sorting.data, sorting.offsets[:-1], 1 + machine.itemsize)
    sign = rows[:, 0]
    _require((sign <= _NULL).all(), f"column {field.name} of a key has an invalid sign byte")
    values = np.ascontiguousarray(rows[:, 1:]).view(f">u{machine.itemsize}")[:, 0].astype(f"u{machine.itemsize}")
    if pa.types.is_floating(field.type):
        values = np.where(sign == _NEGATIVE, ~values, values)
    valid = sign != _NULL
    _require(
        field.nullable or valid.all(), f"column {field.name} of a key is null, but the schema declares it without nulls"
    )
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(field.type, len(values), [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def _unmarked(pairs: pa.Table, place: int, field: pa.Field) -> pa.Array:
    """Decode a column of numbers from the bytes for its sign and the bytes that sort."""
    marks, values = (pairs.column(2 * place + part).to_pylist() for part in (0, 1))
    _require(None not in marks and None not in values, f"column {field.name} of a key has no bytes")
    joined = pa.array([mark + value for mark, value in zip(marks, values, strict=True)], pa.binary())
    return _unsorted(joined, field)


def avro_head(schema_id: int) -> bytes:
    """The bytes before a record in Avro: the version, and the id of its schema."""
    return _VERSION + schema_id.to_bytes(_ID_BYTES, "little", signed=True)


def _cut(data: Bytes, starts: Counts, sizes: Counts) -> Iterator[bytes]:
    return (data[start : start + size].tobytes() for start, size in zip(starts.tolist(), sizes.tolist(), strict=True))


def _rows(data: Bytes, starts: Counts, sizes: Counts, schema: pa.Schema, *, avro: bytes | None = None) -> pa.Table:
    """Decode rows that follow their version byte. `avro`: the head of records in Avro."""
    if avro is not None:
        rows = list(_cut(data, starts, sizes))
        _require(all(row.startswith(avro) for row in rows), "a row has another version or schema than its family")
        found = decode_records((row[len(avro) :] for row in rows), schema)
        _require(
            all(field.nullable or not column.null_count for field, column in zip(schema, found.columns, strict=True)),
            "a column is null, but the schema declares it without nulls",
        )
        return pa.Table.from_arrays(found.columns, schema=schema)
    _require((sizes >= _VERSION_BYTES).all(), "a row has no version byte")
    _require((data[starts] == 0).all(), "a row has an unknown version byte")
    return _decoded(data, starts, sizes, schema, head_bytes=_VERSION_BYTES)


def _decoded(data: Bytes, starts: Counts, sizes: Counts, schema: pa.Schema, *, head_bytes: int) -> pa.Table:
    found = decode_rows(gather(data, starts, sizes).to_arrow(), schema, skip=head_bytes)
    if all(machine_type(field.type) is not None for field in schema):
        # If all columns have a fixed width, all rows have the same size. A longer row has another schema.
        words = (len(schema) + 63) // 64 + len(schema)
        _require(
            (sizes == head_bytes + 8 * words).all(),
            "a row is longer than its columns; it was written with another schema",
        )
    return found


def _packed(strings: Sequence[bytes]) -> Ragged:
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    return Ragged(offsets_of(lengths), np.frombuffer(b"".join(strings), np.uint8))


def _int32_at(data: Bytes, at: Counts) -> Counts:
    return _fixed_at(data, at, _SIZE_BYTES).view("<i4")[:, 0].astype(np.int64)


def _fixed_at(data: Bytes, at: Counts, size: int) -> npt.NDArray[Any]:
    """Return `size` bytes from each of these places, as rows of an array."""
    return np.ascontiguousarray(data[at[:, None] + np.arange(size)])


def _require(good: bool | np.bool_, what: str) -> None:
    if not good:
        raise CorruptFile(what, hint=_HINT)
