"""Spark's UnsafeRow, encoded and decoded compatibly with Spark.

    row    = null bits, one per column, in 8-byte words | one 8-byte slot per column | bodies
    slot   = the value itself, little-endian, rest zero | offset << 32 | size, of a body, from the row's start
    body   = string or binary, padded to 8 bytes | row (struct) | array | map
    array  = number of elements (8) | null bits | elements at their own width, padded to 8 bytes | bodies
    map    = size of the key array (8) | key array | value array

Booleans, integers, floats, dates (days), timestamps (microseconds) and decimals of up to 18 digits fit into the slot.
Wider decimals are big-endian bodies: always 16 bytes in a row, as many words as needed in an array. The slot of a null
is zero, except for a wide decimal in a row, which keeps its offset. Source: UnsafeRow, UnsafeArrayData, UnsafeMapData,
UnsafeRowWriter and UnsafeArrayWriter of Spark 4.2.

This module is the interface; `unsafe_row_encode` and `unsafe_row_decode` are the implementation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import unsafe_row_decode, unsafe_row_encode
from statekeeper.statestore.format.ragged import Bytes, Ragged, gather
from statekeeper.statestore.format.types import check_supported, children
from statekeeper.statestore.format.unsafe_row_encode import LARGEST_ROW_BYTES, fixed_values, validity


def encode_rows(columns: pa.Table | pa.RecordBatch, *, head: Bytes | bytes = b"") -> pa.LargeBinaryArray:
    """Encode one UnsafeRow per row of `columns`, each after `head`: the same bytes for all, or a uint8 array of shape
    (rows, h).

    Equal values give equal bytes, except floats: see `normalise_keys`. Raises `UnsupportedType` for types that Spark
    lacks and for rows of 2 GiB or more, `SchemaMismatch` for a null in a column declared without nulls and for a
    decimal with more digits than declared.
    """
    check_supported(columns.schema)
    count = columns.num_rows
    front = np.broadcast_to(np.frombuffer(head, np.uint8), (count, len(head))) if isinstance(head, bytes) else head
    if front.dtype != np.uint8 or front.ndim != 2 or len(front) != count:
        raise ValueError(
            f"head has shape {front.shape} and type {front.dtype}; required are shape ({count}, h) and type uint8"
        )
    batches = [columns] if isinstance(columns, pa.RecordBatch) else columns.combine_chunks().to_batches()
    encoded, first = [], 0
    for batch in batches:
        rows = unsafe_row_encode.rows(batch.columns, list(batch.schema), front[first : first + batch.num_rows])
        encoded.append(rows.to_arrow())
        first += batch.num_rows
    if len(encoded) == 1:
        return encoded[0]
    return pa.concat_arrays(encoded) if encoded else pa.array([], pa.large_binary())


def decode_rows(rows: pa.LargeBinaryArray | pa.ChunkedArray, schema: pa.Schema, *, skip: int = 0) -> pa.Table:
    """Decode `rows` to columns, without the first `skip` bytes of each row.

    Raises `UnsupportedType` for a schema that Spark lacks, and `CorruptFile`, naming row and column, unless every
    offset and size lies inside its row, no two values share bytes, strings are UTF-8, decimals have no more digits than
    declared, and nulls occur only in columns that allow them (columns of Arrow's type null contain only nulls). Bytes
    that Spark ignores too (padding, the slot of a null) may have any value. Rows of another schema are detected only if
    they violate one of these rules.
    """
    check_supported(schema, void=True)
    chunks = rows.chunks if isinstance(rows, pa.ChunkedArray) else [rows]
    batches, first = [], 0
    for chunk in chunks:
        for piece in _pieces(chunk):
            batches.append(_decode(piece, schema, skip, first))
            first += len(piece)
    return pa.Table.from_batches(batches, schema)


def normalise_keys(columns: pa.Table) -> pa.Table:
    """Return `columns` with -0.0 as 0.0 and every NaN as Java's NaN, at any depth, so that equal keys have equal bytes.

    Spark does the same before it groups or joins (NormalizeFloatingNumbers).
    """
    normal = [pa.chunked_array([_normal(chunk) for chunk in column.chunks], column.type) for column in columns.columns]
    return pa.Table.from_arrays(normal, schema=columns.schema) if normal else columns


def _pieces(chunk: pa.LargeBinaryArray) -> list[pa.LargeBinaryArray]:
    """Split the chunk into pieces of less than 2 GiB: strings and lists have 32-bit offsets."""
    offsets = Ragged.from_arrow(chunk).offsets
    pieces, first = [], 0
    while first < len(chunk):
        end = int(np.searchsorted(offsets, offsets[first] + LARGEST_ROW_BYTES, side="right")) - 1
        if end == first:
            raise CorruptFile(f"a row has {offsets[first + 1] - offsets[first]:,} bytes, more than Spark can write")
        pieces.append(chunk.slice(first, end - first))
        first = end
    return pieces


def _decode(piece: pa.LargeBinaryArray, schema: pa.Schema, skip: int, first: int) -> pa.RecordBatch:
    plain = Ragged.from_arrow(piece)
    sizes = plain.lengths - skip
    origin = np.arange(first, first + len(piece))
    nowhere = unsafe_row_decode.Extents(
        words=np.empty(0, np.uint64), at=plain.offsets[:-1], sizes=sizes, origin=origin, path=""
    )
    if piece.null_count:
        nowhere.require(~piece.is_null().to_numpy(zero_copy_only=False), "the row is null")
    nowhere.require((sizes >= 0) & (sizes % 8 == 0), f"the size after its first {skip} bytes is not a multiple of 8")
    # Rows of whole words, consecutive, so that every offset counts words of one buffer.
    body = gather(plain.data, plain.offsets[:-1] + skip, sizes)
    aligned = body.data if body.data.ctypes.data % 8 == 0 else body.data.copy()
    words = aligned.view(np.uint64)
    found = unsafe_row_decode.Extents(words=words, at=body.offsets[:-1] // 8, sizes=sizes, origin=origin, path="")
    columns = unsafe_row_decode.rows(found, list(schema))
    return pa.RecordBatch.from_struct_array(_struct(pa.struct(list(schema)), len(piece), None, columns))


def _normal(array: pa.Array) -> pa.Array:
    kind = array.type
    if not _has_floats(kind):
        return array
    if not len(array):
        return array
    valid = validity(array)
    if pa.types.is_floating(kind):
        values = fixed_values(array, np.dtype(kind.to_pandas_dtype())).view(kind.to_pandas_dtype())
        # Adding zero turns -0.0 into 0.0 and leaves every other number as it is.
        with np.errstate(invalid="ignore"):
            positive = values + values.dtype.type(0)
        positive[np.isnan(values)] = np.nan
        return pa.Array.from_buffers(kind, len(array), [_bitmap(valid), pa.py_buffer(positive)])
    if pa.types.is_struct(kind):
        return _struct(kind, len(array), valid, [_normal(array.field(i)) for i in range(kind.num_fields)])
    lengths, parts = unsafe_row_encode.list_parts(array)
    parts = [_normal(part) for part in parts]
    if pa.types.is_map(kind):
        parts = [_struct(pa.struct(children(kind)), len(parts[0]), None, parts)]
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(kind, len(array), [_bitmap(valid), pa.py_buffer(offsets)], children=parts)


def _has_floats(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind)) or any(_has_floats(field.type) for field in children(kind))


def _struct(kind: pa.DataType, count: int, valid: Any, columns: list[pa.Array]) -> pa.StructArray:
    return pa.Array.from_buffers(kind, count, [_bitmap(valid)], children=columns)


def _bitmap(valid: Any) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
