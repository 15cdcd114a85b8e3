"""Checksums in files beside a file: Spark's sidecars, and the hidden ones of Hadoop on a local disk.

    24_<id>.changelog.crc      {"algorithm":"CRC32C","value":<signed int32>,"mainFileSize":n,...}     Spark 4.1 and later
    .24_<id>.changelog.crc     "crc\\0", int n, then an int for each n bytes of the file: its CRC32     Hadoop, `file:` only

Spark writes a sidecar beside changelogs and zips of structure V2; 4.1 also beside changelogs of V1. It rejects a file
that does not match its sidecar, and reads a file without a sidecar unchecked. Hadoop verifies its own checksums if
Spark reads through `FileSystem`: the zips of V1, and all tables.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import google_crc32c

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format.untrusted import BAD_VALUES, json_object

_HADOOP = struct.Struct(">4sI")
_MAGIC = b"crc\0"
_SUM_BYTES = 4
_LARGEST_CHUNK_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Checksum:
    """The checksum of a whole file: its CRC32C as Spark's signed number, and its size in bytes."""

    value: int
    size_bytes: int


def parse_sidecar(data: bytes, path: str) -> Checksum:
    """Parse a sidecar into the checksum of its file. Raises `CorruptFile`; `UnknownFormatVersion` for another
    algorithm."""
    body = json_object(data, path)
    try:
        algorithm = str(body["algorithm"])
        said = Checksum(int(body["value"]), int(body["mainFileSize"]))
    except BAD_VALUES as error:
        raise CorruptFile("has a missing or invalid field", path=path) from error
    if algorithm != "CRC32C":
        raise UnknownFormatVersion(f"has checksum algorithm {algorithm[:20]!r}; only CRC32C is supported", path=path)
    return said


def checksum(pieces: Iterable[bytes]) -> Checksum:
    """Compute the checksum of a file that arrives in pieces."""
    value = size_bytes = 0
    for piece in pieces:
        value = google_crc32c.extend(value, piece)
        size_bytes += len(piece)
    return Checksum(value - (1 << 32) if value >= 1 << 31 else value, size_bytes)


def first_misfit(hidden: bytes, pieces: Iterable[bytes]) -> int | None:
    """Return the first byte of the first chunk that does not match a hidden checksum of Hadoop; None if all chunks
    match.

    A checksum file of another origin is ignored, as Hadoop does. One that is too short does not match.
    """
    if len(hidden) < _HADOOP.size:
        return None
    magic, chunk_bytes = _HADOOP.unpack_from(hidden)
    if magic != _MAGIC or not 0 < chunk_bytes <= _LARGEST_CHUNK_BYTES:
        return None
    sums = hidden[_HADOOP.size :]
    done = 0
    for number, chunk in enumerate(_chunks(pieces, chunk_bytes)):
        said = sums[number * _SUM_BYTES : (number + 1) * _SUM_BYTES]
        if said != zlib.crc32(chunk).to_bytes(_SUM_BYTES, "big"):
            return done
        done += len(chunk)
    return None


def _chunks(pieces: Iterable[bytes], size_bytes: int) -> Iterable[bytes]:
    """Split the same bytes into chunks of that size; the last chunk may be shorter."""
    left = b""
    for piece in pieces:
        left += piece
        whole = len(left) - len(left) % size_bytes
        yield from (left[start : start + size_bytes] for start in range(0, whole, size_bytes))
        left = left[whole:]
    if left:
        yield left
