"""Changelogs: the changes of one version of one store, in the four versions of Spark's format.

    v1   records, int -1                                             stores without column families, structure V1
    v2   UTF "v2", typed records, byte 00                            stores with column families, structure V1
    v3   UTF "v3", UTF lineage JSON, records, int -1                 as v1, structure V2 (SPARK-49883)
    v4   UTF "v4", UTF lineage JSON, typed records, byte 00          as v2, structure V2

A record is `int key length, key, int value length, value`, big-endian; value length -1 deletes the key. A typed record
starts with one more byte, its `Kind`. Records apply in order: the last put or delete of a key wins; merges append to it.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.base.errors import (
    CorruptFile,
    LineageCeiling,
    RecordTooLarge,
    TooLarge,
    UnknownFormatVersion,
)
from statekeeper.statestore.format import compression
from statekeeper.statestore.format.changelog_header import HINT, UPGRADE, Header, header_of, lineage_json
from statekeeper.statestore.format.compression import Readable
from statekeeper.statestore.format.java_io import UTF_LIMIT_BYTES, Reader, utf
from statekeeper.statestore.format.limits import MOST_RECORD_BYTES, RECORD_HEAD_BYTES, WINDOW_BYTES, how_to_read


class Kind(enum.IntEnum):
    """The operation of a typed record. A DELETE_RANGE goes from the key, inclusive, to the value, exclusive."""

    PUT = 0x01
    DELETE = 0x10
    MERGE = 0x11
    DELETE_RANGE = 0x20


_END = struct.pack(">i", -1)
_KINDS = frozenset(Kind)
_LAST_WINS = (Kind.PUT, Kind.DELETE)
_INT = struct.Struct(">i")

_COLUMNS = ("key_start", "key_length", "value_start", "value_length")
PAIRS_AT_ONCE = 10_000
_LARGEST_COPIED_RECORD_BYTES = 1024
_FEW_SIZES = 8
"""With more different lengths of keys and values, a part of its own for each length is slower than a loop."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Changes as slices of one buffer, in write order unless stated otherwise: int64 arrays, one element per record.

    `value_length` is -1 for a delete. `kinds`: the `Kind` of each record; None if all records are puts and deletes.
    """

    buffer: bytes | bytearray
    key_start: np.ndarray
    key_length: np.ndarray
    value_start: np.ndarray
    value_length: np.ndarray
    kinds: np.ndarray | None = None

    @classmethod
    def of(cls, buffer: bytes | bytearray, *columns: np.ndarray, kinds: np.ndarray | None = None) -> Changes:
        """Return changes over the buffer. `columns`: the four arrays, in the order of their fields."""
        return cls(buffer=buffer, kinds=kinds, **dict(zip(_COLUMNS, columns, strict=True)))

    def __len__(self) -> int:
        return len(self.key_start)

    @property
    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The arrays, in the order of their fields."""
        return self.key_start, self.key_length, self.value_start, self.value_length

    def take(self, places: np.ndarray | slice) -> Changes:
        """Select the records at these places, in that order, over the same buffer."""
        kinds = None if self.kinds is None else self.kinds[places]
        return Changes.of(self.buffer, *(column[places] for column in self.columns), kinds=kinds)

    def behind(self, others: bytearray) -> Changes:
        """Append the bytes of these puts and deletes to `others` and return the changes over that buffer."""
        base = len(others)
        others += self.buffer
        return Changes.of(others, self.key_start + base, self.key_length, self.value_start + base, self.value_length)

    def pairs(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Iterate over all records as (key, value or None for a delete), in order. Only a few are in memory."""
        parts = (self.take(slice(first, first + PAIRS_AT_ONCE)) for first in range(0, len(self), PAIRS_AT_ONCE))
        return itertools.chain.from_iterable(map(_pairs, parts))


def _pairs(changes: Changes) -> Iterator[tuple[bytes, bytes | None]]:
    """Iterate over at least one record."""
    key_size, value_size = changes.key_length[0], changes.value_length[0]
    same = (changes.key_length == key_size).all() and (changes.value_length == value_size).all()
    # The value must follow its length directly; `row_checksum` may have cut off a prefix.
    same = same and (changes.value_start == changes.key_start + key_size + 4).all()
    if not same or not 0 <= key_size + value_size <= _LARGEST_COPIED_RECORD_BYTES:
        sizes = [np.unique(lengths) for lengths in (changes.key_length, changes.value_length)]
        if sum(map(len, sizes)) > _FEW_SIZES or max(map(max, sizes)) > _LARGEST_COPIED_RECORD_BYTES:
            return _pairs_one_by_one(changes)
        keys = _parts_by_size(changes.buffer, changes.key_start, changes.key_length, sizes[0])
        values = _parts_by_size(changes.buffer, changes.value_start, changes.value_length, sizes[1])
        return zip(keys, values, strict=True)
    # Unpacked in C; the loop below runs in Python. Each byte of the buffer starts a slot, and the slots overlap.
    record = struct.Struct(f"{key_size}s4x{value_size}s" if value_size >= 0 else f"{key_size}s")
    slots = np.ndarray(len(changes.buffer) - record.size + 1, f"V{record.size}", changes.buffer, strides=1)
    found = record.iter_unpack(slots[changes.key_start].tobytes())
    return found if value_size >= 0 else ((key, None) for (key,) in found)


def _parts_by_size(buffer: Any, starts: np.ndarray, lengths: np.ndarray, sizes: np.ndarray) -> Iterator[Any]:
    """Cut the parts of a buffer out, None for a negative length. `sizes`: the different lengths."""
    parts = np.empty(len(starts), object)
    for size in sizes[sizes >= 0].tolist():
        places = np.flatnonzero(lengths == size)
        if size == 0:
            parts[places] = b""
            continue
        slots = np.ndarray(len(buffer) - size + 1, f"V{size}", buffer, strides=1)
        parts[places] = slots[starts[places]].tolist()
    return iter(parts.tolist())


def _pairs_one_by_one(changes: Changes) -> Iterator[tuple[bytes, bytes | None]]:
    buffer = memoryview(changes.buffer)
    for key_at, key_size, value_at, value_size in zip(*(c.tolist() for c in changes.columns), strict=True):
        value = None if value_size < 0 else buffer[value_at : value_at + value_size].tobytes()
        yield buffer[key_at : key_at + key_size].tobytes(), value


def read_changelog(
    data: Readable, path: str, *, most_record_bytes: int = MOST_RECORD_BYTES
) -> tuple[Header, Iterator[Changes]]:
    """Read a compressed changelog: its header, and its records in pieces of about `WINDOW_BYTES`, to bound the memory.

    Pieces raise `RecordTooLarge` for a record of more than `most_record_bytes`, before they decompress it. They raise
    `CorruptFile` only at the damage: do not use any piece before the last one was read. Every length is checked.
    Otherwise raises as `read_header`, and `UnknownFormatVersion` for an unknown record kind.
    """
    blocks = compression.blocks(data, path)
    header, head, start = header_of(blocks, path)
    layout = _TYPED if header.is_typed else _PLAIN
    return header, _windows(head, start, blocks, path, layout=layout, most_record_bytes=most_record_bytes)


def read_records(data: Readable, path: str, *, most_record_bytes: int = MOST_RECORD_BYTES) -> Iterator[Changes]:
    """Read a compressed file that has only plain records and their end mark, without a header. Raises as
    `read_changelog`."""
    blocks = compression.blocks(data, path)
    return _windows(b"", 0, blocks, path, layout=_PLAIN, most_record_bytes=most_record_bytes)


@dataclass(frozen=True)
class _Layout:
    """The layout of records: the number of bytes before each record, and the end mark after the last one."""

    ahead: int
    end: bytes


_PLAIN = _Layout(0, _END)
_TYPED = _Layout(1, b"\0")


def _windows(
    head: bytes, start: int, blocks: Iterator[bytes], path: str, *, layout: _Layout, most_record_bytes: int
) -> Iterator[Changes]:
    pending = bytearray(head)
    wanted_bytes = WINDOW_BYTES
    ended = False
    while not ended:
        while len(pending) < wanted_bytes and not ended:
            block = next(blocks, None)
            if block is None:
                ended = True
            else:
                pending += block
        reader = Reader(bytes(pending), path)
        reader.position, start = start, 0
        changes, position = _parse_records(reader, layout, whole=ended)
        del pending[:position]
        if not ended:
            # One record may be larger than a window.
            needed_bytes = _next_record_bytes(reader, position, layout)
            if needed_bytes > most_record_bytes:
                raise RecordTooLarge(
                    f"has a record of {needed_bytes:,} bytes, above the limit of {most_record_bytes:,} bytes for a key "
                    "and its value; the file was not read",
                    path=path,
                    hint=how_to_read(needed_bytes),
                )
            wanted_bytes = max(WINDOW_BYTES, needed_bytes, len(pending) + 1)
        if len(changes) or ended:
            yield changes


def _next_record_bytes(reader: Reader, position: int, layout: _Layout) -> int:
    """Return the size that the record at `position` declares. Raises `CorruptFile` for bytes after the end mark."""
    plain = reader.data
    if plain.startswith(layout.end, position) and len(plain) > position + len(layout.end):
        raise CorruptFile(f"does not end with an end mark at byte {position:,}", path=reader.path, hint=HINT)
    at = position + layout.ahead
    if at + 4 > len(plain):
        return 0
    key_bytes = max(0, int(_INT.unpack_from(plain, at)[0]))
    value_at = at + 4 + key_bytes
    value_bytes = 0 if value_at + 4 > len(plain) else max(0, int(_INT.unpack_from(plain, value_at)[0]))
    return layout.ahead + 8 + key_bytes + value_bytes


_Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""The arrays of `Changes`: starts of keys, their lengths, starts of values, their lengths."""

_ONE_BY_ONE = 256
_FIRST_RUN = 64


def _parse_records(reader: Reader, layout: _Layout, *, whole: bool) -> tuple[Changes, int]:
    """Parse records from the reader's position; also return the end of the last one. `whole`: the end mark must follow.

    Rows of fixed-width columns have one length. Long runs of such records are found at once, others in a loop.
    """
    plain, position = reader.data, reader.position
    found: list[_Columns] = []
    more = True
    while more:
        alike, position = _alike_records(plain, position, layout)
        others, position, more = _records_one_by_one(reader, position, layout)
        found += [alike, others]
    if whole and plain[position:] != layout.end:
        raise CorruptFile(
            f"does not end with an end mark at byte {position:,} of {len(plain):,}", path=reader.path, hint=HINT
        )
    at = position + layout.ahead
    if not whole and at + 4 <= len(plain) and (key_size := int(_INT.unpack_from(plain, at)[0])) < -1:
        raise CorruptFile(f"has an impossible key length {key_size:,} at byte {at:,}", path=reader.path, hint=HINT)
    changes = Changes.of(plain, *(np.concatenate(column) for column in zip(*found, strict=True)))
    return (changes if layout is _PLAIN else replace(changes, kinds=_kinds(reader, changes))), position


def _kinds(reader: Reader, changes: Changes) -> np.ndarray | None:
    """Return the kind of each typed record; None if the last record of a key wins. Raises for an unknown kind."""
    key_start, value_length = changes.key_start, changes.value_length
    kinds: np.ndarray = np.frombuffer(reader.data, np.uint8)[key_start - 5]
    for kind in np.unique(kinds).tolist():
        if kind not in _KINDS:
            place = int(key_start[kinds == kind][0]) - 5
            raise UnknownFormatVersion(
                f"has a record of the unknown kind 0x{kind:02x} at byte {place:,}", path=reader.path, hint=UPGRADE
            )
    odd = (kinds == Kind.DELETE) != (value_length < 0)
    if odd.any():
        place = int(key_start[odd][0]) - 5
        raise CorruptFile(
            f"has at byte {place:,} a delete with a value, or a put without a value", path=reader.path, hint=HINT
        )
    return None if np.isin(kinds, _LAST_WINS).all() else kinds


def _alike_records(plain: bytes, start: int, layout: _Layout) -> tuple[_Columns, int]:
    """Find the records from `start` on with the first record's kind and lengths, and their end."""
    first_at = start + layout.ahead
    try:
        (key_size,) = _INT.unpack_from(plain, first_at)
        (value_size,) = _INT.unpack_from(plain, first_at + 4 + max(key_size, 0))
    except struct.error:
        key_size = -1
        value_size = 0
    if layout.ahead and plain[start : start + 1] == layout.end:
        key_size = -1
    width = layout.ahead + 8 + key_size + max(value_size, 0)
    count = 0
    if key_size >= 0 and value_size >= -1:
        available = (len(plain) - start) // width
        lengths_at = np.r_[0 : layout.ahead + 4, layout.ahead + 4 + key_size : layout.ahead + 8 + key_size]
        step = _FIRST_RUN
        # The step doubles, so that the records examined in vain never outnumber the records found.
        while count < available:
            step = min(step, available - count)
            records = np.frombuffer(plain, np.uint8, step * width, start + count * width).reshape(step, width)
            first = np.frombuffer(plain, np.uint8, width, start)
            other = (records[:, lengths_at] != first[lengths_at]).any(axis=1)
            if other.any():
                count += int(other.argmax())
                break
            count += step
            step *= 2
    keys_at = start + layout.ahead + 4 + width * np.arange(count, dtype=np.int64)
    key_lengths, value_lengths = (np.full(count, size, np.int64) for size in (key_size, value_size))
    return (keys_at, key_lengths, keys_at + key_size + 4, value_lengths), start + width * count


def _records_one_by_one(reader: Reader, position: int, layout: _Layout) -> tuple[_Columns, int, bool]:
    """Parse a few records from `position` on. Return them, their end, and whether more may follow."""
    plain, ahead = reader.data, layout.ahead
    limit = len(plain)
    int_at = _INT.unpack_from
    columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
    key_start, key_length, value_start, value_length = (c.append for c in columns)
    more = False
    with contextlib.suppress(struct.error):
        for _ in range(_ONE_BY_ONE):
            # For typed records, the end mark is a byte in the place of a kind.
            if ahead and plain[position : position + 1] == layout.end:
                break
            (key_size,) = int_at(plain, position + ahead)
            if key_size < 0:
                break
            key_at = position + ahead + 4
            (value_size,) = int_at(plain, key_at + key_size)
            value_at = key_at + key_size + 4
            end = value_at + (value_size if value_size > 0 else 0)
            if value_size < -1:
                raise CorruptFile(
                    f"has impossible value length {value_size:,} before byte {value_at:,}", path=reader.path
                )
            if end > limit:
                break
            position = end
            key_start(key_at)
            key_length(key_size)
            value_start(value_at)
            value_length(value_size)
        else:
            more = True
    key_starts, key_lengths, value_starts, value_lengths = (np.array(c, dtype=np.int64) for c in columns)
    return (key_starts, key_lengths, value_starts, value_lengths), position, more


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
