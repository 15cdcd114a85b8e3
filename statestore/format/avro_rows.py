"""Rows in Avro's binary encoding, as Spark writes the state of transformWithState with `encodingFormat=avro`.

    record   each column: 0 for null, or 2 and the value. A column of type null has no bytes
    value    boolean: a byte · byte, short, int, date, long, timestamps: zigzag varint · float, double: little-endian ·
             string, binary: size and bytes · decimal: big-endian, as many bytes as its precision needs · struct: a record
             after 2 · list: number of elements, elements, 0 · map with texts as keys: the same with pairs

The elements of lists and maps have no null marker, except structs, lists and maps, which begin with 2. Source:
SchemaConverters.toAvroTypeWithDefaults and AvroStateEncoder of Spark 4.2; Avro's specification 1.12. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile, UnsupportedType

_NULL, _PRESENT = b"\0", b"\2"
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_MOST_VARINT_BYTES = 10
_EXACT = Context(prec=76)
"""More digits than a decimal has: Python's own context rounds to 28."""

_Write = Callable[[Any], bytes]
_Read = Callable[[bytes, int], tuple[Any, int]]


def encode_records(columns: pa.Table) -> list[bytes]:
    """Encode one record per row. Raises `UnsupportedType`."""
    if not columns.num_columns:
        return [b""] * columns.num_rows
    writers = [_field_writer(field) for field in columns.schema]
    values = [_physical(column.combine_chunks()) for column in columns.columns]
    return [
        b"".join(write(value) for write, value in zip(writers, row, strict=True)) for row in zip(*values, strict=True)
    ]


def decode_records(rows: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    """Decode records. Raises `CorruptFile` for bytes that are no record of the schema, `UnsupportedType`."""
    readers = [_field_reader(field) for field in schema]
    found: list[list[Any]] = [[] for _ in schema]
    for row in rows:
        at = 0
        try:
            for read, column in zip(readers, found, strict=True):
                value, at = read(row, at)
                column.append(value)
        except (IndexError, struct.error, UnicodeDecodeError, OverflowError) as error:
            raise CorruptFile(f"a row in Avro ends too early, or has invalid bytes: {error}") from error
        if at != len(row):
            raise CorruptFile("a row in Avro is longer than its columns; it was written with another schema")
    try:
        columns = [_logical(column, field.type) for column, field in zip(found, schema, strict=True)]
    except (pa.ArrowException, OverflowError, ArithmeticError) as error:
        raise CorruptFile(f"a row in Avro has a value that does not fit its column: {error}") from error
    return pa.Table.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def require_supported(schema: pa.Schema) -> None:
    """Raise `UnsupportedType` for a column that Spark's Avro encoding does not support."""
    for field in schema:
        _field_writer(field)


# -- values as Avro has them: integers for times and decimals ---------------------------------------------------------


def _physical(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_timestamp(kind):
        return _list(array.cast(pa.int64()))
    if pa.types.is_date(kind):
        return _list(array.cast(pa.int32()))
    if pa.types.is_decimal(kind):
        return [None if value is None else int(_EXACT.scaleb(value, kind.scale)) for value in _list(array)]
    if pa.types.is_struct(kind):
        fields = [_physical(array.field(place)) for place in range(kind.num_fields)]
        valid = array.is_valid().to_pylist()
        rows = zip(*fields, strict=True) if fields else iter([()] * len(array))
        return [row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]
    if pa.types.is_map(kind):
        keys, items = _physical(array.keys), _physical(array.items)
        return _split(array, list(zip(keys, items, strict=True)))
    if pa.types.is_list(kind):
        return _split(array, _physical(array.values))
    return _list(array)


def _split(array: pa.ListArray | pa.MapArray, values: list[Any]) -> list[Any]:
    offsets, valid = array.offsets.to_pylist(), array.is_valid().to_pylist()
    return [values[offsets[row] : offsets[row + 1]] if is_valid else None for row, is_valid in enumerate(valid)]


def _list(array: pa.Array) -> list[Any]:
    found: list[Any] = array.to_pylist()
    return found


def _logical(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if value is None else _decimal(value, kind) for value in values], kind)
    if pa.types.is_struct(kind):
        absent = (None,) * kind.num_fields
        rows = [absent if value is None else value for value in values]
        fields = [_logical([row[place] for row in rows], kind.field(place).type) for place in range(kind.num_fields)]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        flat = [pair for value in values for pair in value or ()]
        keys = _logical([key for key, _ in flat], kind.key_type)
        return pa.MapArray.from_arrays(
            _offsets(values), keys, _logical([item for _, item in flat], kind.item_type)
        ).cast(kind)
    if pa.types.is_list(kind):
        flat = [element for value in values for element in value or ()]
        return pa.ListArray.from_arrays(_offsets(values), _logical(flat, kind.value_type)).cast(kind)
    return pa.array(values, kind)


def _offsets(values: list[Any]) -> pa.Array:
    """The offsets of lists; a null one is null."""
    found: list[int | None] = []
    end = 0
    for value in values:
        found.append(None if value is None else end)
        end += len(value or ())
    return pa.array([*found, end], pa.int32())


def _decimal(value: int, kind: pa.Decimal128Type) -> Decimal:
    return _EXACT.scaleb(Decimal(value), -kind.scale)


# -- writers and readers of one type ----------------------------------------------------------------------------------


def _field_writer(field: pa.Field) -> _Write:
    if pa.types.is_null(field.type):
        return lambda value: b""
    write = _writer(field.type, field.name)
    if _is_nested(field.type):
        return write
    return lambda value: _NULL if value is None else _PRESENT + write(value)


def _field_reader(field: pa.Field) -> _Read:
    if pa.types.is_null(field.type):
        return lambda row, at: (None, at)
    read = _reader(field.type, field.name)
    return read if _is_nested(field.type) else _nullable(read)


def _nullable(read: _Read) -> _Read:
    def nullable(row: bytes, at: int) -> tuple[Any, int]:
        marker = row[at]
        if marker not in (_NULL[0], _PRESENT[0]):
            raise CorruptFile(f"a row in Avro has the invalid null marker {marker}")
        return (None, at + 1) if marker == _NULL[0] else read(row, at + 1)

    return nullable


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind))


def _writer(kind: pa.DataType, name: str) -> _Write:
    """Return the writer of a type; that of a nested one also writes its null marker."""
    is_a = pa.types
    if is_a.is_boolean(kind):
        return lambda value: b"\1" if value else b"\0"
    if is_a.is_signed_integer(kind) or is_a.is_date32(kind) or is_a.is_timestamp(kind):
        return _varint
    if is_a.is_float32(kind):
        return _FLOAT.pack
    if is_a.is_float64(kind):
        return _DOUBLE.pack
    if is_a.is_string(kind):
        return lambda value: _sized(value.encode())
    if is_a.is_binary(kind):
        return _sized
    if is_a.is_decimal128(kind):
        size = _decimal_bytes(kind.precision)
        return lambda value: value.to_bytes(size, "big", signed=True)
    if is_a.is_struct(kind):
        fields = [_field_writer(field) for field in kind]
        return lambda value: (
            _NULL
            if value is None
            else _PRESENT + b"".join(write(one) for write, one in zip(fields, value, strict=True))
        )
    if is_a.is_list(kind):
        return _blocks(_element_writer(kind.value_type, name))
    if is_a.is_map(kind) and is_a.is_string(kind.key_type):
        key, item = _writer(kind.key_type, name), _element_writer(kind.item_type, name)
        return _blocks(lambda pair: key(pair[0]) + item(pair[1]))
    raise _unsupported(kind, name)


def _element_writer(kind: pa.DataType, name: str) -> _Write:
    write = _writer(kind, name)
    if _is_nested(kind):
        return write

    def element(value: Any) -> bytes:
        if value is None:
            raise UnsupportedType(
                f"column {name} has a list or map with nulls, which Spark's Avro encoding does not support",
                hint="keep the encoding unsaferow",
            )
        return write(value)

    return element


def _blocks(write: _Write) -> _Write:
    def blocks(value: Any) -> bytes:
        if value is None:
            return _NULL
        body = b"".join(map(write, value))
        return _PRESENT + (_varint(len(value)) + body if value else b"") + b"\0"

    return blocks


def _reader(kind: pa.DataType, name: str) -> _Read:
    """Return the reader of a type; that of a nested one also reads its null marker."""
    is_a = pa.types
    if is_a.is_boolean(kind):
        return lambda row, at: (row[at] == 1, at + 1)
    if is_a.is_signed_integer(kind) or is_a.is_date32(kind) or is_a.is_timestamp(kind):
        return _read_varint
    if is_a.is_float32(kind):
        return lambda row, at: (_FLOAT.unpack_from(row, at)[0], at + _FLOAT.size)
    if is_a.is_float64(kind):
        return lambda row, at: (_DOUBLE.unpack_from(row, at)[0], at + _DOUBLE.size)
    if is_a.is_string(kind):
        return lambda row, at: _decoded_text(*_read_sized(row, at))
    if is_a.is_binary(kind):
        return _read_sized
    if is_a.is_decimal128(kind):
        size = _decimal_bytes(kind.precision)
        return lambda row, at: (int.from_bytes(_cut(row, at, size), "big", signed=True), at + size)
    if is_a.is_struct(kind):
        return _nullable(_record([_field_reader(field) for field in kind]))
    if is_a.is_list(kind):
        return _nullable(_read_blocks(_reader(kind.value_type, name)))
    if is_a.is_map(kind) and is_a.is_string(kind.key_type):
        return _nullable(_read_blocks(_record([_reader(kind.key_type, name), _reader(kind.item_type, name)])))
    raise _unsupported(kind, name)


def _record(readers: Sequence[_Read]) -> _Read:
    def record(row: bytes, at: int) -> tuple[Any, int]:
        values = []
        for read in readers:
            value, at = read(row, at)
            values.append(value)
        return tuple(values), at

    return record


def _read_blocks(read: _Read) -> _Read:
    def blocks(row: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        count, at = _read_varint(row, at)
        while count:
            if not 0 < count <= len(row) - at:
                raise CorruptFile(f"a row in Avro declares {count:,} elements, more than it can contain")
            for _ in range(count):
                value, at = read(row, at)
                values.append(value)
            count, at = _read_varint(row, at)
        return values, at

    return blocks


def _varint(value: int) -> bytes:
    """Encode a long with the zigzag of its sign."""
    left = (value << 1) ^ (value >> 63)
    found = bytearray()
    while left > 0x7F:
        found.append((left & 0x7F) | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def _read_varint(row: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    for place in range(at, at + _MOST_VARINT_BYTES):
        byte = row[place]
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), place + 1
        shift += 7
    raise CorruptFile("a row in Avro has a number of more than ten bytes")


def _sized(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _read_sized(row: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read_varint(row, at)
    return _cut(row, at, size), at + size


def _decoded_text(value: bytes, at: int) -> tuple[str, int]:
    return value.decode(), at


def _cut(row: bytes, at: int, size: int) -> bytes:
    if size < 0 or at + size > len(row):
        raise CorruptFile(f"a row in Avro declares {size:,} bytes, more than it can contain")
    return row[at : at + size]


def _decimal_bytes(precision: int) -> int:
    """Return the least number of bytes for numbers with this number of digits, as Decimal.minBytesForPrecision."""
    return next(size for size in range(1, 17) if 2 ** (8 * size - 1) > 10**precision)


def _unsupported(kind: pa.DataType, name: str) -> UnsupportedType:
    return UnsupportedType(
        f"column {name} has the type {kind}, which Spark's Avro encoding does not support",
        hint="keep the encoding unsaferow",
    )
