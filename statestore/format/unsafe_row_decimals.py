"""Decimals of 19 to 38 digits: conversion between Arrow's 128-bit integers and the bytes of Java's
BigInteger.toByteArray.

Arrow stores an unscaled value as two little-endian words (low, high) in two's complement. Spark stores the same number
big-endian, in the fewest bytes that contain the number with its sign.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

# An unsigned number below _NEXT_BYTE[i] fits into i + 1 bytes with its sign.
_NEXT_BYTE = np.uint64(1) << np.arange(7, 64, 8, dtype=np.uint64)


def to_minimal_bytes(low: Words, high: Words) -> tuple[Words, npt.NDArray[np.int64]]:
    """Return the minimal big-endian bytes, left-aligned in 16 zeroed bytes as (n, 2) words, and their count: 1 to
    16."""
    sign = _sign(high)
    magnitude_high, magnitude_low = high ^ sign, low ^ sign
    sizes = np.where(
        magnitude_high != 0,
        9 + np.searchsorted(_NEXT_BYTE, magnitude_high, side="right"),
        1 + np.searchsorted(_NEXT_BYTE, magnitude_low, side="right"),
    ).astype(np.int64)
    bits = (8 * (16 - sizes)).astype(np.uint64)
    # A shift of a 64-bit word by 64 or more is undefined: `near` and `far` stay below, and `where` selects the valid one.
    near, far = np.minimum(bits, 63), np.maximum(bits, 64) - np.uint64(64)
    carried = np.where(near > 0, low >> (np.uint64(64) - np.maximum(near, 1)), 0)
    first = np.where(bits < 64, (high << near) | carried, low << far)
    second = np.where(bits < 64, low << near, 0)
    return np.stack([first.byteswap(), second.byteswap()], axis=1), sizes


def from_minimal_bytes(first: Words, second: Words, sizes: npt.NDArray[np.int64]) -> tuple[Words, Words]:
    """Return the words (low, high) of numbers from `sizes` (1 to 16) big-endian bytes, left-aligned in two words."""
    first, second = first.byteswap(), second.byteswap()
    bits = (8 * (16 - sizes)).astype(np.uint64)
    near, far = np.minimum(bits, 63), np.maximum(bits, 64) - np.uint64(64)
    signed = first.view(np.int64)
    carried = np.where(near > 0, first << (np.uint64(64) - np.maximum(near, 1)), 0)
    low = np.where(bits < 64, (second >> near) | carried, (signed >> far.view(np.int64)).view(np.uint64))
    high = np.where(bits < 64, (signed >> near.view(np.int64)).view(np.uint64), _sign(first))
    return low, high


def sign_words(low: Words) -> Words:
    """Return the high words of numbers from their low words."""
    return _sign(low)


def too_wide(low: Words, high: Words, precision: int) -> npt.NDArray[np.bool_]:
    """Return which numbers have more than `precision` decimal digits."""
    sign = _sign(high)
    magnitude_high, magnitude_low = high ^ sign, low ^ sign
    most = 10**precision - 1
    # The flipped bits of a negative number -n are n - 1. `most` is odd, so 1 can be subtracted from its low word.
    most_low = np.uint64(most & (2**64 - 1)) - (sign & np.uint64(1))
    most_high = np.uint64(most >> 64)
    wide: npt.NDArray[np.bool_] = magnitude_low > most_low
    wide &= magnitude_high == most_high
    wide |= magnitude_high > most_high
    return wide


def _sign(words: Words) -> Words:
    return (words.view(np.int64) >> 63).view(np.uint64)
