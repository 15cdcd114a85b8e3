"""Consecutive Zstandard frames (RFC 8878), as zstd-jni writes them.

The content checksum of a frame is verified if it exists. Spark does not enable it, so a flipped bit may be undetected.
Arrow, which has the codec, is imported on demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from statekeeper.statestore.format.compression.compressed_file import CompressedFile

MAGIC = bytes.fromhex("28b52ffd")
_PIECE_BYTES = 256 * 1024


class _Sink:
    """The sink as a file that Arrow may close."""

    closed = False

    def __init__(self, sink: BinaryIO) -> None:
        self.write = sink.write

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class FrameWriter:
    """Writes plain bytes to `sink` as one Zstandard frame."""

    def __init__(self, sink: BinaryIO) -> None:
        import pyarrow as pa

        self._stream = pa.CompressedOutputStream(pa.PythonFile(_Sink(sink), mode="w"), "zstd")

    def write(self, plain: bytes | memoryview) -> None:
        """Append plain bytes."""
        self._stream.write(plain)

    def finish(self) -> None:
        """Write what is left and end the frame. The sink stays open."""
        self._stream.close()


def blocks(file: CompressedFile) -> Iterator[bytes]:
    """Iterate over the uncompressed bytes in pieces of 256 KiB. The last frame must be complete and end the file.

    zstd keeps a window of decompressed bytes. It rejects frames with a window of more than 128 MiB.
    """
    import pyarrow as pa

    packed = pa.BufferReader(pa.py_buffer(file.view))
    stream = pa.CompressedInputStream(packed, "zstd")
    while True:
        try:
            plain = stream.read(_PIECE_BYTES)
        except (OSError, pa.ArrowInvalid) as error:
            raise file.damage(f"zstd cannot unpack it before byte {packed.tell():,}: {error}") from error
        if not plain:
            return
        yield plain
        file.release_before(packed.tell())
