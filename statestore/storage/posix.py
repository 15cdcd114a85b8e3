"""Hard links and flushes on a local disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_LINK = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}
"""The errors of a file system without hard links, of two mounts of one file system, and of a file of another user if
fs.protected_hardlinks is set."""


def hard_link(file: Path, target: Path) -> bool:
    """Give a file another name; return False if the name exists. Raises `OSError`."""
    try:
        target.hardlink_to(file)
    except FileExistsError:
        return False
    return True


def flush(place: Path) -> None:
    """Flush a file or folder to the disk. Raises `OSError`."""
    with opened(place) as descriptor:
        os.fsync(descriptor)


@contextmanager
def opened(place: Path, how: int = 0) -> Iterator[int]:
    """Open a file or folder for reading, with more flags of `os.open`. Raises `OSError`."""
    descriptor = os.open(place, os.O_RDONLY | how)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
