"""Bytes on the caller's side: the content of a create, in memory or in a local file, and the target of a download."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from statekeeper.statestore.base.errors import CorruptFile, LocalDiskFull, LocalStateError, StorageError
from statekeeper.statestore.storage.posix import is_copied_by_kernel

DOWNLOAD_PIECE_BYTES = 1024 * 1024
"""Small, because several files are downloaded concurrently."""

PIECE_BYTES = 16 * 1024 * 1024
MOST_PIECES = 10_000
"""Maximum number of parts in one S3 upload."""


@dataclass(frozen=True)
class Content:
    """Bytes to store, split into pieces of equal size; the last piece may be smaller."""

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
        """The number of pieces. Empty content is one empty piece."""
        return max(1, -(-self.size_bytes // self.piece_bytes))

    def piece(self, number: int) -> bytes:
        """Return piece `number`, from 0. Raises StorageError if the file is smaller than at first."""
        start = number * self.piece_bytes
        length = min(self.piece_bytes, self.size_bytes - start)
        if isinstance(self.data, bytes):
            return self.data if length == self.size_bytes else self.data[start : start + length]
        with self.data.open("rb") as file:
            file.seek(start)
            piece = file.read(length)
        if len(piece) != length:
            raise StorageError(
                "became smaller during its upload; nothing was stored", path=str(self.data), hint="store it again"
            )
        return piece

    def write_to(self, file: BinaryIO) -> None:
        """Write the bytes to a new file. The bytes of another local file are shared or copied by the kernel if it can.

        Raises StorageError if that file is smaller than at first, and `OSError`.
        """
        if isinstance(self.data, Path) and is_copied_by_kernel(self.data, file.fileno(), self.size_bytes):
            return
        for number in range(self.pieces):
            file.write(self.piece(number))

    def etag(self) -> str:
        """Return the ETag that S3 computes for an upload of these pieces, unless the object is encrypted with a KMS
        key."""
        digests = [hashlib.md5(self.piece(number), usedforsecurity=False) for number in range(self.pieces)]
        if self.pieces == 1:
            return digests[0].hexdigest()
        joined = hashlib.md5(b"".join(digest.digest() for digest in digests), usedforsecurity=False)
        return f"{joined.hexdigest()}-{self.pieces}"

    def equals(self, read_range: Callable[[int, int], bytes]) -> bool:
        """Return whether `read_range(start, length)` returns the same bytes, for an object of the same size."""
        for number in range(self.pieces):
            mine = self.piece(number)
            if mine and read_range(number * self.piece_bytes, len(mine)) != mine:
                return False
        return True


def require_size(shown: str, size_bytes: int, expected_bytes: int | None) -> None:
    """Raise `CorruptFile` if an object does not have the expected size: a damaged size must not fill the disk."""
    if expected_bytes is not None and size_bytes != expected_bytes:
        raise CorruptFile(f"has {size_bytes:,} bytes instead of {expected_bytes:,}", path=shown)


@contextmanager
def scratch_file(target: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends to a new local file. If the block fails, the file is removed.

    A full or missing scratch disk raises LocalDiskFull or LocalStateError, to distinguish it from storage errors.
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
            file.close()  # fails again on a full disk
        target.unlink(missing_ok=True)
        raise


@contextmanager
def _scratch_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LocalDiskFull(
                "the local disk is full; the download failed",
                path=str(target),
                hint=LocalDiskFull.remedy,
            ) from error
        what = error.strerror or str(error)
        raise LocalStateError(what, path=str(target), hint="check the scratch folder and its permissions") from error
