"""The stream of snappy-java's SnappyOutputStream (xerial), which differs from Google's snappy framing.

    82 "SNAPPY" 00   version 1   oldest version that can read it 1      (big-endian int32)
    packed length    raw snappy block, which starts with its plain length as a varint
    ...

There is no checksum: a flipped bit within a block may be undetected. There is no end mark: only the reader of the
records detects a cut between two blocks. Arrow, which has the codec, is imported on demand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from statekeeper.statestore.format.compression.block_writer import Blocks
from statekeeper.statestore.format.compression.compressed_file import LARGEST_BLOCK_BYTES, CompressedFile

MAGIC = b"\x82SNAPPY\0"
_HEADER = MAGIC + struct.pack(">ii", 1, 1)
_LENGTH = struct.Struct(">i")
_LONGEST_VARINT_BYTES = 5
_MOST_PLAIN_BYTES_FOR_ONE = 22
"""Three bytes copy at most 64."""
_BLOCK_BYTES = 32 * 1024


class SnappyWriter:
    """Writes plain bytes to `sink` as a snappy stream with blocks of 32 KiB, as Spark does by default."""

    def __init__(self, sink: BinaryIO) -> None:
        import pyarrow as pa

        self._sink = sink
        self._buffer = pa.py_buffer
        self._snappy = pa.Codec("snappy")
        self._blocks = Blocks(_BLOCK_BYTES, self._write_block)
        sink.write(_HEADER)

    def write(self, plain: bytes | memoryview) -> None:
        """Append plain bytes; full blocks go to the sink at once."""
        self._blocks.write(plain)

    def finish(self) -> None:
        """Write what is left. The sink stays open."""
        self._blocks.flush()

    def _write_block(self, plain: bytes | memoryview) -> None:
        packed = self._snappy.compress(self._buffer(plain), asbytes=True)
        self._sink.write(_LENGTH.pack(len(packed)))
        self._sink.write(packed)


def blocks(file: CompressedFile) -> Iterator[bytes]:
    """Iterate over the uncompressed blocks. Only whole blocks are returned."""
    import pyarrow as pa

    if file.view[: len(_HEADER)] != _HEADER:
        raise file.damage("not the header of a snappy stream of version 1")
    snappy = pa.Codec("snappy")
    position = len(_HEADER)
    while position < len(file):
        file.release_before(position)
        body_at = position + _LENGTH.size
        if body_at > len(file):
            raise file.damage(f"truncated within the length at byte {position:,}")
        (packed_length,) = _LENGTH.unpack_from(file.view, position)
        if not 0 < packed_length <= len(file) - body_at:
            raise file.damage(f"impossible block length {packed_length:,} at byte {position:,}")
        position = body_at + packed_length
        body = file.view[body_at:position]
        plain_length = _plain_length(body)
        # If the requested length is too large, pyarrow fills the rest with arbitrary memory. So use the block's own length.
        if not 0 <= plain_length <= min(LARGEST_BLOCK_BYTES, _MOST_PLAIN_BYTES_FOR_ONE * packed_length):
            raise file.damage(f"impossible plain length of the block at byte {body_at:,}")
        try:
            yield snappy.decompress(pa.py_buffer(body), plain_length, asbytes=True)
        except (OSError, pa.ArrowInvalid) as error:
            raise file.damage(f"a block that snappy cannot unpack at byte {body_at:,}") from error


def _plain_length(body: memoryview) -> int:
    """Return the plain length; -1 if it is missing."""
    length = 0
    for number, byte in enumerate(body[:_LONGEST_VARINT_BYTES]):
        length |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return length
    return -1
