"""Batch logs on the local disk of a host, which its processes share: each object is fetched once per host.

    <folder>/
    ├── <version>-<tag>.log           the first bytes of the object, or all of them
    ├── <version>-<tag>.log.ranged    a byte for each member that was needed while the file lacked it
    ├── lock-<n>                      held while a process fetches an object of this hash
    └── lock-room                     held while a process removes old objects and writes a new one

A file is never stale: the name has version and tag of the attempt, and the folder belongs to one root id. It only grows, so
that a reader needs no lock. The caller verifies the checksums of the contents. All files can be deleted at any time.

No method raises an error of the local disk: without the cache, the object is read from storage. The folder must be in the
folder of one user; see `engine.user_folder`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from filelock import FileLock

LOCKS = 64
"""Lock files are never removed, because two processes could hold a removed and a new one."""

_LOCK_SECONDS = 60.0
"""A process that waits longer for another process reads the object without the cache."""

_POLL_SECONDS = 0.005
_SUFFIX = ".log"
_RANGED_SUFFIX = ".ranged"


class BatchLogCache:
    """The cached batch logs of one root. Thread-safe; `path`: of an object, in its root.

    `most_bytes`: limit for the files. The least recently used ones are removed first.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._has_failed = False

    def locked(self, path: str) -> contextlib.AbstractContextManager[bool]:
        """Hold the lock of an object. Yield False if the lock cannot be had."""
        return self._locked(str(crc32(path.encode()) % LOCKS))

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[bool]:
        lock = FileLock(self.folder / f"lock-{name}", thread_local=False)
        held = False
        # `Timeout` is an OSError.
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock.acquire(timeout=_LOCK_SECONDS, poll_interval=_POLL_SECONDS)
            held = True
        try:
            yield held
        finally:
            if held:
                lock.release()

    def size_bytes(self, path: str) -> int:
        """Return the number of cached bytes of an object."""
        with contextlib.suppress(OSError):
            return self._file(path).stat().st_size
        return 0

    def read(self, path: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from byte `start`, fewer at the end of the file."""
        with contextlib.suppress(OSError), self._file(path).open("rb") as file:
            file.seek(start)
            return file.read(max(min(length, os.fstat(file.fileno()).st_size - start), 0))
        return b""

    def use(self, path: str) -> bool:
        """Record a use of an object. Return whether it has cached bytes."""
        with contextlib.suppress(OSError):
            os.utime(self._file(path))
            return True
        return False

    def has_room(self, path: str, size_bytes: int) -> bool:
        """Return whether an object of this size fits on the disk, perhaps after the removal of others."""
        if self._has_failed or size_bytes > self._most_bytes:
            return False
        with contextlib.suppress(OSError):
            about = os.statvfs(self.folder)
            return about.f_bavail * about.f_frsize > size_bytes - self.size_bytes(path)
        return False

    def append(self, path: str, start: int, data: bytes) -> bool:
        """Add the bytes from byte `start`, the end of the file. Return whether the file has them. Call it under the lock.

        After a failed write this process writes no more objects: another fetch would probably be in vain, too.
        """
        if not self.has_room(path, start + len(data)):
            return False
        # One writer at a time: each must see the sizes that the others have written.
        with self._locked("room") as held:
            if not held:
                return False
            try:
                self._make_room(path, start + len(data))
                with self._file(path).open("ab") as file:
                    # Race: another process drops the file, because it is damaged or old.
                    if file.tell() == start:
                        file.write(data)
                        return True
            except OSError:
                self._has_failed = True
        self.drop(path)
        return False

    def _make_room(self, path: str, size_bytes: int) -> None:
        """Remove the least recently used objects, until this one fits below the limit."""
        found = []
        for place in self.folder.glob(f"*{_SUFFIX}"):
            # Race: another process drops it.
            with contextlib.suppress(FileNotFoundError):
                about = place.stat()
                found.append((about.st_mtime, about.st_size, place))
        excess = size_bytes - self._most_bytes
        excess += sum(size for _, size, place in found if place != self._file(path))
        for _, size, place in sorted(found):
            if excess > 0 and place != self._file(path):
                self.drop(place.name)
                excess -= size

    def drop(self, path: str) -> None:
        """Remove an object. A process that reads it continues with its open file."""
        for file in (self._file(path), self._ranged(path)):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def count_ranged(self, path: str) -> int:
        """Record that a member was needed while the file lacked it. Return the number of such members on this host."""
        with contextlib.suppress(OSError), self._ranged(path).open("ab") as file:
            file.write(b".")
            return file.tell()
        return 0

    def _file(self, path: str) -> Path:
        return self.folder / path.rpartition("/")[2]

    def _ranged(self, path: str) -> Path:
        return self.folder / (path.rpartition("/")[2] + _RANGED_SUFFIX)
