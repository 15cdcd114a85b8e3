"""Deletion vectors of Delta tables: the positions of the rows of a data file that no longer belong to the table.

    deletion_vector_<uuid>.bin    byte 1, then for each vector: int32 BE size, the vector, int32 BE CRC32 of the vector
    vector                        int32 LE magic, int64 LE number of bitmaps, then for each: int32 LE high half of the
                                  positions, a Roaring bitmap of the low halves
    Roaring bitmap                int32 LE cookie, number of containers, (uint16 key, uint16 rows - 1) for each, their
                                  offsets, the containers: sorted uint16 for up to 4096 rows, else a bitmap of 8 KiB

An action of the log names a vector by the file, in base 85, and the offset of its size. Source: the protocol of Delta Lake,
section "Deletion Vector Format", and the portable format of Roaring bitmaps.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion

Positions = npt.NDArray[np.int64]
"""Sorted positions of rows in a data file, without duplicates."""

_FILE_VERSION = b"\x01"
_MAGIC = 1681511377
_COOKIE, _COOKIE_WITH_RUNS = 12346, 12347
_MOST_IN_ARRAY = 4096
_BITMAP_BYTES = 8192
_OFFSETS_WITH_RUNS = 4
"""A bitmap with runs has offsets from this number of containers on."""
_ON_DISK_BY_ID, _INLINE = "u", "i"
_BASE85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_BASE85_AT = {letter: place for place, letter in enumerate(_BASE85)}
_ID_LETTERS = 20


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """The place of a vector, as an action of the log names it.

    file     the id of the file; None for a vector in the action itself
    inline   the bytes of such a vector
    offset   of its size in the file
    logged   the descriptor as the log has it; None for one that this program has made
    """

    file: uuid.UUID | None
    offset: int
    size_bytes: int
    rows: int
    inline: bytes = b""
    logged: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> str:
        """The path of the file in the table."""
        return f"deletion_vector_{self.file}.bin"

    @property
    def unique_id(self) -> str:
        """The part of the identity of a data file in the log: of the descriptor as the log has it, as in Spark."""
        found = self.as_json()
        place = "" if found.get("offset") is None else f"@{found['offset']}"
        return f"{found['storageType']}{found['pathOrInlineDv']}{place}"

    def as_json(self) -> dict[str, Any]:
        """Encode the descriptor for an action. One that was read stays as it was: its text is a part of its identity."""
        if self.logged is not None:
            return {name: value for name, value in self.logged.items() if value is not None}
        place = {"offset": self.offset} if self.file else {}
        return {
            "storageType": _ON_DISK_BY_ID if self.file else _INLINE,
            "pathOrInlineDv": _base85(self.file.bytes if self.file else self.inline + bytes(-len(self.inline) % 4)),
            **place,
            "sizeInBytes": self.size_bytes,
            "cardinality": self.rows,
        }


def parse_descriptor(found: dict[str, Any], path: str) -> Descriptor:
    """Parse the descriptor in an action of the file `path`. Raises `UnknownFormatVersion` for a vector in another folder;
    `CorruptFile`."""
    try:
        kind, text = str(found["storageType"]), str(found["pathOrInlineDv"])
        size, rows = int(found["sizeInBytes"]), int(found["cardinality"])
        if kind == _INLINE:
            inline = _from_base85(text)[:size]
            return Descriptor(file=None, offset=0, size_bytes=size, rows=rows, inline=inline, logged=found)
        if kind == _ON_DISK_BY_ID and len(text) == _ID_LETTERS:
            file, offset = uuid.UUID(bytes=_from_base85(text)), int(found.get("offset") or 0)
            return Descriptor(file=file, offset=offset, size_bytes=size, rows=rows, logged=found)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile("has an invalid deletion vector", path=path) from error
    raise UnknownFormatVersion(
        f"has a deletion vector of the storage type {kind[:8]!r} in another folder, which another program wrote",
        path=path,
        hint="publish the state to another location",
    )


def encode_file(vectors: Iterable[Positions], file: uuid.UUID) -> tuple[bytes, list[Descriptor]]:
    """Encode a file with these vectors; return it with their descriptors, in order."""
    data, found = bytearray(_FILE_VERSION), list[Descriptor]()
    for positions in vectors:
        vector = encode(positions)
        found.append(Descriptor(file=file, offset=len(data), size_bytes=len(vector), rows=len(positions)))
        data += struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    return bytes(data), found


def parse_from_file(data: bytes, one: Descriptor) -> Positions:
    """Parse a vector of a file, from the bytes of its size on. Raises `CorruptFile`."""
    end = 4 + one.size_bytes
    if len(data) < end + 4 or int.from_bytes(data[:4], "big") != one.size_bytes:
        raise CorruptFile("has a deletion vector of another size than the log says", path=one.path)
    vector = data[4:end]
    if zlib.crc32(vector) != int.from_bytes(data[end : end + 4], "big"):
        raise CorruptFile("has a deletion vector with a wrong checksum", path=one.path)
    return parse(vector, one.path)


def encode(positions: Positions) -> bytes:
    """Encode a vector."""
    highs = positions >> 32
    parts = [
        struct.pack("<i", high) + _roaring((positions[highs == high] & 0xFFFFFFFF).astype(np.uint32))
        for high in np.unique(highs).tolist()
    ]
    return b"".join([struct.pack("<iq", _MAGIC, len(parts)), *parts])


def parse(data: bytes, path: str) -> Positions:
    """Parse a vector of the file `path`. Raises `CorruptFile`."""
    try:
        magic, count = struct.unpack_from("<iq", data)
        if magic != _MAGIC:
            raise ValueError("the magic number is wrong")
        at, found = 12, [np.zeros(0, np.int64)]
        for _ in range(count):
            (high,) = struct.unpack_from("<i", data, at)
            low, at = _parse_roaring(data, at + 4)
            found.append(low + (high << 32))
        return np.concatenate(found)
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptFile(f"has an invalid deletion vector: {error}", path=path) from error


def _roaring(low: npt.NDArray[np.uint32]) -> bytes:
    keys = (low >> 16).astype(np.uint16)
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(low) else np.zeros(0, np.int64)
    pieces = np.split((low & 0xFFFF).astype("<u2"), starts[1:])
    containers = [piece.tobytes() if len(piece) <= _MOST_IN_ARRAY else _bits(piece) for piece in pieces if len(piece)]
    head = np.empty((len(containers), 2), "<u2")
    head[:, 0] = keys[starts]
    head[:, 1] = [len(piece) - 1 for piece in pieces if len(piece)]
    first = 8 + 8 * len(containers)
    offsets = first + np.r_[0, np.cumsum([len(one) for one in containers])][:-1]
    return b"".join(
        [struct.pack("<II", _COOKIE, len(containers)), head.tobytes(), offsets.astype("<u4").tobytes(), *containers]
    )


def _bits(piece: npt.NDArray[np.uint16]) -> bytes:
    bits = np.zeros(8 * _BITMAP_BYTES, np.uint8)
    bits[piece] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _parse_roaring(data: bytes, start: int) -> tuple[Positions, int]:
    """Return the rows of the bitmap at `start`, and its end."""
    (cookie,) = struct.unpack_from("<I", data, start)
    at, has_runs = start + 4, cookie & 0xFFFF == _COOKIE_WITH_RUNS
    if has_runs:
        count = (cookie >> 16) + 1
        flags = np.unpackbits(_array(data, at, (count + 7) // 8, "u1"), bitorder="little")
        at += (count + 7) // 8
    elif cookie == _COOKIE:
        (count,) = struct.unpack_from("<I", data, at)
        flags, at = np.zeros(count, np.uint8), at + 4
    else:
        raise ValueError(f"the cookie {cookie} is unknown")
    head = _array(data, at, 2 * count, "<u2").astype(np.int64).reshape(-1, 2)
    at += 4 * count
    if not has_runs or count >= _OFFSETS_WITH_RUNS:
        at += 4 * count
    found = [np.zeros(0, np.int64)]
    for (key, less_one), is_run in zip(head.tolist(), flags[:count].tolist(), strict=True):
        if is_run:
            (runs,) = struct.unpack_from("<H", data, at)
            pairs = _array(data, at + 2, 2 * runs, "<u2").astype(np.int64).reshape(-1, 2)
            at += 2 + 4 * runs
            rows = np.concatenate([np.arange(first, first + more + 1) for first, more in pairs.tolist()])
        elif less_one < _MOST_IN_ARRAY:
            rows = _array(data, at, less_one + 1, "<u2").astype(np.int64)
            at += 2 * (less_one + 1)
        else:
            rows = np.flatnonzero(np.unpackbits(_array(data, at, _BITMAP_BYTES, "u1"), bitorder="little"))
            at += _BITMAP_BYTES
        found.append(rows + (key << 16))
    return np.concatenate(found), at


def _array(data: bytes, at: int, count: int, kind: str) -> npt.NDArray[Any]:
    return np.frombuffer(data, kind, count, at)


def _base85(data: bytes) -> str:
    """Encode bytes as ZeroMQ's Z85."""
    letters: list[str] = []
    for (word,) in struct.iter_unpack(">I", data):
        digits = []
        for _ in range(5):
            word, digit = divmod(word, 85)
            digits.append(_BASE85[digit])
        letters += reversed(digits)
    return "".join(letters)


def _from_base85(text: str) -> bytes:
    words = []
    for begin in range(0, len(text), 5):
        word = 0
        for letter in text[begin : begin + 5]:
            word = word * 85 + _BASE85_AT[letter]
        words.append(struct.pack(">I", word))
    return b"".join(words)
