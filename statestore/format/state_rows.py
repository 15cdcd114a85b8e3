"""Encoding of state rows as keys and values of a store, in the layout of Spark's own reader.

    key      int32 LE 17 · version byte · UnsafeRow(key group) · version byte · UnsafeRow(key columns)
    value    version byte · UnsafeRow(value columns)

The key group is a prefix column (`numColsPrefixKey` = 1), so that each group is one range of bytes, as rescaling by
clip and ingest requires (FLIP-428). It is an int; its bytes sort correctly only up to 255. See docs/decisions/001.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.unsafe_row import decode_rows, encode_rows, normalise_keys

KEY_GROUP = pa.field("key_group", pa.int32(), nullable=False)

_ENCODING_VERSION = b"\0"
_PREFIX_ROW = struct.Struct("<qq")
_PREFIX_BYTES = len(_ENCODING_VERSION) + _PREFIX_ROW.size
HEAD_BYTES = 4 + _PREFIX_BYTES + len(_ENCODING_VERSION)
_NO_KEY_IS_LONGER = 2**31 - 1
_GROUP_AT = 4 + len(_ENCODING_VERSION) + 8


def key_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of a store's key: the key group, then the key columns."""
    return pa.schema([KEY_GROUP, *columns])


def encode_keys(groups: np.ndarray, columns: pa.Table) -> pa.LargeBinaryArray:
    """Encode the keys of a store, one per row. `groups`: int32 of shape (rows,). Equal keys give equal bytes (-0.0,
    NaN)."""
    return encode_rows(normalise_keys(columns), head=encode_heads(groups))


def encode_heads(groups: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Encode the part of each key before its key columns; shape (rows,) to (rows, HEAD_BYTES)."""
    head = np.zeros((len(groups), HEAD_BYTES), dtype=np.uint8)
    head[:, :4] = np.frombuffer(struct.pack("<i", _PREFIX_BYTES), dtype=np.uint8)
    head[:, _GROUP_AT : _GROUP_AT + 4] = groups.astype("<i4").view(np.uint8).reshape(-1, 4)
    return head


def encode_bare_keys(columns: pa.Table) -> pa.LargeBinaryArray:
    """Encode keys without their key group: the result of `encode_keys` without the head."""
    return encode_rows(normalise_keys(columns))


def bare_keys(keys: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Cut the heads off a store's keys, for comparison with `encode_bare_keys`."""
    # If the end is omitted, Arrow computes a negative size for short keys (seen in 26.0: "Negative buffer resize").
    return pc.binary_slice(keys, HEAD_BYTES, _NO_KEY_IS_LONGER)


def decode_keys(keys: pa.LargeBinaryArray, columns: pa.Schema) -> pa.Table:
    """Decode the key columns of a store's keys. Raises `CorruptFile`."""
    return decode_rows(keys, columns, skip=HEAD_BYTES)


def group_prefix(group: int) -> bytes:
    """Return the bytes that all keys of a key group start with."""
    return struct.pack("<i", _PREFIX_BYTES) + _ENCODING_VERSION + _PREFIX_ROW.pack(0, group)


def key_group(key: bytes) -> int:
    """Return the key group of a store's key."""
    if len(key) < HEAD_BYTES:
        raise CorruptFile(f"a key has {len(key)} bytes, too few for a key group")
    return int(struct.unpack_from("<i", key, _GROUP_AT)[0])


def key_groups_of(keys: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    """Return the key group of each key of a store; shape (keys,). Raises `CorruptFile`."""
    if not len(keys):
        return np.zeros(0, np.int64)
    _, offsets_buffer, data = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    if (np.diff(offsets) < HEAD_BYTES).any():
        raise CorruptFile("a key is too short for a key group")
    places = offsets[:-1, None] + np.arange(_GROUP_AT, _GROUP_AT + 4)
    groups: npt.NDArray[np.int64] = np.frombuffer(data, np.uint8)[places].view("<i4")[:, 0].astype(np.int64)
    return groups


def encode_values(columns: pa.Table) -> pa.LargeBinaryArray:
    """Encode the values of a store, one per row."""
    return encode_rows(columns, head=_ENCODING_VERSION)


def decode_values(values: pa.LargeBinaryArray, columns: pa.Schema) -> pa.Table:
    """Decode the value columns of a store's values. Raises `CorruptFile`."""
    return decode_rows(values, columns, skip=len(_ENCODING_VERSION))
