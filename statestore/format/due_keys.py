"""Keys that are sorted by time: the entries of an index, which tell which keys of a state are due, and when; and the keys
of a state whose key columns contain the time.

    key      int32 LE 49 · version byte · UnsafeRow(key group, due_at) · version byte · UnsafeRow(key columns)
    value    version byte · UnsafeRow(batch), or UnsafeRow(value columns) in a state

`due_at` is a text of fixed width, such as 2026-11-25T14:21:38.123Z. The bytes of UnsafeRow's numbers do not sort, but those
of this text do. So the due keys of a key group are one range, and Spark's reader shows the time. The rest of the key is
that of the state (`state_rows`), so that one is made from the other without decoding.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.format.state_rows import KEY_GROUP, bare_keys, encode_heads, key_groups_of
from statekeeper.statestore.format.unsafe_row import decode_rows

DUE_AT = pa.field("due_at", pa.string(), nullable=False)
VALUES = pa.schema([pa.field("batch", pa.int64(), nullable=False)])
"""Value columns of an index: the batch that wrote the entry."""

FIRST_MS, END_MS = -62_135_596_800_000, 253_402_300_800_000
"""The times that the text can show, in ms since the epoch: the years 1 to 9999."""

_TEXT_BYTES = 24
_TEXT_AT = 24
"""Offset of the text in the row: after the null bits and the slots of two columns."""
_PREFIX_BYTES = 1 + _TEXT_AT + _TEXT_BYTES
_START = struct.pack("<i", _PREFIX_BYTES) + b"\0" + bytes(8)
_SLOT = struct.pack("<q", _TEXT_AT << 32 | _TEXT_BYTES)
_GROUP_AT = len(_START)
_TEXT_IN_KEY = len(_START) + 8 + len(_SLOT)
_HEAD_BYTES = _TEXT_IN_KEY + _TEXT_BYTES + 1
_NO_KEY_IS_LONGER = 2**31 - 1

Times = npt.NDArray[np.int64]
"""Milliseconds since the epoch; shape (rows,)."""


def due_key_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of an index's key. `columns`: the key columns of the state."""
    return pa.schema([KEY_GROUP, DUE_AT, *columns])


def encode_due_keys(keys: pa.LargeBinaryArray, due_ms: Times) -> pa.LargeBinaryArray:
    """Encode the entries of an index. `keys`: keys of the state, see `state_rows.encode_keys`; shape (rows,) as `due_ms`.

    Each time is at least `FIRST_MS` and less than `END_MS`.
    """
    heads = np.zeros((len(keys), _HEAD_BYTES), dtype=np.uint8)
    heads[:, :_GROUP_AT] = np.frombuffer(_START, np.uint8)
    groups = key_groups_of(keys)
    heads[:, _GROUP_AT : _GROUP_AT + 4] = groups.astype("<i4").view(np.uint8).reshape(-1, 4)
    heads[:, _GROUP_AT + 8 : _TEXT_IN_KEY] = np.frombuffer(_SLOT, np.uint8)
    heads[:, _TEXT_IN_KEY : _TEXT_IN_KEY + _TEXT_BYTES] = _texts(due_ms)
    return _joined(heads, bare_keys(keys))


def keys_of(entries: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return the keys of the state that the entries of an index name; shape (rows,)."""
    groups = key_groups_of(entries)
    return _joined(encode_heads(groups), pc.binary_slice(entries, _HEAD_BYTES, _NO_KEY_IS_LONGER))


def decode_due_keys(entries: pa.LargeBinaryArray, columns: pa.Schema) -> pa.Table:
    """Decode the key columns of the entries. Raises `CorruptFile`."""
    return decode_rows(entries, columns, skip=_HEAD_BYTES)


def due_range(key_group: int, now_ms: int, after_ms: int | None = None) -> tuple[bytes, bytes]:
    """Return the first key and the end, exclusive, of the keys of a key group that are due at `now_ms`, and not at
    `after_ms` already."""
    start = _START + struct.pack("<q", key_group) + _SLOT
    first = b"" if after_ms is None else _beginning(after_ms + 1)
    return start + first, start + _beginning(now_ms + 1)


def _beginning(time_ms: int) -> bytes:
    return _texts(np.array([min(max(time_ms, FIRST_MS), END_MS - 1)], np.int64)).tobytes()


def _texts(times_ms: Times) -> npt.NDArray[np.uint8]:
    """Return the bytes of the times as text; shape (rows, 24)."""
    # Formatting takes most of the time of an entry, and many keys have the same time.
    different, places = np.unique(times_ms, return_inverse=True)
    texts = np.datetime_as_string(different.astype("datetime64[ms]"), unit="ms", timezone="UTC")
    return texts.astype(f"S{_TEXT_BYTES}").view(np.uint8).reshape(-1, _TEXT_BYTES)[places]


def _joined(heads: npt.NDArray[np.uint8], tails: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Put one head of fixed width before each tail."""
    rows, width = heads.shape
    offsets = pa.py_buffer(np.arange(0, (rows + 1) * width, width, dtype=np.int64))
    first = pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows, [None, offsets, pa.py_buffer(heads.tobytes())])
    return pc.binary_join_element_wise(first, tails, pa.scalar(b"", pa.large_binary()))
