"""LZF chunks as com.ning.compress.lzf.LZFOutputStream writes them.

    "ZV"  00  plain length                   bytes              (lengths big-endian uint16)
    "ZV"  01  packed length  plain length    tokens
    ...

    000nnnnn                       the next n + 1 bytes are plain
    lllooooo          oooooooo     copy l + 2 bytes from o + 1 bytes back, l in 1..6
    111ooooo llllllll oooooooo     copy l + 9 bytes from o + 1 bytes back

Source: https://github.com/ning/compress/wiki/LZFFormat and liblzf's lzf_d.c. There is no checksum: a flipped bit within
a chunk may be undetected. There is no end mark: only the reader of the records detects a cut between two chunks.

The Python bindings of liblzf have few users and rare releases, so this module decodes the tokens in a loop: 30 MB/s of
a store's rows, compared with 500 MB/s for zstd.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from statekeeper.statestore.format.compression.block_writer import Blocks
from statekeeper.statestore.format.compression.compressed_file import CompressedFile

MAGIC = b"ZV"
_HEADER = struct.Struct(">2sBH")
_PLAIN_LENGTH = struct.Struct(">H")
_RAW, _PACKED = 0, 1
_FIRST_COPY = 0b00100000
_HIGH_OFFSET_BITS = 0b00011111
_LONG = 0b111
_LONGEST_CHUNK_BYTES = 65_535


class ChunkWriter:
    """Writes plain bytes to `sink` as uncompressed LZF chunks, which every LZF reader accepts."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._blocks = Blocks(_LONGEST_CHUNK_BYTES, self._write_chunk)

    def write(self, plain: bytes | memoryview) -> None:
        """Append plain bytes; full chunks go to the sink at once."""
        self._blocks.write(plain)

    def finish(self) -> None:
        """Write what is left. The sink stays open."""
        self._blocks.flush()

    def _write_chunk(self, plain: bytes | memoryview) -> None:
        self._sink.write(_HEADER.pack(MAGIC, _RAW, len(plain)))
        self._sink.write(plain)


def blocks(file: CompressedFile) -> Iterator[bytes]:
    """Iterate over the uncompressed chunks, of at most 65,535 bytes. A wrong declared length is detected after at most
    6 MB."""
    position = 0
    while position < len(file):
        file.release_before(position)
        start = position
        try:
            magic, kind, length = _HEADER.unpack_from(file.view, position)
            position += _HEADER.size
            if magic != MAGIC or kind not in (_RAW, _PACKED):
                raise file.damage(f"no LZF chunk where one should begin, at byte {start:,}")
            plain_length = length
            if kind == _PACKED:
                (plain_length,) = _PLAIN_LENGTH.unpack_from(file.view, position)
                position += _PLAIN_LENGTH.size
        except struct.error as error:
            raise file.damage(f"truncated within the header of the chunk at byte {start:,}") from error
        body = bytes(file.view[position : position + length])
        position += length
        if position > len(file):
            raise file.damage(f"truncated within the chunk at byte {start:,}")
        try:
            plain = body if kind == _RAW else _unpacked(body)
        except IndexError as error:
            raise file.damage(f"a chunk that LZF cannot unpack at byte {start:,}") from error
        if len(plain) != plain_length:
            raise file.damage(f"a chunk of {len(plain):,} bytes that claims {plain_length:,}, at byte {start:,}")
        yield plain


def _unpacked(tokens: bytes) -> bytes:
    """Decode the tokens. Raises `IndexError` for a token beyond the end of the tokens or before the start of the
    output."""
    plain = bytearray()
    at, end = 0, len(tokens)
    while at < end:
        token = tokens[at]
        at += 1
        if token < _FIRST_COPY:
            behind = at + token + 1
            plain += tokens[at:behind]
            at = behind
            continue
        length = token >> 5
        if length == _LONG:
            length += tokens[at]
            at += 1
        length += 2
        distance = ((token & _HIGH_OFFSET_BITS) << 8) + tokens[at] + 1
        at += 1
        start = len(plain) - distance
        if start < 0:
            raise IndexError(start)
        if length <= distance:
            plain += plain[start : start + length]
        else:
            # The copy reads what it has just written: the last `distance` bytes again and again.
            plain += (plain[start:] * (length // distance + 1))[:length]
    if at > end:
        raise IndexError(at)
    return bytes(plain)
