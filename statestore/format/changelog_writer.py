"""The writer of changelogs."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.errors import LineageCeiling, TooLarge
from statekeeper.statestore.format import compression
from statekeeper.statestore.format.changelog import Header
from statekeeper.statestore.format.java_io import UTF_LIMIT_BYTES, utf
from statekeeper.statestore.format.limits import MOST_RECORD_BYTES, RECORD_HEAD_BYTES, how_to_read
from statekeeper.statestore.format.names import VersionId

_END = struct.pack(">i", -1)
_INT = struct.Struct(">i")


def lineage_json(lineage: Iterable[VersionId]) -> str:
    """Return the lineage as Spark writes it into the header of a changelog."""
    items = [{"version": item.version, "checkpointUniqueId": item.id} for item in lineage]
    return json.dumps(items, separators=(",", ":"))


def lineage_bytes(lineage: Iterable[VersionId]) -> int:
    """Return the size of a lineage in the header. The limit is `UTF_LIMIT_BYTES`."""
    return len(lineage_json(lineage))


_SHOWN_KEY_BYTES = 64

_ONE_BY_ONE_RECORDS = 100
"""Up to this number, a loop is faster than the calls of Arrow."""


class ChangelogWriter:
    """Encodes and compresses changes into `sink` as they arrive. Memory is bounded by one batch of changes.

    Writes v1 if `header.lineage` is None, else v3. Only Spark writes typed records. The constructor raises
    `LineageCeiling` if the lineage does not fit. `most_record_bytes`: the limit of the readers; `path`, `root`: for
    errors.
    """

    def __init__(
        self,
        sink: BinaryIO,
        header: Header,
        *,
        codec: str = "lz4",
        most_record_bytes: int = MOST_RECORD_BYTES,
        path: str | None = None,
        root: str | None = None,
    ) -> None:
        self._most_record_bytes = most_record_bytes
        self._path = path
        self._root = root
        self.records = 0
        self.record_bytes = 0
        self._stream = compression.writer(codec, sink)
        if header.lineage is not None:
            text = lineage_json(header.lineage)
            if len(text) > UTF_LIMIT_BYTES:
                raise LineageCeiling(
                    f"a lineage of {len(header.lineage)} versions takes {len(text):,} bytes; the limit is "
                    f"{UTF_LIMIT_BYTES:,}",
                    hint="stop the query, then run: statekeeper snapshot ROOT --at-head",
                )
            self._stream.write(utf("v3") + utf(text))

    def append(self, keys: pa.LargeBinaryArray, values: pa.LargeBinaryArray) -> None:
        """Append one record for each key, in order; a null value deletes its key. Raises `TooLarge`, before any of them is
        appended, for a record that a reader would reject."""
        if len(keys) != len(values):
            raise ValueError(f"keys and values have different lengths: {len(keys)} and {len(values)}")
        self._require_readable(keys, values)
        if len(keys) <= _ONE_BY_ONE_RECORDS:
            self._append_one_by_one(keys.to_pylist(), values.to_pylist())
            return
        present = pc.fill_null(values, b"")
        value_lengths = np.where(values.is_null().to_numpy(zero_copy_only=False), -1, _lengths(present))
        records = pc.binary_join_element_wise(
            _big_endian_ints(_lengths(keys)), keys, _big_endian_ints(value_lengths), present, pa.scalar(b"", keys.type)
        )
        offsets = _offsets(records)
        self._stream.write(memoryview(records.buffers()[2])[offsets[0] : offsets[-1]])
        self.records += len(keys)
        self.record_bytes += int(offsets[-1] - offsets[0])

    def _require_readable(self, keys: pa.LargeBinaryArray, values: pa.LargeBinaryArray) -> None:
        at_most = RECORD_HEAD_BYTES + sum(int(offsets[-1] - offsets[0]) for offsets in map(_offsets, (keys, values)))
        if at_most <= self._most_record_bytes:
            return
        sizes = RECORD_HEAD_BYTES + _lengths(keys) + _lengths(pc.fill_null(values, b""))
        largest = int(sizes.argmax())
        if sizes[largest] <= self._most_record_bytes:
            return
        key = keys[largest].as_py()
        shown = key[:_SHOWN_KEY_BYTES].hex() + ("..." if len(key) > _SHOWN_KEY_BYTES else "")
        error = TooLarge(
            f"key {shown} has a value of {sizes[largest] - RECORD_HEAD_BYTES - len(key):,} bytes; with its key it exceeds "
            f"the limit of {self._most_record_bytes:,} bytes and could not be read again; nothing was committed",
            path=self._path,
            hint=f"make the value smaller, or {how_to_read(int(sizes[largest]), root=self._root)}",
        )
        error.key = key
        raise error

    def _append_one_by_one(self, keys: list[bytes], values: list[bytes | None]) -> None:
        parts: list[bytes] = []
        for key, value in zip(keys, values, strict=True):
            parts += (_INT.pack(len(key)), key, _INT.pack(-1 if value is None else len(value)), value or b"")
        records = b"".join(parts)
        self._stream.write(records)
        self.records += len(keys)
        self.record_bytes += len(records)

    def finish(self) -> None:
        """Write the end mark. The sink remains open."""
        self._stream.write(_END)
        self._stream.finish()


def _offsets(array: pa.LargeBinaryArray) -> np.ndarray:
    return np.frombuffer(array.buffers()[1], dtype=np.int64)[array.offset : array.offset + len(array) + 1]


def _lengths(array: pa.LargeBinaryArray) -> np.ndarray:
    return np.diff(_offsets(array))


def _big_endian_ints(values: np.ndarray) -> pa.LargeBinaryArray:
    data = pa.py_buffer(values.astype(">i4"))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(values), [None, data]).cast(pa.large_binary())
