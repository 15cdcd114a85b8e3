"""The framings of compressed changelogs, one module for each of Spark's codecs. Here a file's own is found.

    spark.sql.streaming.stateStore.compression.codec    begins with    checksum    end mark    flipped bits unseen
    lz4, the default                                    "LZ4Block"     of blocks   yes          0 %
    zstd                                                28b52ffd       none (1)    yes         30 %
    snappy                                              82 "SNAPPY"    none        none        29 %
    lzf                                                 "ZV"           none        none        21 %

(1) zstd can carry one for each frame, which is then checked; Spark asks for none.

Where there is no checksum, what a flipped bit makes of the bytes is checked by `changelog` alone, which finds wrong lengths
and not wrong values: unseen are those out of which other records come, counted in small changelogs that Spark wrote.
Where there is no end mark a file that is cut between two blocks is whole to its codec: the records' own end mark is then
missing. Changelogs are written with lz4.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

from statestore.errors import CorruptFile
from statestore.format.compression import lz4_java, lzf, xerial_snappy, zstd
from statestore.format.compression.compressed_file import CompressedFile
from statestore.format.compression.lz4_java import BlockWriter

__all__ = ["BlockWriter", "blocks", "is_guarded"]

_CODECS: dict[bytes, Callable[[CompressedFile], Iterator[bytes]]] = {
    codec.MAGIC: codec.blocks for codec in (lz4_java, zstd, xerial_snappy, lzf)
}
_LONGEST_MAGIC_BYTES = max(map(len, _CODECS))


def blocks(data: bytes | mmap.mmap, path: str) -> Iterator[bytes]:
    """The plain bytes in pieces, each checked as far as its codec allows before it is handed out.

    Raises `CorruptFile` with `path` in it, as late as the damage comes: for what is truncated, for lengths that
    cannot be, for bytes behind the end, and for a file of no codec that is known. Whatever a header claims, memory
    stays bounded: by 32 MiB for a block, by 128 MiB for zstd's window; of a mapped file no more than some MiB that were
    read stay in memory.
    """
    start = data[:_LONGEST_MAGIC_BYTES]
    for magic, codec in _CODECS.items():
        if start.startswith(magic):
            return codec(CompressedFile(data, path))
    raise CorruptFile(
        f"no changelog of a codec that Spark has (lz4, zstd, snappy, lzf): begins with {start.hex() or 'nothing'}",
        path=path,
        hint="restore the file from a backup, or load an older version; a query's own codec class is not read",
    )


def is_guarded(data: bytes | mmap.mmap) -> bool:
    """Whether the file carries checksums of what it holds, so that one that was read to its end is whole."""
    return data[: len(lz4_java.MAGIC)] == lz4_java.MAGIC
