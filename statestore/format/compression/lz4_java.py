"""lz4-java's block stream, Spark's default codec.

    "LZ4Block"  token  compressed length  original length  checksum  bytes         (lengths little-endian int32)
    ...
    "LZ4Block"  token  0  0  0                                                     end mark

The token's high nibble is 1 for raw or 2 for lz4, the low nibble is log2(block size) - 10. The checksum is 28 bits of
xxHash32 of the uncompressed bytes, so that a flipped bit anywhere in a block is detected.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

import lz4.block
import xxhash

from statekeeper.statestore.format.compression.block_writer import Blocks
from statekeeper.statestore.format.compression.compressed_file import CompressedFile

MAGIC = b"LZ4Block"
_HEADER = struct.Struct("<8sBiii")
_RAW, _LZ4 = 0x10, 0x20
_SEED = 0x9747B28C
_CHECKSUM_MASK = 0x0FFFFFFF
_LEVEL_BASE = 10
_LEVEL = 5
_BLOCK_BYTES = 1 << (_LEVEL + _LEVEL_BASE)


def _checksum(plain: bytes | memoryview) -> int:
    return xxhash.xxh32_intdigest(plain, _SEED) & _CHECKSUM_MASK


class BlockWriter:
    """Writes plain bytes to `sink` as an LZ4Block stream with blocks of 32 KiB, as Spark does by default."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._blocks = Blocks(_BLOCK_BYTES, self._write_block)

    def write(self, plain: bytes | memoryview) -> None:
        """Append plain bytes; full blocks go to the sink at once."""
        self._blocks.write(plain)

    def finish(self) -> None:
        """Write what is left and the end mark. The sink stays open."""
        self._blocks.flush()
        self._sink.write(_HEADER.pack(MAGIC, _RAW | _LEVEL, 0, 0, 0))

    def _write_block(self, plain: bytes | memoryview) -> None:
        packed = lz4.block.compress(plain, store_size=False)
        method, body = (_LZ4, packed) if len(packed) < len(plain) else (_RAW, plain)
        self._sink.write(_HEADER.pack(MAGIC, method | _LEVEL, len(body), len(plain), _checksum(plain)))
        self._sink.write(body)


def blocks(file: CompressedFile) -> Iterator[bytes]:
    """Iterate over the uncompressed blocks. Each block is verified before it is returned.

    Stricter than lz4-java: the end mark must exist and end the file. A block takes at most 32 MiB of memory, regardless
    of the size in its header.
    """
    view = file.view
    position = 0
    while True:
        file.release_before(position)
        if position + _HEADER.size > len(view):
            raise file.damage(f"truncated: no end mark in {len(view):,} compressed bytes")
        magic, token, packed_length, plain_length, checksum = _HEADER.unpack_from(view, position)
        method, block_limit = token & 0xF0, 1 << ((token & 0x0F) + _LEVEL_BASE)
        if magic != MAGIC or method not in (_RAW, _LZ4):
            raise file.damage(f"no LZ4 block where one should begin, at byte {position:,}")
        position += _HEADER.size
        if plain_length == 0:
            if packed_length or checksum or position != len(view):
                raise file.damage(f"bytes behind the end mark at {position:,}")
            return
        if not (0 < plain_length <= block_limit and 0 < packed_length <= len(view) - position):
            raise file.damage(f"invalid block length before byte {position:,}: the file is truncated or corrupt")
        try:
            plain = _plain_block(view[position : position + packed_length], method, plain_length)
        except lz4.block.LZ4BlockError as error:
            raise file.damage(f"a block that LZ4 cannot unpack at byte {position:,}") from error
        if len(plain) != plain_length:
            raise file.damage(f"a block of {len(plain):,} bytes that claims {plain_length:,}")
        if _checksum(plain) != checksum:
            raise file.damage(f"the block at byte {position:,} has a wrong checksum")
        yield plain
        position += packed_length


def _plain_block(body: memoryview, method: int, plain_length: int) -> bytes:
    if method == _RAW:
        return bytes(body)
    plain: bytes = lz4.block.decompress(body, uncompressed_size=plain_length)
    return plain
