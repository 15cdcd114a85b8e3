"""Keys and values of Spark's operators, encoded from columns. `family_rows` describes the bytes and decodes them.

The encoded rows are those that Spark writes, except for lists with row checksums: Spark writes one checksum for each call
that adds elements, and this module one for all elements of a key. Spark reads both.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekeeper.statestore.base.errors import UnsupportedType
from statekeeper.statestore.format import row_checksum
from statekeeper.statestore.format.avro_rows import encode_records
from statekeeper.statestore.format.families import AvroIds, Family, KeyEncoder, RowHead
from statekeeper.statestore.format.family_rows import FAMILY_BYTES, avro_head
from statekeeper.statestore.format.ragged import Bytes, Counts
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.format.types import machine_type
from statekeeper.statestore.format.unsafe_row import encode_rows
from statekeeper.statestore.format.unsafe_row_encode import fixed_values, validity

_VERSION = b"\0"
_INT = struct.Struct("<i")
_CHECKSUM = struct.Struct("<II")
_NEGATIVE, _POSITIVE, _NULL = 0, 1, 2


def encode_keys(keys: pa.Table, family: Family, number: int | None = None) -> list[bytes]:
    """Encode the keys of a family, one for each row. `number`: the id of the family; None for a store without families.

    Raises as `unsafe_row.encode_rows`.
    """
    prefix = b"" if number is None else number.to_bytes(FAMILY_BYTES, "little", signed=True)
    keys = keys if family.avro is not None else with_longs_for_nulls(keys)
    if family.head is RowHead.NOTHING:
        return _texts(encode_rows(keys))
    if family.avro is not None:
        return _in_avro(keys, family, family.avro, prefix)
    match family.encoder:
        case KeyEncoder.WHOLE:
            return _texts(encode_rows(keys, head=prefix + _VERSION))
        case KeyEncoder.TIME_FIRST | KeyEncoder.TIME_LAST:
            return _timed(keys, family, prefix)
        case KeyEncoder.PREFIX | KeyEncoder.RANGE:
            return _in_two(keys, family, prefix)


def encode_values(
    keys: Sequence[bytes], values: pa.Table, counts: Counts | None, family: Family, conf: StateConf
) -> list[bytes]:
    """Encode the values of keys. `counts[i]` consecutive rows of `values` are the list of key i. If `counts` is None, each
    key has one row, which is no list. Raises as `unsafe_row.encode_rows`."""
    values = values if family.avro is not None else with_longs_for_nulls(values)
    if family.head is RowHead.NOTHING:
        # A store adds the checksums.
        return _texts(encode_rows(values))
    if family.avro is not None:
        head = avro_head(family.avro.value)
        rows = [head + record for record in encode_records(values)]
    else:
        rows = _texts(encode_rows(values, head=_VERSION))
    if counts is not None:
        left = iter(rows)
        rows = [_listed(itertools.islice(left, count), conf.merge_delimiter) for count in counts.tolist()]
    if not conf.row_checksums:
        return rows
    return [
        _CHECKSUM.pack(row_checksum.checksum(key, row), len(row)) + row for key, row in zip(keys, rows, strict=True)
    ]


def with_longs_for_nulls(columns: pa.Table) -> pa.Table:
    """Give the columns of type null, such as the only value of dropDuplicates, a type whose nulls Spark encodes in the
    same way: a bit, and eight bytes of zeros."""
    fields = [one.with_type(pa.int64()) if pa.types.is_null(one.type) else one for one in columns.schema]
    return columns.cast(pa.schema(fields)) if any(pa.types.is_null(kind) for kind in columns.schema.types) else columns


def _listed(elements: itertools.islice[bytes], delimiter: bytes) -> bytes:
    return delimiter.join(_INT.pack(len(row)) + row for row in elements)


def _in_two(keys: pa.Table, family: Family, prefix: bytes) -> list[bytes]:
    """Encode keys whose front columns have their own row."""
    front = keys.select(list(family.front))
    if family.encoder is KeyEncoder.RANGE:
        sorting = [_sorting(column.combine_chunks(), column.type) for column in front.columns]
        as_bytes = [pa.field(field.name, pa.binary(), nullable=False) for field in front.schema]
        front = pa.Table.from_arrays(sorting, schema=pa.schema(as_bytes))
    behind = [place for place in range(keys.num_columns) if place not in family.front]
    firsts = _texts(encode_rows(front, head=_VERSION))
    if not behind:
        return [prefix + _INT.pack(len(first)) + first for first in firsts]
    seconds = _texts(encode_rows(keys.select(behind), head=_VERSION))
    return [prefix + _INT.pack(len(first)) + first + second for first, second in zip(firsts, seconds, strict=True)]


def _in_avro(keys: pa.Table, family: Family, ids: AvroIds, prefix: bytes) -> list[bytes]:
    """Encode keys whose rows are records. The front columns have no id of a schema."""
    head = avro_head(ids.key)
    if family.encoder is KeyEncoder.WHOLE:
        return [prefix + head + record for record in encode_records(keys)]
    front = keys.select(list(family.front))
    if family.encoder is KeyEncoder.RANGE:
        front = _marked(front)
    elif family.encoder is not KeyEncoder.PREFIX:
        raise UnsupportedType(
            f"keys with the encoder {family.encoder.value} are not supported in Avro",
            hint="keep the encoding unsaferow",
        )
    behind = [place for place in range(keys.num_columns) if place not in family.front]
    firsts = [_VERSION + record for record in encode_records(front)]
    if not behind:
        return [prefix + _INT.pack(len(first)) + first for first in firsts]
    seconds = [head + record for record in encode_records(keys.select(behind))]
    return [prefix + _INT.pack(len(first)) + first + second for first, second in zip(firsts, seconds, strict=True)]


def _marked(front: pa.Table) -> pa.Table:
    """Return two columns for each: the byte for its sign, and the bytes that sort."""
    arrays, fields = [], []
    for field, column in zip(front.schema, front.columns, strict=True):
        sorting = _sorting(column.combine_chunks(), field.type).to_pylist()
        arrays += [pa.array([text[:1] for text in sorting]), pa.array([text[1:] for text in sorting])]
        fields += [pa.field(f"{field.name}_marker", pa.binary()), pa.field(f"{field.name}_value", pa.binary())]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _timed(keys: pa.Table, family: Family, prefix: bytes) -> list[bytes]:
    """Encode keys that start or end with the bytes of a timestamp, their last column."""
    column = _whole(keys.column(keys.num_columns - 1))
    times = fixed_values(column, np.dtype(np.int64)).view(np.uint64) ^ np.uint64(1 << 63)
    moments = [row.tobytes() for row in times.astype(">u8").view(np.uint8).reshape(-1, 8)]
    is_first = family.encoder is KeyEncoder.TIME_FIRST
    rows = _texts(
        encode_rows(keys.select(range(keys.num_columns - 1)), head=_VERSION if is_first else prefix + _VERSION)
    )
    if is_first:
        return [prefix + moment + row for moment, row in zip(moments, rows, strict=True)]
    return [row + moment for row, moment in zip(rows, moments, strict=True)]


def _sorting(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Encode numbers as bytes that sort as they do: see `family_rows`."""
    array = _whole(column)
    machine = machine_type(kind)
    assert machine is not None
    unsigned = np.dtype(f"u{machine.itemsize}")
    values = fixed_values(array, machine).view(unsigned)
    negative = values >> unsigned.type(8 * machine.itemsize - 1) == 1
    if pa.types.is_floating(kind):
        values = np.where(negative, ~values, values)
    found = np.zeros((len(array), 1 + machine.itemsize), np.uint8)
    found[:, 0] = np.where(negative, _NEGATIVE, _POSITIVE)
    found[:, 1:] = values.astype(unsigned.newbyteorder(">")).view(np.uint8).reshape(-1, machine.itemsize)
    valid = validity(array)
    if valid is not None:
        found[~valid] = 0
        found[~valid, 0] = _NULL
    return _binaries(found)


def _binaries(rows: Bytes) -> pa.Array:
    count, width = rows.shape
    offsets: npt.NDArray[np.int32] = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _texts(rows: pa.LargeBinaryArray) -> list[bytes]:
    found: list[bytes] = rows.to_pylist()
    return found
