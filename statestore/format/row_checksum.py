"""Checksums of single records, an option of a query (`spark.sql.streaming.stateStore.rowChecksum.enabled`).

    put, merge      key, value = int32 CRC32C(key, value), int32 length, value       stored unchanged in the database
    delete          key = int32 CRC32C(key), key                                     the database gets the bare key
    delete-range    begin, end as a value                                            the database gets the bare end

All integers are little-endian.
"""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np

from statestore.errors import CorruptFile
from statestore.format.changelog import Changes, Kind

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
            raise CorruptFile(
                f"has a record that does not match its checksum; its key starts with {bytes(key[:24]).hex()}",
                path=path,
                hint="restore the file from a backup, or load an older version",
            )
    return Changes(
        buffer=changes.buffer,
        key_start=key_start,
        key_length=key_length,
        value_start=value_start,
        value_length=value_length,
        kinds=changes.kinds,
    )


def checksum(*pieces: memoryview | bytes) -> int:
    """Return the CRC32C of the concatenated pieces."""
    found = 0
    for piece in pieces:
        found = google_crc32c.extend(found, bytes(piece))
    return int(found)
