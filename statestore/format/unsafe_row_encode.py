"""Encodes Arrow columns as the bytes of Spark's UnsafeRow.

A row is a sequence of pieces: the fixed part (null bits and 8-byte slots), then the body of each value that does not
fit into a slot. Each piece is computed for all rows at once. A body always consists of whole words. Source: Spark's
UnsafeRowWriter, UnsafeArrayWriter and GenerateUnsafeProjection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekeeper.statestore.base.errors import SchemaMismatch, UnsupportedType
from statekeeper.statestore.format import unsafe_row_decimals as decimals
from statekeeper.statestore.format.ragged import (
    Bytes,
    Counts,
    Ragged,
    as_numpy,
    gather,
    join,
    offsets_of,
    positions,
    scatter,
)
from statekeeper.statestore.format.types import machine_type

Mask = npt.NDArray[np.bool_]

LARGEST_ROW_BYTES = 2**31 - 8
"""Spark stores the size of a row as a signed 32-bit number."""

_PADDINGS = Ragged(offsets_of(np.arange(8)), np.zeros(28, np.uint8)).to_arrow()
"""Zero to seven zero bytes. Built without `pa.array`, which would import pandas with this module."""


@dataclass(frozen=True)
class _Slots:
    """Values that fit into a slot: unsigned, of their own width, zero where `valid` is false. `valid` None: no
    nulls."""

    valid: Mask | None
    values: npt.NDArray[Any]


@dataclass(frozen=True)
class _Bodies:
    """Values after the fixed part.

    `sizes` are the bytes that a slot declares, `bodies` the bytes that are written, in whole words; both have an entry
    for every value, empty for nulls. `keeps_offset`: the slot of a null has the offset (only for wide decimals in a
    row) instead of zero.
    """

    valid: Mask | None
    sizes: Counts
    bodies: Ragged
    keeps_offset: bool = False

    def slots(self, cursor: Counts) -> npt.NDArray[np.uint64]:
        """Return offset and size of each body that starts at byte `cursor` of its row or array."""
        slots = (cursor << 32 | self.sizes).view(np.uint64)
        return slots if self.valid is None or self.keeps_offset else np.where(self.valid, slots, np.uint64(0))


def rows(columns: list[pa.Array], fields: list[pa.Field], head: Bytes, path: str = "") -> Ragged:
    """Encode one row per position of the columns, each after that row of `head`: a (rows, h) array of bytes.

    Raises `SchemaMismatch` for a null, or a decimal with too many digits, in a column that does not allow it;
    `UnsupportedType` for a row of 2 GiB or more.
    """
    parts = [
        _column(column, field, f"{path}{field.name}", in_row=True)
        for column, field in zip(columns, fields, strict=True)
    ]
    bitset_words = (len(parts) + 63) // 64
    fixed_words = bitset_words + len(parts)
    fixed = np.zeros((len(head), fixed_words), np.uint64)
    cursor: Counts = np.full(len(head), 8 * fixed_words, np.int64)
    bodies = []
    for i, part in enumerate(parts):
        if part.valid is not None:
            fixed[:, i // 64] |= (~part.valid).astype(np.uint64) << np.uint64(i % 64)
        if isinstance(part, _Slots):
            fixed[:, bitset_words + i] = part.values
        else:
            fixed[:, bitset_words + i] = part.slots(cursor)
            cursor += part.bodies.lengths
            bodies.append(part.bodies)
    if cursor.size and cursor.max() > LARGEST_ROW_BYTES:
        where = path.removesuffix(".") or "all columns together"
        raise UnsupportedType(
            f"a row of {where} takes {cursor.max():,} bytes and cannot be stored",
            hint="make the row smaller: Spark can only read rows below 2 GiB",
        )
    front = np.concatenate([head, fixed.view(np.uint8)], axis=1) if head.shape[1] else fixed.view(np.uint8)
    return join([Ragged.of_equal_length(front), *bodies])


def _column(array: pa.Array, field: pa.Field, path: str, in_row: bool) -> _Slots | _Bodies:
    if array.null_count and not field.nullable:
        raise SchemaMismatch(
            f"column {path} contains a null, but the schema declares it without nulls",
            hint="declare the column nullable",
        )
    kind = array.type
    valid = validity(array)
    if pa.types.is_decimal128(kind):
        return _decimals(array, valid, path, in_row)
    machine = machine_type(kind)
    if machine is not None:
        return _Slots(valid, _zeroed(fixed_values(array, machine), valid))
    if pa.types.is_struct(kind):
        bodies = _structs(array, valid, path)
    elif pa.types.is_map(kind):
        bodies = _maps(array, path)
    elif pa.types.is_list(kind):
        lengths, (elements,) = list_parts(array)
        bodies = _lists(lengths, elements, kind.value_field, f"{path}.element")
        bodies = _without(bodies, valid)
    else:
        bodies, sizes = _strings(array)
        return _Bodies(valid, sizes, bodies)
    return _Bodies(valid, bodies.lengths, bodies)


def validity(array: pa.Array) -> Mask | None:
    """Return True for each value and False for each null; None if there are no nulls."""
    if not array.null_count:
        return None
    bits = as_numpy(array.buffers()[0], np.dtype(np.uint8))
    first = array.offset // 8
    unpacked = np.unpackbits(bits[first:], count=array.offset % 8 + len(array), bitorder="little")
    return unpacked[array.offset % 8 :].view(np.bool_)


def fixed_values(array: pa.Array, machine: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the values of a fixed-width array as unsigned numbers of their width; nulls have arbitrary values."""
    if pa.types.is_boolean(array.type):
        bits = as_numpy(array.buffers()[1], np.dtype(np.uint8))[array.offset // 8 :]
        return np.unpackbits(bits, count=array.offset % 8 + len(array), bitorder="little")[array.offset % 8 :]
    unsigned = np.dtype(f"u{machine.itemsize}")
    return as_numpy(array.buffers()[1], unsigned)[array.offset : array.offset + len(array)]


def list_parts(array: pa.Array) -> tuple[Counts, list[pa.Array]]:
    """Return the length of each list or map (0 for nulls), and the elements, or keys and values, of all of them in
    order."""
    offsets = as_numpy(array.buffers()[1], np.dtype(np.int32))[array.offset : array.offset + len(array) + 1].astype(
        np.int64
    )
    if not len(array):
        offsets = np.zeros(1, np.int64)
    valid = validity(array)
    lengths = _zeroed(np.diff(offsets), valid)
    values = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    total = int(lengths.sum())
    if total == offsets[-1] - offsets[0]:
        return lengths, [column.slice(offsets[0], total) for column in values]
    # In Arrow, a null list may have elements.
    taken = pa.array(positions(offsets[:-1], lengths))
    return lengths, [column.take(taken) for column in values]


def decimal_words(array: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the words (low, high) of the unscaled values of decimals; nulls have arbitrary values."""
    words = as_numpy(array.buffers()[1], np.dtype(np.uint64))[2 * array.offset : 2 * (array.offset + len(array))]
    return words[::2], words[1::2]


def _zeroed(values: npt.NDArray[Any], valid: Mask | None) -> npt.NDArray[Any]:
    return values if valid is None else np.where(valid, values, np.zeros(1, values.dtype))


def _decimals(array: pa.Array, valid: Mask | None, path: str, in_row: bool) -> _Slots | _Bodies:
    low, high = (_zeroed(words, valid) for words in decimal_words(array))
    wide = decimals.too_wide(low, high, array.type.precision)
    if wide.any():
        raise SchemaMismatch(
            f"column {path} contains a number of more than {array.type.precision} digits",
            hint="declare a decimal with more digits",
        )
    if machine_type(array.type) is not None:
        return _Slots(valid, low)
    packed, sizes = decimals.to_minimal_bytes(low, high)
    sizes = _zeroed(sizes, valid)
    full = Ragged.of_equal_length(packed.view(np.uint8))
    if in_row:
        # Spark reserves 16 bytes for any value, so that it can be changed in place.
        return _Bodies(valid, sizes, full, keeps_offset=True)
    return _Bodies(valid, sizes, gather(full.data, full.offsets[:-1], _whole_words(sizes)))


def _strings(array: pa.Array) -> tuple[Ragged, Counts]:
    if array.null_count:
        array = array.fill_null(b"" if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type) else "")
    plain = Ragged.from_arrow(array.cast(pa.large_binary()))
    sizes = plain.lengths
    missing = -sizes & 7
    if not missing.any():
        return plain, sizes
    padding = Ragged.from_arrow(_PADDINGS.take(pa.array(missing)))
    return join([plain, padding]), sizes


def _structs(array: pa.Array, valid: Mask | None, path: str) -> Ragged:
    present = array if valid is None else array.drop_null()
    columns = [present.field(i) for i in range(array.type.num_fields)]
    return _spread(rows(columns, list(array.type), np.empty((len(present), 0), np.uint8), f"{path}."), valid)


def _lists(lengths: Counts, elements: pa.Array, field: pa.Field, path: str) -> Ragged:
    """Encode a body for each list. The caller must empty the bodies of null lists, because an empty list has a body."""
    part = _column(elements, field, path, in_row=False)
    values = part.values if isinstance(part, _Slots) else None
    width = 8 if values is None else values.dtype.itemsize
    header_bytes = 8 + 8 * ((lengths + 63) // 64)
    fixed_bytes = header_bytes + _whole_words(lengths * width)
    offsets = offsets_of(fixed_bytes)
    out = np.zeros(offsets[-1] // 8, np.uint64)
    out[offsets[:-1] // 8] = lengths
    if isinstance(part, _Bodies):
        behind = part.bodies.offsets[offsets_of(lengths)]
        # Bytes from the start of the list's own body to that of the element.
        cursor = part.bodies.offsets[:-1] + np.repeat(fixed_bytes - behind[:-1], lengths)
        values = part.slots(cursor)
    assert values is not None
    scatter(out.view(values.dtype), (offsets[:-1] + header_bytes) // width, lengths, values)
    if part.valid is not None:
        ordinal = positions(np.zeros_like(lengths), lengths)
        null = np.flatnonzero(~part.valid)
        word = np.repeat(offsets[:-1] // 8 + 1, lengths)[null] + ordinal[null] // 64
        np.bitwise_or.at(out, word, np.uint64(1) << (ordinal[null] % 64).astype(np.uint64))
    fixed = Ragged(offsets, out.view(np.uint8))
    if isinstance(part, _Slots):
        return fixed
    return join([fixed, Ragged(behind, part.bodies.data)])


def _maps(array: pa.Array, path: str) -> Ragged:
    lengths, (keys, values) = list_parts(array)
    key_lists = _lists(lengths, keys, array.type.key_field, f"{path}.key")
    value_lists = _lists(lengths, values, array.type.item_field, f"{path}.value")
    key_bytes = Ragged.of_equal_length(key_lists.lengths[:, None].view(np.uint8))
    return _without(join([key_bytes, key_lists, value_lists]), validity(array))


def _without(bodies: Ragged, valid: Mask | None) -> Ragged:
    """Empty the bodies of nulls."""
    if valid is None:
        return bodies
    return gather(bodies.data, bodies.offsets[:-1], _zeroed(bodies.lengths, valid))


def _spread(bodies: Ragged, valid: Mask | None) -> Ragged:
    """Insert an empty body at each null into the bodies of the other values."""
    if valid is None:
        return bodies
    lengths = np.zeros(len(valid), np.int64)
    lengths[valid] = bodies.lengths
    return Ragged(offsets_of(lengths) + bodies.offsets[0], bodies.data)


def _whole_words(sizes: Counts) -> Counts:
    return (sizes + 7) & ~np.int64(7)
