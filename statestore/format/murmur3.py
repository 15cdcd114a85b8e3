"""Spark's Murmur3 hash of columns, and the partition that it gives to a row.

    partition = hash(columns) mod partitions, never negative
    hash      = 42, then for each column: hash = murmur3(the value, seed = the hash so far)

    value                                               hashed as
    null                                                nothing: the hash stays
    boolean, byte, short, int, date, float              one word of 32 bits
    long, timestamp, double, day-time interval,         two words, the low one first
    decimal of up to 18 digits (its unscaled value)
    string, binary, wider decimal (as in an array)      whole little-endian words, then each byte behind them as a word
    struct, array                                       its fields or elements in order, as columns

Booleans are 0 or 1, smaller integers are sign-extended, -0.0 is 0.0, and every NaN is Java's NaN. A year-month interval is
an int. Spark's hash function rejects maps and variants. The bytes behind the last word differ from the published algorithm.
Source: HashPartitioning, HashExpression and Murmur3_x86_32.hashUnsafeBytes of Spark 4.2.

Numpy computes a whole batch of rows at once. The loops below count positions in strings and arrays, never rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekeeper.statestore.base.errors import UnsupportedType
from statekeeper.statestore.format import unsafe_row_decimals as decimals
from statekeeper.statestore.format.ragged import Bytes, Counts, Ragged, offsets_of
from statekeeper.statestore.format.types import machine_type
from statekeeper.statestore.format.unsafe_row_encode import decimal_words, fixed_values, list_parts, validity

Hashes = npt.NDArray[np.int32]
_Words = npt.NDArray[np.uint32]

SEED = 42
_BLOCK_ROWS = 1 << 15
"""Rows per step: the arrays of a step stay in the processor's cache."""

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_FIVE, _N = np.uint32(5), np.uint32(0xE6546B64)
_F1, _F2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_UNIT = "us"


def row_hashes(columns: pa.Table) -> Hashes:
    """Return Spark's `hash(...)` of the columns for each row. Raises `UnsupportedType` for a type without a hash."""
    require_hashes(columns.schema)
    found = [_batch_hashes(batch) for batch in columns.to_batches(max_chunksize=_BLOCK_ROWS)]
    hashes = np.concatenate(found) if found else np.full(columns.num_rows, SEED, np.uint32)
    return hashes.view(np.int32)


def partitions_of(hashes: Hashes, partitions: int) -> Hashes:
    """Return the partition of each hash, from 0 on: Spark's `pmod(hash, partitions)`."""
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    return hashes % np.int32(partitions)


def require_hashes(columns: Iterable[pa.Field]) -> None:
    """Raise `UnsupportedType` for the first column, at any depth, whose type Spark's hash function does not support."""
    for field in columns:
        _require_hash(field.type, field.name)


def _batch_hashes(batch: pa.RecordBatch) -> _Words:
    hashes = np.full(batch.num_rows, SEED, np.uint32)
    for column in batch.columns:
        hashes = _hashed(column, hashes)
    return hashes


def _require_hash(kind: pa.DataType, path: str) -> None:
    if pa.types.is_struct(kind):
        for field in kind:
            _require_hash(field.type, f"{path}.{field.name}")
    elif pa.types.is_list(kind):
        _require_hash(kind.value_type, f"{path}.element")
    elif not (machine_type(kind) or _is_bytes(kind) or pa.types.is_null(kind) or _is_long_in_arrow_only(kind)):
        raise UnsupportedType(
            f"column {path} has the type {kind}, which Spark's hash function does not support",
            hint="keep the number of partitions, or group by columns of other types",
        )


def _is_bytes(kind: pa.DataType) -> bool:
    is_a = pa.types
    tests = (is_a.is_string, is_a.is_large_string, is_a.is_binary, is_a.is_large_binary, is_a.is_decimal128)
    return any(test(kind) for test in tests)


def _is_long_in_arrow_only(kind: pa.DataType) -> bool:
    """Whether this is a day-time interval, which no state schema of this release has."""
    return bool(pa.types.is_duration(kind) and kind.unit == _UNIT)


def _hashed(array: pa.Array, seeds: _Words) -> _Words:
    """Return the hash of each value with its seed; of nulls the seed."""
    kind = array.type
    if pa.types.is_null(kind):
        return seeds
    if pa.types.is_struct(kind):
        hashes = seeds
        for i in range(kind.num_fields):
            hashes = _hashed(array.field(i), hashes)
    elif pa.types.is_list(kind):
        hashes = _hashed_lists(array, seeds)
    elif _is_bytes(kind) and machine_type(kind) is None:
        hashes = _hashed_bytes(_strings(array), seeds)
    else:
        hashes = _hashed_numbers(_numbers(array), seeds)
    valid = validity(array)
    return hashes if valid is None else np.where(valid, hashes, seeds)


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Return the numbers that Spark hashes instead of the values: uint32 or uint64."""
    kind = array.type
    if pa.types.is_decimal128(kind):
        return decimal_words(array)[0]
    machine = machine_type(kind) or np.dtype(np.int64)
    values = fixed_values(array, machine)
    if pa.types.is_floating(kind):
        return _normal_bits(values)
    if machine.itemsize == 8 or machine.kind == "u":
        return values if machine.itemsize == 8 else values.astype(np.uint32)
    return _as_words(values.view(machine))


def _normal_bits(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Normalize the bits of floats as Float.floatToIntBits does, and -0.0 as HashExpression does."""
    unsigned = bits.dtype.type
    sign = unsigned(1 << (8 * bits.dtype.itemsize - 1))
    infinity, nan = (0x7F800000, 0x7FC00000) if bits.dtype.itemsize == 4 else (0x7FF << 52, 0xFFF << 51)
    normal = np.where(bits == sign, unsigned(0), bits)
    normal[(bits & ~sign) > unsigned(infinity)] = unsigned(nan)
    return normal


def _strings(array: pa.Array) -> Ragged:
    """Return the bytes that Spark hashes: those of strings, or of Java's BigInteger for wide decimals."""
    if not pa.types.is_decimal128(array.type):
        return Ragged.from_arrow(array.cast(pa.large_binary()))
    low, high = decimal_words(array)
    packed, sizes = decimals.to_minimal_bytes(low, high)
    data = packed.view(np.uint8)
    return Ragged(offsets_of(sizes), data[np.arange(16) < sizes[:, None]])


def _hashed_numbers(numbers: npt.NDArray[Any], seeds: _Words) -> _Words:
    hashes = seeds.copy()
    if numbers.dtype.itemsize == 8:
        _mix(hashes, numbers.astype(np.uint32))
        numbers = numbers >> np.uint64(32)
    _mix(hashes, numbers.astype(np.uint32))
    return _finished(hashes, np.uint32(numbers.dtype.itemsize))


def _hashed_bytes(strings: Ragged, seeds: _Words) -> _Words:
    sizes, starts = strings.lengths, strings.offsets[:-1]
    words = _words_at_each_byte(strings.data)
    signed = strings.data.view(np.int8)
    hashes = _by_position(starts, sizes >> 2, 4, seeds, lambda hashes, at: _mix(hashes, words[at]))
    behind = starts + (sizes & ~np.int64(3))
    hashes = _by_position(behind, sizes & 3, 1, hashes, lambda hashes, at: _mix(hashes, _as_words(signed[at])))
    return _finished(hashes, sizes.astype(np.uint32))


def _hashed_lists(array: pa.Array, seeds: _Words) -> _Words:
    lengths, (elements,) = list_parts(array)

    def hash_elements(hashes: _Words, at: Counts) -> None:
        taken = elements.take(pa.Array.from_buffers(pa.int64(), len(at), [None, pa.py_buffer(at)]))
        hashes[:] = _hashed(taken, hashes)

    return _by_position(offsets_of(lengths)[:-1], lengths, 1, seeds, hash_elements)


def _by_position(
    starts: Counts, counts: Counts, stride: int, seeds: _Words, step: Callable[[_Words, Counts], None]
) -> _Words:
    """Return the hashes after one `step` for each position i, with the rows whose count is greater than i.

    `step` updates the hashes of these rows in place, from their data at `starts + stride * i`.
    """
    most = int(counts.max(initial=0))
    if not most:
        return seeds
    if int(counts.min()) == most:
        hashes = seeds.copy()
        for i in range(most):
            step(hashes, starts + stride * i)
        return hashes
    # With the longest first, the rows of each position are the front of the arrays.
    longest_first = np.argsort(-counts, kind="stable")
    negated = -counts[longest_first]
    sorted_hashes, at = seeds[longest_first], starts[longest_first]
    for i in range(most):
        end = int(np.searchsorted(negated, -i))
        step(sorted_hashes[:end], at[:end] + stride * i)
    hashes = np.empty_like(seeds)
    hashes[longest_first] = sorted_hashes
    return hashes


def _words_at_each_byte(data: Bytes) -> _Words:
    """Return a view of the little-endian words that start at each byte."""
    return np.ndarray((max(0, len(data) - 3),), "<u4", data, strides=(1,))


def _as_words(signed: npt.NDArray[Any]) -> _Words:
    return signed.astype(np.int32).view(np.uint32)


def _mix(hashes: _Words, words: _Words) -> None:
    """Mix one word into each hash, in place."""
    mixed = words * _C1
    mixed = (mixed << np.uint32(15)) | (mixed >> np.uint32(17))
    mixed *= _C2
    hashes ^= mixed
    rotated = (hashes << np.uint32(13)) | (hashes >> np.uint32(19))
    np.multiply(rotated, _FIVE, out=hashes)
    hashes += _N


def _finished(hashes: _Words, sizes: _Words | np.uint32) -> _Words:
    """Return the hashes of values of these sizes in bytes."""
    hashes = hashes ^ sizes
    for shift, factor in ((16, _F1), (13, _F2)):
        hashes ^= hashes >> np.uint32(shift)
        hashes *= factor
    hashes ^= hashes >> np.uint32(16)
    return hashes
