"""Ranges of keys, in the order of their bytes."""

from __future__ import annotations

FIRST_RESERVED_KEY = b"\xff\xff\xff\xff"
"""State keys start with a little-endian length or the version byte of a row, so that none sorts after this."""

KeyRange = tuple[bytes, bytes]
"""The first key, inclusive, and the end, exclusive."""


def range_of(prefix: bytes) -> KeyRange:
    """Return the range of all state keys that start with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return prefix, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else FIRST_RESERVED_KEY
