"""Checksums of single records, an option of a query (`spark.sql.streaming.stateStore.rowChecksum.enabled`).

    put, merge      key, value = int32 CRC32C(key, value), int32 length, value       stored unchanged in the database
    delete          key = int32 CRC32C(key), key                                     the database gets the bare key
    delete-range    begin, end as a value                                            the database gets the bare end

All integers are little-endian. Files of Spark's default provider have no length: value = int32 CRC32C(key, value), value.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import google_crc32c
import numpy as np

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.changelog import Changes, Kind

_INT = struct.Struct("<I")
_CHECKSUM_BYTES = 4
_HEAD_BYTES = 8


def verified(changes: Changes, path: str) -> Changes:
    """Verify the checksums; return the records as the database stores them. Raises `CorruptFile` for a mismatch."""
    buffer = memoryview(changes.buffer)
    key_start, key_length, value_start, value_length = (column.copy() for column in changes.columns)
    kinds = changes.kinds if changes.kinds is not None else np.where(value_length < 0, Kind.DELETE, Kind.PUT)
    for place, kind in enumerate(kinds.tolist()):
        key = buffer[key_start[place] : key_start[place] + key_length[place]]
        value = buffer[value_start[place] : value_start[place] + max(0, int(value_length[place]))]
        if kind == Kind.DELETE:
            is_right = len(key) >= _CHECKSUM_BYTES and checksum(key[_CHECKSUM_BYTES:]) == _INT.unpack_from(key)[0]
            key_start[place] += _CHECKSUM_BYTES
            key_length[place] -= _CHECKSUM_BYTES
        else:
            is_right = len(value) >= _HEAD_BYTES and checksum(key, value[_HEAD_BYTES:]) == _INT.unpack_from(value)[0]
            if kind == Kind.DELETE_RANGE:
                value_start[place] += _HEAD_BYTES
                value_length[place] -= _HEAD_BYTES
        if not is_right:
            raise _mismatch(key, path)
    return Changes(
        buffer=changes.buffer,
        key_start=key_start,
        key_length=key_length,
        value_start=value_start,
        value_length=value_length,
        kinds=changes.kinds,
    )


def without(changes: Changes, path: str) -> Changes:
    """Verify the checksums in a file of Spark's default provider; return the records without them. Raises `CorruptFile`
    for a mismatch."""
    buffer = memoryview(changes.buffer)
    for key_at, key_size, value_at, value_size in zip(*(c.tolist() for c in changes.columns), strict=True):
        key, value = buffer[key_at : key_at + key_size], buffer[value_at : value_at + max(0, value_size)]
        covered, rest = ((key,), value) if value_size >= 0 else ((), key)
        expected, row = rest[:_CHECKSUM_BYTES], rest[_CHECKSUM_BYTES:]
        if len(expected) < _CHECKSUM_BYTES or checksum(*covered, row) != _INT.unpack(expected)[0]:
            raise _mismatch(key, path)
    cut_from_key = np.where(changes.value_length < 0, _CHECKSUM_BYTES, 0)
    cut_from_value = _CHECKSUM_BYTES - cut_from_key
    return Changes(
        buffer=changes.buffer,
        key_start=changes.key_start + cut_from_key,
        key_length=changes.key_length - cut_from_key,
        value_start=changes.value_start + cut_from_value,
        value_length=changes.value_length - cut_from_value,
    )


def added(keys: Sequence[bytes], values: Sequence[bytes | None]) -> tuple[list[bytes], list[bytes | None]]:
    """Add checksums to the values, and to the removed keys, as `without` expects them."""
    with_checksum: list[tuple[bytes, bytes | None]] = [
        (_INT.pack(checksum(key)) + key, None) if value is None else (key, _INT.pack(checksum(key, value)) + value)
        for key, value in zip(keys, values, strict=True)
    ]
    return [key for key, _ in with_checksum], [value for _, value in with_checksum]


def _mismatch(key: memoryview, path: str) -> CorruptFile:
    return CorruptFile(
        f"has a record that does not match its checksum; its key starts with {bytes(key[:24]).hex()}",
        path=path,
        hint="restore the file from a backup, or load an older version",
    )


def checksum(*pieces: memoryview | bytes) -> int:
    """Return the CRC32C of the concatenated pieces."""
    found = 0
    for piece in pieces:
        found = google_crc32c.extend(found, bytes(piece))
    return int(found)
