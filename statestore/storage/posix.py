"""Hard links, reflinks and flushes on a local disk, and the file system of a folder."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

NO_LINK = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}
"""The errors of a file system without hard links, of two mounts of one file system, and of a file of another user if
fs.protected_hardlinks is set."""


NO_KERNEL_COPY = {errno.EXDEV, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM}
"""The errors of `copy_file_range` between two file systems, on a file system or a kernel without it, and in a container
that forbids it."""

_MOUNTS = Path("/proc/self/mountinfo")


def hard_link(file: Path, target: Path) -> bool:
    """Give a file another name; return False if the name exists. Raises `OSError`."""
    try:
        target.hardlink_to(file)
    except FileExistsError:
        return False
    return True


def is_copied_by_kernel(file: Path, target: int, size_bytes: int) -> bool:
    """Copy the bytes of a file to an empty file, whose descriptor is given, without reading them into this process.

    If the file system has reflinks, as XFS and Btrfs do, both files then share their blocks until one of them is changed.
    Returns False if the system cannot copy all bytes; the target may then contain some of them. Raises `OSError`.
    """
    if not hasattr(os, "copy_file_range"):
        return False  # not on Linux
    done = 0
    with opened(file) as origin:
        while done < size_bytes:
            try:
                count = os.copy_file_range(origin, target, size_bytes - done, done, done)
            except OSError as error:
                if error.errno not in NO_KERNEL_COPY:
                    raise
                return False
            if count == 0:
                return False  # the file is smaller by now, or its file system generates its bytes
            done += count
    return True


def file_system(folder: Path) -> Hashable:
    """Return an identifier of the file system that contains a folder. Raises `OSError`.

    The folders of one Btrfs can have different device numbers: each subvolume has its own. The list of mounts has the
    number of the whole file system.
    """
    return _file_system(os.path.realpath(folder), folder.stat().st_dev)


@lru_cache(maxsize=256)
def _file_system(place: str, device: int) -> Hashable:
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return device  # not on Linux
    fields = [line.split(" ") for line in mounts]
    # Of two mounts at one place, the later one is visible.
    longest, number = "", ""
    for field in fields:
        mounted = re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), field[4])
        is_above = place == mounted or place.startswith(mounted.rstrip("/") + "/")
        if is_above and len(mounted) >= len(longest):
            longest, number = mounted, field[2]
    return number or device


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
