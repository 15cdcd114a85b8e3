"""The framings of compressed changelogs, one module per codec of Spark. This module detects the codec of a file.

    spark.sql.streaming.stateStore.compression.codec    first bytes    checksum    end mark    undetected bit flips
    lz4, the default                                    "LZ4Block"     of blocks   yes          0 %
    zstd                                                28b52ffd       none (1)    yes         30 %
    snappy                                              82 "SNAPPY"    none        none        29 %
    lzf                                                 "ZV"           none        none        21 %

(1) zstd supports a checksum per frame, which is verified. Spark does not enable it.

Without a checksum, only `changelog` checks the bytes, and it detects wrong lengths but not wrong values. A flip is
undetected if the result has other records; the shares were measured with small changelogs of Spark. Without an end
mark, the codec accepts a file that is cut between two blocks; the end mark of the records is then missing. Changelogs
are written with lz4; files of Spark's default provider with the codec of their query, the only one that it reads.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import BinaryIO

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format.compression import lz4_java, lzf, xerial_snappy, zstd
from statekeeper.statestore.format.compression.block_writer import CompressedWriter
from statekeeper.statestore.format.compression.compressed_file import CompressedFile
from statekeeper.statestore.format.compression.lz4_java import BlockWriter

__all__ = ["BlockWriter", "CompressedWriter", "Readable", "blocks", "is_guarded", "writer"]

Readable = bytes | mmap.mmap
"""A whole compressed file: in memory, or mapped from the local disk."""

_CODECS: dict[bytes, Callable[[CompressedFile], Iterator[bytes]]] = {
    codec.MAGIC: codec.blocks for codec in (lz4_java, zstd, xerial_snappy, lzf)
}
_WRITERS: dict[str, Callable[[BinaryIO], CompressedWriter]] = {
    "lz4": lz4_java.BlockWriter,
    "zstd": zstd.FrameWriter,
    "snappy": xerial_snappy.SnappyWriter,
    "lzf": lzf.ChunkWriter,
}
_CLASS = "org.apache.spark.io."
_LONGEST_MAGIC_BYTES = max(map(len, _CODECS))


def blocks(data: bytes | mmap.mmap, path: str) -> Iterator[bytes]:
    """Decompress a file in pieces. Each piece is verified as far as its codec allows before it is returned.

    Raises `CorruptFile` with `path` when it reaches the damage: for a truncated file, impossible lengths, bytes after
    the end, and an unknown codec. Memory is bounded regardless of declared sizes: 32 MiB per block, 128 MiB for zstd's
    window. At most some MiB of a mapped file stay in memory after they are read.
    """
    start = data[:_LONGEST_MAGIC_BYTES]
    for magic, codec in _CODECS.items():
        if start.startswith(magic):
            return codec(CompressedFile(data, path))
    found = f"begins with the bytes {start.hex()}, which no codec of Spark writes (lz4, zstd, snappy, lzf)"
    raise CorruptFile(
        found if start else "is empty",
        path=path,
        hint="restore the file from a backup, or load an older version. A custom codec class of the query is not supported",
    )


def writer(codec: str, sink: BinaryIO) -> CompressedWriter:
    """Return a writer of a codec, by its name or class name in the offset log. Raises `UnknownFormatVersion` for another
    one."""
    name = codec.removeprefix(_CLASS).lower().removesuffix("compressioncodec")
    if name not in _WRITERS:
        raise UnknownFormatVersion(
            f"the compression codec {codec} is not supported (supported: {', '.join(_WRITERS)})",
            hint="nothing was changed; a custom codec class of the query is not supported",
        )
    return _WRITERS[name](sink)


def is_guarded(data: bytes | mmap.mmap) -> bool:
    """Return whether the file has checksums of its contents, so that a file that was read to its end is intact."""
    return data[: len(lz4_java.MAGIC)] == lz4_java.MAGIC
