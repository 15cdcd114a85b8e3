"""A host's scratch copy of one store, shared by all of the host's workers, one process at a time writing.

    <folder>/
    ├── lock                           held while something here is changed
    ├── current                        the name of the database that is served, renamed into place
    ├── db-<id>/                       RocksDB; it knows itself which version it holds
    ├── private-<id>/                  a copy that one task built while another kept the lock
    └── changelogs/<v>_<id>.changelog  what was uploaded or fetched here and may be replayed next; in structure V1 the
                                       digest stands for the id, as a file there may be of an attempt that lost

Nothing here is the truth: all of it can be deleted at any time and is rebuilt from storage. The folder belongs to one user,
with mode 0700: see `user_folder`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from statestore.clock import Ids
from statestore.engine.rocks import Database, EngineLimits, translated
from statestore.engine.user_folder import make_private
from statestore.errors import LocalStateDamaged
from statestore.format import names
from statestore.format.names import VersionId

_DATABASE_PREFIX = "db-"
_PRIVATE_PREFIX = "private-"

LEFTOVER_SECONDS = 24 * 60 * 60
"""No task runs that long."""


@contextlib.contextmanager
def folder_locked(folder: Path, timeout_seconds: float) -> Iterator[bool]:
    """Hold a folder's lock; yields False when another process kept it that long. The kernel frees it on death."""
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
    """The folder drawn above."""

    def __init__(self, folder: Path, limits: EngineLimits, ids: Ids) -> None:
        self.folder = folder
        self._limits = limits
        self._ids = ids
        self._pointer = folder / "current"
        self._changelogs = folder / "changelogs"
        make_private(folder)
        with translated(folder):
            self._changelogs.mkdir(exist_ok=True)
            # A host's sweep must see a task that comes back after days before it has loaded anything.
            os.utime(self._changelogs)

    def locked(self, timeout_seconds: float) -> contextlib.AbstractContextManager[bool]:
        """Hold the folder's lock; see `folder_locked`."""
        return folder_locked(self.folder, timeout_seconds)

    def open_current(self) -> Database | None:
        """The database that is served, for reading; None when there is none.

        Raises `LocalStateDamaged`. Without the lock that proves nothing: a directory that is just being changed looks
        damaged too.
        """
        path = self.current()
        if path is None:
            return None
        if not path.is_dir():
            raise LocalStateDamaged("the directory that `current` names is gone", path=str(path))
        return Database.open_read_only(path, self._limits)

    def current(self) -> Path | None:
        """The directory that is served. Read it under the lock before writing to it."""
        with translated(self._pointer):
            try:
                name = self._pointer.read_bytes().decode("ascii", "replace").strip()
            except FileNotFoundError:
                return None
        if not name.startswith(_DATABASE_PREFIX) or "/" in name:
            raise LocalStateDamaged(f"`current` names {name!r}", path=str(self._pointer))
        return self.folder / name

    def fresh_directory(self) -> Path:
        """A name for a database that is built beside the one that is served."""
        return self.folder / f"{_DATABASE_PREFIX}{self._ids.fresh()}"

    def fresh_private_directory(self) -> Path:
        """A name for a database that only one task uses; `serve` leaves it alone."""
        return self.folder / f"{_PRIVATE_PREFIX}{self._ids.fresh()}"

    def serve(self, path: Path) -> None:
        """Let `current` name this directory, and remove the others. Call it under the lock.

        Readers that have an older directory open keep their descriptors; one that is between reading `current` and
        opening sees a missing directory, takes the lock and looks again.
        """
        with translated(self.folder):
            pointer = self.folder / f"current.{self._ids.fresh()}.tmp"
            pointer.write_text(path.name)
            # Renaming the pointer, never the directory: a rename onto a full directory fails.
            pointer.replace(self._pointer)
            for other in self.folder.iterdir():
                if other != path and other.name.startswith((_DATABASE_PREFIX, "current.")):
                    shutil.rmtree(other, ignore_errors=True) if other.is_dir() else other.unlink(missing_ok=True)

    def condemn(self, path: Path) -> None:
        """Serve this directory no longer: reading it showed damage that opening it did not."""
        with self.locked(timeout_seconds=0) as held:
            if held and self.current() == path:
                self.abandon()

    def abandon(self) -> None:
        """Serve nothing: the next load builds the copy anew. Call it under the lock."""
        with translated(self.folder):
            self._pointer.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove private copies and unfinished files of processes that died. Call it under the lock, after `serve` or
        `touch`: what is older than the pointer by `LEFTOVER_SECONDS` belongs to no task that still runs."""
        with contextlib.suppress(OSError):
            oldest = self._pointer.stat().st_mtime - LEFTOVER_SECONDS
            for place in (*self.folder.glob(f"{_PRIVATE_PREFIX}*"), *self._changelogs.glob("*.tmp")):
                if place.stat().st_mtime < oldest:
                    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)

    def touch(self) -> None:
        """Note that the copy was used: the sweep removes the least recently used first."""
        with contextlib.suppress(OSError):
            os.utime(self._pointer)

    def cached_changelog(self, version: VersionId) -> Path:
        """Where the bytes of a version's changelog lie when this host wrote or fetched them."""
        return self._changelogs / names.cached_changelog(version)

    def cached_digests(self) -> Iterator[VersionId]:
        """The versions of structure V1 of which there is a changelog here, those of attempts that lost, too."""
        for path in self._changelogs.iterdir():
            version = names.parse_cached_digest(path.name)
            if version is not None:
                yield version

    def unfinished_file(self) -> Path:
        """A name for a file that is being written; a dead process's one is swept."""
        return self._changelogs / f"{self._ids.fresh()}.tmp"

    def forget_changelogs(self, up_to: int) -> None:
        """Remove cached changelogs of versions up to and with `up_to`. Call it under the lock."""
        for path in self._changelogs.iterdir():
            parsed = names.parse_store_file(path.name)
            if parsed is not None and parsed.version.version <= up_to:
                path.unlink(missing_ok=True)
