"""The local copy of one store on a host. All workers of the host share it; one process at a time writes.

    <folder>/
    ├── lock                           held during changes of the folder
    ├── current                        the name of the served database, renamed into place
    ├── db-<id>/                       RocksDB; it contains its own version
    ├── private-<id>/                  a copy that one task built while another process held the lock
    └── changelogs/<v>_<id>.changelog  uploaded or fetched changelogs for the next replay; in V1 with the digest in place of
                                       the id, since a file may be of an unconfirmed attempt

All files here can be deleted at any time; they are rebuilt from storage. The folder belongs to one user and has mode 0700:
see `user_folder`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.base.errors import LocalStateDamaged
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.store.engine.rocks import BlockCache, Database, EngineLimits, translated
from statekeeper.statestore.store.engine.scratch import make_private

_DATABASE_PREFIX = "db-"
_PRIVATE_PREFIX = "private-"

LEFTOVER_SECONDS = 24 * 60 * 60
"""Longer than any task runs."""


@contextlib.contextmanager
def folder_locked(folder: Path, timeout_seconds: float) -> Iterator[bool]:
    """Hold the lock of a folder; yield False after the timeout. If the process dies, the kernel releases the lock."""
    lock = FileLock(str(folder / "lock"), thread_local=False)
    held = True
    with translated(folder):
        try:
            lock.acquire(timeout=timeout_seconds)
        except Timeout:
            held = False
    try:
        yield held
    finally:
        if held:
            lock.release()


class LocalCopyFolder:
    """The folder of a local copy, as shown above."""

    def __init__(self, folder: Path, limits: EngineLimits, ids: Ids, cache: BlockCache | None = None) -> None:
        self.folder = folder
        self._cache = cache
        self._limits = limits
        self._ids = ids
        self._pointer = folder / "current"
        self._changelogs = folder / "changelogs"
        make_private(folder)
        with translated(folder):
            self._changelogs.mkdir(exist_ok=True)
            # Race: a task returns after days, and a sweep must see it as a user before its first load.
            os.utime(self._changelogs)

    def locked(self, timeout_seconds: float) -> contextlib.AbstractContextManager[bool]:
        """Hold the folder's lock; see `folder_locked`."""
        return folder_locked(self.folder, timeout_seconds)

    def open_current(self) -> Database | None:
        """Open the served database for reading; None if there is none.

        Raises `LocalStateDamaged`. Without the lock the error proves nothing: a directory looks damaged while it changes.
        """
        path = self.current()
        if path is None:
            return None
        if not path.is_dir():
            raise LocalStateDamaged(
                "is missing, but the file `current` beside it names it; the local copy is rebuilt from storage",
                path=str(path),
            )
        return self.open_database(path)

    def open_database(self, path: Path) -> Database:
        """Open a database of this folder for reading. Raises `LocalStateDamaged`."""
        return Database.open_read_only(path, self._limits, self._cache)

    def current(self) -> Path | None:
        """Return the served directory; None if there is none. Before a write to it, call this under the lock."""
        with translated(self._pointer):
            try:
                name = self._pointer.read_bytes().decode("ascii", "replace").strip()
            except FileNotFoundError:
                return None
        if not name.startswith(_DATABASE_PREFIX) or "/" in name:
            raise LocalStateDamaged(
                f"has {name!r} instead of the name of a database; the local copy is rebuilt from storage",
                path=str(self._pointer),
            )
        return self.folder / name

    def fresh_directory(self) -> Path:
        """Return a new path for a database that is built beside the served one."""
        return self.folder / f"{_DATABASE_PREFIX}{self._ids.fresh()}"

    def fresh_private_directory(self) -> Path:
        """Return a new path for a database that only one task uses. `serve` does not remove it."""
        return self.folder / f"{_PRIVATE_PREFIX}{self._ids.fresh()}"

    def serve(self, path: Path) -> None:
        """Point `current` to this directory, and remove the others. Call it under the lock.

        Race: a reader of an older directory keeps its file descriptors. A reader that has read `current` and not opened the
        directory yet finds it missing, acquires the lock and reads `current` again.
        """
        with translated(self.folder):
            pointer = self.folder / f"current.{self._ids.fresh()}.tmp"
            pointer.write_text(path.name)
            # Rename the pointer, not the directory: a rename onto a non-empty directory fails.
            pointer.replace(self._pointer)
            for other in self.folder.iterdir():
                if other != path and other.name.startswith((_DATABASE_PREFIX, "current.")):
                    shutil.rmtree(other, ignore_errors=True) if other.is_dir() else other.unlink(missing_ok=True)

    def condemn(self, path: Path) -> None:
        """Stop serving this directory, because a read found damage."""
        with self.locked(timeout_seconds=0) as held:
            if held and self.current() == path:
                self.abandon()

    def abandon(self) -> None:
        """Stop serving any directory. The next load rebuilds the copy. Call it under the lock."""
        with translated(self.folder):
            self._pointer.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove private copies and unfinished files of dead processes: those `LEFTOVER_SECONDS` older than the pointer.

        Call it under the lock, after `serve` or `touch`.
        """
        with contextlib.suppress(OSError):
            oldest = self._pointer.stat().st_mtime - LEFTOVER_SECONDS
            for place in (*self.folder.glob(f"{_PRIVATE_PREFIX}*"), *self._changelogs.glob("*.tmp")):
                if place.stat().st_mtime < oldest:
                    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)

    def touch(self) -> None:
        """Record that the copy was used. A sweep removes the least recently used copies first."""
        with contextlib.suppress(OSError):
            os.utime(self._pointer)

    def cached_changelog(self, version: VersionId) -> Path:
        """Return the path of a changelog that this host wrote or fetched."""
        return self._changelogs / names.cached_changelog(version)

    def cached_digests(self) -> Iterator[VersionId]:
        """Iterate over the versions of structure V1 with a changelog here, including those of unconfirmed attempts."""
        for path in self._changelogs.iterdir():
            version = names.parse_cached_digest(path.name)
            if version is not None:
                yield version

    def unfinished_file(self) -> Path:
        """Return a new path for an unfinished file. If the process dies, a sweep removes the file."""
        return self._changelogs / f"{self._ids.fresh()}.tmp"

    def forget_changelogs(self, up_to: int) -> None:
        """Remove cached changelogs of version `up_to` and older ones. Call it under the lock."""
        for path in self._changelogs.iterdir():
            parsed = names.parse_store_file(path.name)
            if parsed is not None and parsed.version.version <= up_to:
                path.unlink(missing_ok=True)
