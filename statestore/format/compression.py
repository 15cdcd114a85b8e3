"""The framing of compressed changelogs: lz4-java's block stream, Spark's default codec.

    "LZ4Block"  token  compressed length  original length  checksum  bytes         (lengths little-endian int32)
    ...
    "LZ4Block"  token  0  0  0                                                     end mark

The token's high nibble says raw (1) or lz4 (2), the low one log2(block size) - 10. The checksum is 28 bits of xxHash32
of the plain bytes, so that a flipped bit anywhere in a block is found.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import BinaryIO

import lz4.block
import xxhash

from statestore.errors import CorruptFile

_MAGIC = b"LZ4Block"
_HEADER = struct.Struct("<8sBiii")
_RAW, _LZ4 = 0x10, 0x20
_SEED = 0x9747B28C
_CHECKSUM_MASK = 0x0FFFFFFF
_LEVEL_BASE = 10
_LEVEL = 5
_BLOCK_BYTES = 1 << (_LEVEL + _LEVEL_BASE)
_RELEASED_BYTES = 8 * 1024 * 1024
_HINT = "restore the file from a backup, or load an older version"


def _checksum(plain: bytes | memoryview) -> int:
    return xxhash.xxh32_intdigest(plain, _SEED) & _CHECKSUM_MASK


class BlockWriter:
    """Writes plain bytes to `sink` as an LZ4Block stream with blocks of 32 KiB, as Spark does by default."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._open_block = bytearray()

    def write(self, plain: bytes | memoryview) -> None:
        """Append plain bytes; full blocks go to the sink at once."""
        view = memoryview(plain)
        position = 0
        if self._open_block:
            position = min(_BLOCK_BYTES - len(self._open_block), len(view))
            self._open_block += view[:position]
            if len(self._open_block) < _BLOCK_BYTES:
                return
            self._write_block(bytes(self._open_block))
            self._open_block.clear()
        while len(view) - position >= _BLOCK_BYTES:
            self._write_block(view[position : position + _BLOCK_BYTES])
            position += _BLOCK_BYTES
        self._open_block += view[position:]

    def finish(self) -> None:
        """Write what is left and the end mark. The sink stays open."""
        if self._open_block:
            self._write_block(bytes(self._open_block))
            self._open_block.clear()
        self._sink.write(_HEADER.pack(_MAGIC, _RAW | _LEVEL, 0, 0, 0))

    def _write_block(self, plain: bytes | memoryview) -> None:
        packed = lz4.block.compress(plain, store_size=False)
        method, body = (_LZ4, packed) if len(packed) < len(plain) else (_RAW, plain)
        self._sink.write(_HEADER.pack(_MAGIC, method | _LEVEL, len(body), len(plain), _checksum(plain)))
        self._sink.write(body)


def blocks(data: bytes | mmap.mmap, path: str) -> Iterator[bytes]:
    """The plain blocks of an LZ4Block stream, each checked before it is handed out.

    Stricter than lz4-java: the end mark must be there and be the end. Raises `CorruptFile` with `path` in it. No block
    makes more than its own 32 MiB of memory, whatever its header claims; of a mapped file no more than some MiB that
    were read stay in memory.
    """
    view = memoryview(data)
    position = released = 0
    while True:
        if isinstance(data, mmap.mmap) and position - released >= _RELEASED_BYTES:
            data.madvise(mmap.MADV_DONTNEED, released, _RELEASED_BYTES)
            released += _RELEASED_BYTES
        if position + _HEADER.size > len(view):
            raise CorruptFile(f"truncated: no end mark in {len(view):,} compressed bytes", path=path, hint=_HINT)
        magic, token, packed_length, plain_length, checksum = _HEADER.unpack_from(view, position)
        method, block_limit = token & 0xF0, 1 << ((token & 0x0F) + _LEVEL_BASE)
        if magic != _MAGIC or method not in (_RAW, _LZ4):
            raise CorruptFile(f"no LZ4 block where one should begin, at byte {position:,}", path=path, hint=_HINT)
        position += _HEADER.size
        if plain_length == 0:
            if packed_length or checksum or position != len(view):
                raise CorruptFile(f"bytes behind the end mark at {position:,}", path=path, hint=_HINT)
            return
        if not (0 < plain_length <= block_limit and 0 < packed_length <= len(view) - position):
            raise CorruptFile(f"impossible block lengths before byte {position:,}", path=path, hint=_HINT)
        plain = _plain_block(view[position : position + packed_length], method, plain_length, path)
        if _checksum(plain) != checksum:
            raise CorruptFile(f"wrong checksum of the block at byte {position:,}", path=path, hint=_HINT)
        yield plain
        position += packed_length


def _plain_block(body: memoryview, method: int, plain_length: int, path: str) -> bytes:
    if method == _RAW:
        plain = bytes(body)
    else:
        try:
            plain = lz4.block.decompress(body, uncompressed_size=plain_length)
        except lz4.block.LZ4BlockError as error:
            raise CorruptFile("a block that LZ4 cannot unpack", path=path, hint=_HINT) from error
    if len(plain) != plain_length:
        raise CorruptFile(f"a block of {len(plain):,} bytes that claims {plain_length:,}", path=path, hint=_HINT)
    return plain
