"""A compressed file as its codec reads it: from front to back, and with one way to call it damaged."""

from __future__ import annotations

import mmap

from statestore.errors import CorruptFile

LARGEST_BLOCK_BYTES = 32 * 1024 * 1024
"""Of plain bytes: what LZ4Block can say, and a thousand times what Spark makes by default."""

_RELEASED_BYTES = 8 * 1024 * 1024
_HINT = "restore the file from a backup, or load an older version"


class CompressedFile:
    """The bytes of a file in memory, or of a mapped one: of that, no more than some MiB that were read stay in memory."""

    def __init__(self, data: bytes | mmap.mmap, path: str) -> None:
        self.view = memoryview(data)
        self._path = path
        self._mapping = data if isinstance(data, mmap.mmap) else None
        self._released = 0

    def __len__(self) -> int:
        return len(self.view)

    def release_before(self, position: int) -> None:
        """What lies before `position` is not needed again."""
        if self._mapping is not None and position - self._released >= _RELEASED_BYTES:
            length = (position - self._released) // mmap.PAGESIZE * mmap.PAGESIZE
            self._mapping.madvise(mmap.MADV_DONTNEED, self._released, length)
            self._released += length

    def damage(self, what: str) -> CorruptFile:
        """The error to raise."""
        return CorruptFile(what, path=self._path, hint=_HINT)
