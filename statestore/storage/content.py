"""Bytes on the caller's side: what a create is given, in memory or in a local file, and where a download goes."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from statestore.errors import LocalDiskFull, LocalStateError, StorageError

DOWNLOAD_PIECE_BYTES = 1024 * 1024
"""Small, as several files are fetched at once."""

PIECE_BYTES = 16 * 1024 * 1024
MOST_PIECES = 10_000
"""Parts that S3 allows in one upload."""


@dataclass(frozen=True)
class Content:
    """Bytes to be stored, cut into pieces of equal size (the last may be smaller)."""

    data: bytes | Path
    size_bytes: int

    @classmethod
    def of(cls, data: bytes | Path) -> Content:
        return cls(data, data.stat().st_size if isinstance(data, Path) else len(data))

    @property
    def piece_bytes(self) -> int:
        return max(PIECE_BYTES, -(-self.size_bytes // MOST_PIECES))

    @property
    def pieces(self) -> int:
        """How many pieces there are; no bytes are one empty piece."""
        return max(1, -(-self.size_bytes // self.piece_bytes))

    def piece(self, number: int) -> bytes:
        """Piece `number`, from 0. Raises StorageError when the file no longer has the size that it had at first."""
        start = number * self.piece_bytes
        length = min(self.piece_bytes, self.size_bytes - start)
        if isinstance(self.data, bytes):
            return self.data if length == self.size_bytes else self.data[start : start + length]
        with self.data.open("rb") as file:
            file.seek(start)
            piece = file.read(length)
        if len(piece) != length:
            raise StorageError("the file shrank while it was being stored", path=str(self.data), hint="store it again")
        return piece

    def etag(self) -> str:
        """What S3 calls an object that was uploaded as these pieces, unless it is encrypted with a KMS key."""
        digests = [hashlib.md5(self.piece(number), usedforsecurity=False) for number in range(self.pieces)]
        if self.pieces == 1:
            return digests[0].hexdigest()
        joined = hashlib.md5(b"".join(digest.digest() for digest in digests), usedforsecurity=False)
        return f"{joined.hexdigest()}-{self.pieces}"

    def equals(self, read_range: Callable[[int, int], bytes]) -> bool:
        """Whether what `read_range(start, length)` gives is the same, for a whole that has the same size."""
        for number in range(self.pieces):
            mine = self.piece(number)
            if mine and read_range(number * self.piece_bytes, len(mine)) != mine:
                return False
        return True


@contextmanager
def scratch_file(target: Path) -> Iterator[Callable[[bytes], None]]:
    """A function that appends to a new local file, which is removed when the block fails.

    A full or missing scratch disk is told apart from trouble in the store: LocalDiskFull, LocalStateError.
    """

    def write(piece: bytes) -> None:
        with _scratch_errors(target):
            file.write(piece)
            file.flush()

    with _scratch_errors(target):
        file = target.open("wb")
    try:
        yield write
        with _scratch_errors(target):
            file.close()
    except BaseException:
        with suppress(OSError):
            file.close()  # on a full disk it fails once more
        target.unlink(missing_ok=True)
        raise


@contextmanager
def _scratch_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LocalDiskFull("no space is left for a download", path=str(target), hint="free space") from error
        what = error.strerror or str(error)
        raise LocalStateError(what, path=str(target), hint="look at the scratch folder") from error
