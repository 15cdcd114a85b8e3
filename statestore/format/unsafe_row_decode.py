"""Decodes the bytes of Spark's UnsafeRow to Arrow columns. Declared offsets and sizes are not trusted.

All checks precede the use of an offset. The memory of a decode is bounded: bodies lie inside their row or array, in
order or at least with a total size within it, and an array has at most as many elements as its bytes can contain. So
the columns are at most as large as the rows times the width of the schema.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import unsafe_row_decimals as decimals
from statekeeper.statestore.format.ragged import Counts, gather, offsets_of, positions
from statekeeper.statestore.format.types import children, machine_type

Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Extents:
    """Positions of values: `at` is the first word of each value, `sizes` its declared bytes, `origin` the number of its
    row.

    `words` is the whole buffer; `origin` and `path` name the row and column in errors.
    """

    words: Words
    at: Counts
    sizes: Counts
    origin: Counts
    path: str

    def __len__(self) -> int:
        return len(self.at)

    def require(self, good: Mask, what: str) -> None:
        """Raise `CorruptFile` for the first value for which `good` is false."""
        if not good.all():
            self.corrupt(int(good.argmin()), what)

    def corrupt(self, i: int, what: str) -> NoReturn:
        column = f"column {self.path} of " if self.path else ""
        raise CorruptFile(
            f"{column}row {self.origin[i]} is corrupt: {what}",
            hint="restore the file from a backup, or load an older version",
        )

    def within(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def rows(found: Extents, fields: list[pa.Field]) -> list[pa.Array]:
    """Decode the columns of the rows at `found`, each with one value per row."""
    bitset_words = (len(fields) + 63) // 64
    fixed_words = bitset_words + len(fields)
    found.require(
        (found.sizes >= 8 * fixed_words) & (found.sizes % 8 == 0),
        f"the row is too short for {len(fields)} columns, or its size is not a multiple of 8",
    )
    width: Counts = np.full(len(found), 8 * fixed_words, np.int64)
    fixed_bytes = gather(found.words.view(np.uint8), found.at * 8, width).data
    fixed = fixed_bytes.view(np.uint64).reshape(len(found), fixed_words)
    spent = width.copy()
    columns = []
    for i, field in enumerate(fields):
        null = (fixed[:, i // 64] >> np.uint64(i % 64) & np.uint64(1)).view(np.int64).astype(np.bool_)
        column = replace(found, path=found.within(field.name))
        slots = fixed[:, bitset_words + i]
        columns.append(_column(column, field, slots, null, 8 * fixed_words, spent))
    found.require(spent <= found.sizes, "values overlap")
    return columns


def _column(
    owner: Extents,
    field: pa.Field,
    slots: npt.NDArray[Any],
    null: Mask,
    fixed_bytes: int | Counts,
    spent: Counts | None,
) -> pa.Array:
    """Decode one column from its slots (in an array: its elements at their own width).

    `owner` are the rows or arrays, one entry per slot. `spent`, for rows, sums the bytes of their bodies.
    """
    any_null = bool(null.any())
    if any_null and not field.nullable:
        owner.corrupt(int(null.argmax()), "the value is null, but the schema declares the column without nulls")
    kind = field.type
    if pa.types.is_null(kind):
        owner.require(null, "the value is not null, but the column has Spark's type void")
        return pa.nulls(len(slots))
    valid = ~null if any_null else None
    machine = machine_type(kind)
    if machine is not None:
        return _fixed_values(owner, kind, machine, slots, valid)
    wide = pa.types.is_decimal128(kind)
    here = np.arange(len(slots)) if valid is None else np.flatnonzero(valid)
    present = slots if valid is None else slots[here]
    offsets, sizes = (present >> np.uint64(32)).view(np.int64), (present & np.uint64(0xFFFFFFFF)).view(np.int64)
    rounded = (sizes + 7) & ~np.int64(7)
    reserved = np.full_like(sizes, 16) if wide and spent is not None else rounded
    if valid is None:
        bodies = replace(owner, at=owner.at + offsets // 8, sizes=sizes)
        first, room = fixed_bytes, owner.sizes
    else:
        bodies = replace(owner, at=owner.at[here] + offsets // 8, sizes=sizes, origin=owner.origin[here])
        first, room = fixed_bytes if isinstance(fixed_bytes, int) else fixed_bytes[here], owner.sizes[here]
    inside = (offsets >= first) & (offsets % 8 == 0) & (offsets + reserved <= room)
    bodies.require(inside, "the value lies outside of the row")
    if spent is not None:
        spent[here] += reserved
    elif len(bodies) > 1:
        # Elements of an array, and of the arrays after it, are in order, so that no byte is read twice.
        ends = bodies.at + rounded // 8
        bodies.require(np.append(ends[:-1] <= bodies.at[1:], True), "elements of an array overlap")
    return _values(bodies, kind, here, len(slots), valid)


def _fixed_values(
    owner: Extents, kind: pa.DataType, machine: np.dtype[Any], slots: npt.NDArray[Any], valid: Mask | None
) -> pa.Array:
    values = np.ascontiguousarray(slots.astype(f"u{machine.itemsize}", copy=False))
    if pa.types.is_boolean(kind):
        owner.require((values <= 1) if valid is None else (values <= 1) | ~valid, "the boolean is neither 0 nor 1")
        return _array(kind, len(slots), valid, np.packbits(values, bitorder="little"))
    if not pa.types.is_decimal128(kind):
        return _array(kind, len(slots), valid, values)
    low = values if valid is None else np.where(valid, values, np.uint64(0))
    return _decimal_array(owner, kind, low, decimals.sign_words(low), valid)


def _values(bodies: Extents, kind: pa.DataType, here: Counts, count: int, valid: Mask | None) -> pa.Array:
    """Decode the values at `bodies` to an array of `count`, at the positions `here`, with nulls elsewhere."""
    if pa.types.is_decimal128(kind):
        return _wide_decimals(bodies, kind, here, count, valid)
    if pa.types.is_struct(kind):
        compact = _array(kind, len(bodies), None, children=rows(bodies, children(kind)))
        return compact if valid is None else compact.take(_expansion(here, count, valid))
    if pa.types.is_map(kind):
        return _maps(bodies, kind, here, count, valid)
    if pa.types.is_list(kind):
        lengths, elements = _lists(bodies, children(kind)[0], "element")
        return _array(kind, count, valid, _offsets(lengths, here, count).astype(np.int32), children=[elements])
    return _strings(bodies, kind, here, count, valid)


def _strings(bodies: Extents, kind: pa.DataType, here: Counts, count: int, valid: Mask | None) -> pa.Array:
    taken = gather(bodies.words.view(np.uint8), bodies.at * 8, bodies.sizes)
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    offsets = taken.offsets if valid is None else _offsets(bodies.sizes, here, count)
    raw_kind = pa.large_binary() if large else pa.binary()
    raw = _array(raw_kind, count, valid, offsets if large else offsets.astype(np.int32), taken.data)
    if raw_kind == kind:
        return raw
    try:
        return raw.cast(kind)
    except pa.ArrowInvalid:
        bodies.corrupt(int(np.searchsorted(here, _first_not_utf8(raw, kind))), "the string is not UTF-8")


def _first_not_utf8(raw: pa.Array, kind: pa.DataType) -> int:
    """Find the first invalid value by bisection; called only to report an error."""
    first, count = 0, len(raw)
    while count > 1:
        half = count // 2
        try:
            raw.slice(first, half).cast(kind)
            first, count = first + half, count - half
        except pa.ArrowInvalid:
            count = half
    return first


def _wide_decimals(bodies: Extents, kind: pa.DataType, here: Counts, count: int, valid: Mask | None) -> pa.Array:
    bodies.require((bodies.sizes >= 1) & (bodies.sizes <= 16), "the size of the decimal is not 1 to 16 bytes")
    first = bodies.words[bodies.at]
    second = bodies.words[np.where(bodies.sizes > 8, bodies.at + 1, bodies.at)]
    low, high = decimals.from_minimal_bytes(first, second, bodies.sizes)
    if valid is None:
        return _decimal_array(bodies, kind, low, high, None)
    bodies.require(~decimals.too_wide(low, high, kind.precision), f"it has more than {kind.precision} digits")
    full = np.zeros((2, count), np.uint64)
    full[0, here], full[1, here] = low, high
    return _array(kind, count, valid, np.ascontiguousarray(full.T))


def _decimal_array(owner: Extents, kind: pa.DataType, low: Words, high: Words, valid: Mask | None) -> pa.Array:
    owner.require(~decimals.too_wide(low, high, kind.precision), f"it has more than {kind.precision} digits")
    return _array(kind, len(low), valid, np.stack([low, high], axis=1))


def _lists(bodies: Extents, field: pa.Field, name: str) -> tuple[Counts, pa.Array]:
    """Return the number of elements of each array, and all elements concatenated."""
    bodies.require(
        (bodies.sizes >= 8) & (bodies.sizes % 8 == 0), "the size of the array is less than 8 or not a multiple of 8"
    )
    machine = machine_type(field.type)
    width = 8 if machine is None else machine.itemsize
    lengths = bodies.words[bodies.at].view(np.int64)
    # Compare with the available bytes first, so that the computations below cannot overflow.
    bodies.require(
        (lengths >= 0) & (lengths <= bodies.sizes), "the array declares more elements than its bytes can contain"
    )
    header_bytes = 8 + 8 * ((lengths + 63) // 64)
    fixed_bytes = header_bytes + (lengths * width + 7) // 8 * 8
    bodies.require(fixed_bytes <= bodies.sizes, "the array declares more elements than its bytes can contain")
    ordinal = positions(np.zeros_like(lengths), lengths)
    owner = Extents(
        words=bodies.words,
        at=np.repeat(bodies.at, lengths),
        sizes=np.repeat(bodies.sizes, lengths),
        origin=np.repeat(bodies.origin, lengths),
        path=bodies.within(name),
    )
    bits = bodies.words[owner.at + 1 + ordinal // 64] >> (ordinal % 64).astype(np.uint64)
    null = (bits & np.uint64(1)).astype(np.bool_)
    own_width = bodies.words.view(f"u{width}")
    slots = own_width[positions((bodies.at * 8 + header_bytes) // width, lengths)]
    return lengths, _column(owner, field, slots, null, np.repeat(fixed_bytes, lengths), None)


def _maps(bodies: Extents, kind: pa.DataType, here: Counts, count: int, valid: Mask | None) -> pa.Array:
    bodies.require(
        (bodies.sizes >= 8) & (bodies.sizes % 8 == 0), "the size of the map is less than 8 or not a multiple of 8"
    )
    key_bytes = bodies.words[bodies.at].view(np.int64)
    # `_lists` checks that the arrays have at least 8 bytes and whole words.
    bodies.require(
        (key_bytes >= 0) & (key_bytes <= bodies.sizes - 8) & (key_bytes % 8 == 0),
        "the keys of the map lie outside of it",
    )
    keys = replace(bodies, at=bodies.at + 1, sizes=key_bytes)
    values = replace(bodies, at=bodies.at + 1 + key_bytes // 8, sizes=bodies.sizes - 8 - key_bytes)
    key_field, value_field = children(kind)
    key_lengths, key_array = _lists(keys, key_field, "key")
    value_lengths, value_array = _lists(values, value_field, "value")
    bodies.require(key_lengths == value_lengths, "the map has different numbers of keys and values")
    entries = _array(pa.struct([key_field, value_field]), len(key_array), None, children=[key_array, value_array])
    return _array(kind, count, valid, _offsets(key_lengths, here, count).astype(np.int32), children=[entries])


def _array(
    kind: pa.DataType,
    count: int,
    valid: Mask | None,
    *buffers: npt.NDArray[Any],
    children: list[pa.Array] | None = None,
) -> pa.Array:
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, count, [bitmap, *map(pa.py_buffer, buffers)], children=children)


def _offsets(lengths: Counts, here: Counts, count: int) -> Counts:
    if len(here) == count:
        return offsets_of(lengths)
    full = np.zeros(count, np.int64)
    full[here] = lengths
    return offsets_of(full)


def _expansion(here: Counts, count: int, valid: Mask) -> pa.Array:
    places = np.zeros(count, np.int64)
    places[here] = np.arange(len(here))
    return pa.array(places, mask=~valid)
