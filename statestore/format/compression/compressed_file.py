"""A compressed file that a codec reads from start to end, and its error for damage."""

from __future__ import annotations

import mmap

from statekeeper.statestore.base.errors import CorruptFile

LARGEST_BLOCK_BYTES = 32 * 1024 * 1024
"""Uncompressed bytes: the maximum of LZ4Block, and a thousand times Spark's default block size."""

_RELEASED_BYTES = 8 * 1024 * 1024
_HINT = "restore the file from a backup, or load an older version"


class CompressedFile:
    """The bytes of a file, in memory or mapped. At most some MiB of a mapped file stay in memory after they are
    read."""

    def __init__(self, data: bytes | mmap.mmap, path: str) -> None:
        self.view = memoryview(data)
        self._path = path
        self._mapping = data if isinstance(data, mmap.mmap) else None
        self._released = 0

    def __len__(self) -> int:
        return len(self.view)

    def release_before(self, position: int) -> None:
        """Release the memory before `position`, which is not read again."""
        if self._mapping is not None and position - self._released >= _RELEASED_BYTES:
            length = (position - self._released) // mmap.PAGESIZE * mmap.PAGESIZE
            self._mapping.madvise(mmap.MADV_DONTNEED, self._released, length)
            self._released += length

    def damage(self, what: str) -> CorruptFile:
        """Return the error to raise."""
        return CorruptFile(what, path=self._path, hint=_HINT)
