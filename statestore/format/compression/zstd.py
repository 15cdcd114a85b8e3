"""Zstandard frames (RFC 8878), one behind the other, as zstd-jni writes them.

The content checksum of a frame is checked where there is one. Spark asks for none: a flipped bit may then go unseen.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from statestore.format.compression.compressed_file import CompressedFile

MAGIC = bytes.fromhex("28b52ffd")
_PIECE_BYTES = 256 * 1024


def blocks(file: CompressedFile) -> Iterator[bytes]:
    """The plain bytes in pieces of 256 KiB. The last frame has to be whole, and the file's end.

    zstd keeps a window of what it unpacked; it refuses frames that want more than 128 MiB for it.
    """
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
