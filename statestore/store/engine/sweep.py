"""The cleanup of local copies of dead runs and finished queries on a host's disk.

    <user folder>/<root id>/<operator>-<partition>/      a `LocalCopyFolder`
    <user folder>/<root id>/batch-logs/                  a `storage.BatchLogCache`
    <user folder>/kept-tables/                           `KeptTables`, which has its own sweep
    <user folder>/sweep.lock                             held during a sweep
    <user folder>/swept                                  its modification time is that of the last sweep

All copies can be rebuilt from storage, but a running task may use one. A sweep never removes other files in the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from filelock import FileLock, Timeout

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import LocalStateError
from statekeeper.statestore.format import names
from statekeeper.statestore.store.engine.local_copy import LEFTOVER_SECONDS, folder_locked

IN_USE_SECONDS = 15 * 60
"""A more recently used copy is retained even above the quota, because its next batch would rebuild it."""

_COPY_NAME = re.compile(r"\d+-\d+")


class Reason(Enum):
    """The reason for a removal."""

    UNUSED = "not used for long"
    QUOTA = "least recently used, above the quota"
    LEFTOVER = "left by a process that died"


@dataclass(frozen=True)
class SweepLimits:
    """`quota_bytes`: the most bytes of all copies on a host. `unused_seconds`: an unused copy is removed
    after that time."""

    quota_bytes: int = 64 * 1024**3
    unused_seconds: float = 7 * 24 * 60 * 60


@dataclass(frozen=True)
class Removed:
    """A removed file or directory."""

    path: Path
    size_bytes: int
    reason: Reason


@dataclass(frozen=True)
class SweepReport:
    """The result of a sweep. `kept_bytes` may exceed the quota, because copies in use and `locked` ones are retained."""

    removed: tuple[Removed, ...]
    kept_bytes: int
    locked: tuple[Path, ...]


@dataclass(frozen=True)
class _Copy:
    path: Path
    size_bytes: int
    used_at: float


def sweep_when_due(folder: Path, limits: SweepLimits, *, clock: Clock, every_seconds: float) -> SweepReport | None:
    """Sweep, unless a sweep on this host runs or ran in the last `every_seconds`; None then."""
    if not folder.is_dir():
        return None
    lock = FileLock(str(folder / "sweep.lock"), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    try:
        stamp = folder / "swept"
        now = clock.now_seconds()
        # A time in the future is ignored: the clock was set back.
        if stamp.exists() and 0 <= now - stamp.stat().st_mtime < every_seconds:
            return None
        stamp.touch()
        os.utime(stamp, (now, now))
        return sweep(folder, limits, clock=clock)
    finally:
        lock.release()


def sweep(folder: Path, limits: SweepLimits, *, clock: Clock) -> SweepReport:
    """Remove unused copies, leftovers of dead processes, and the least recently used copies above the quota. Also remove
    batch logs not used within `IN_USE_SECONDS`: after a load, the local copies have their changes.

    *Danger*: deletes below `folder`. *Guarantee*: it deletes nothing in a copy whose lock is held; no copy used within
    `IN_USE_SECONDS`; no unfinished file or private copy younger than `LEFTOVER_SECONDS` of a copy used within
    `unused_seconds`; no file outside of copies and of caches of batch logs. A task that reads a deleted database continues
    with its open files.
    """
    now = clock.now_seconds()
    removed: list[Removed] = []
    locked: list[Path] = []
    kept: list[_Copy] = []
    for path in _copies(folder):
        with _locked(path) as held:
            if not held:
                locked.append(path)
                continue
            # Race: a returning task records its use before it waits for the lock, so this is read under the lock.
            used_at = _used_at(path)
            if now - used_at > limits.unused_seconds:
                removed.append(Removed(path, _size_bytes(path), Reason.UNUSED))
                _remove(path)
                continue
            removed.extend(_remove_leftovers(path, now))
            kept.append(_Copy(path, _size_bytes(path), used_at))
    caches = list(_caches(folder))
    for cache in caches:
        removed.extend(_remove_old_batch_logs(cache, now))
    kept_bytes = sum(copy.size_bytes for copy in kept) + sum(map(_size_bytes, (*locked, *caches)))
    for copy in sorted(kept, key=lambda copy: copy.used_at):
        if kept_bytes <= limits.quota_bytes or now - copy.used_at <= IN_USE_SECONDS:
            break
        with _locked(copy.path) as held:
            if held and _used_at(copy.path) == copy.used_at:
                freed = _empty(copy.path)
                kept_bytes -= freed
                removed.append(Removed(copy.path, freed, Reason.QUOTA))
    for root in {item.path.parent for item in removed if item.reason is Reason.UNUSED}:
        with contextlib.suppress(OSError):
            root.rmdir()
    return SweepReport(tuple(removed), kept_bytes, tuple(locked))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    with contextlib.ExitStack() as stack:
        try:
            held = stack.enter_context(folder_locked(path, timeout_seconds=0))
        except LocalStateError:
            held = False
        yield held


def _roots(folder: Path) -> Iterator[Path]:
    for root in sorted(folder.iterdir()):
        if root.is_dir() and not root.is_symlink():
            yield root


def _caches(folder: Path) -> Iterator[Path]:
    for root in _roots(folder):
        path = root / names.CACHED_BATCH_LOGS
        if path.is_dir() and not path.is_symlink():
            yield path


def _remove_old_batch_logs(cache: Path, now: float) -> list[Removed]:
    """Remove the old files of a cache; remove the whole folder if it was not used for that time."""
    if now - max(map(_changed_at, (cache, *cache.iterdir()))) > IN_USE_SECONDS:
        removed = [cache]
    else:
        removed = [place for place in cache.glob("*.log*") if now - _changed_at(place) > IN_USE_SECONDS]
    sized = [Removed(place, _size_bytes(place), Reason.UNUSED) for place in removed]
    for place in removed:
        _remove(place)
    return sized


def _copies(folder: Path) -> Iterator[Path]:
    for root in _roots(folder):
        for path in sorted(root.iterdir()):
            is_copy = _COPY_NAME.fullmatch(path.name) and (path / "changelogs").is_dir()
            if is_copy and not path.is_symlink():
                yield path


def _used_at(path: Path) -> float:
    """The time of the last use: each load touches the pointer, each task and batch the folder of changelogs."""
    return max(_changed_at(path / "current"), _changed_at(path / "changelogs"))


def _changed_at(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return path.stat(follow_symlinks=False).st_mtime
    return 0.0


def _remove_leftovers(path: Path, now: float) -> list[Removed]:
    removed = []
    changelogs = path / "changelogs"
    used_at = _changed_at(changelogs)
    for place in (*path.glob("private-*"), *path.glob("current.*.tmp"), *changelogs.glob("*.tmp")):
        inside = place.iterdir() if place.is_dir() and not place.is_symlink() else ()
        if now - max(map(_changed_at, (place, *inside))) > LEFTOVER_SECONDS:
            removed.append(Removed(place, _size_bytes(place), Reason.LEFTOVER))
            _remove(place)
    # A cleanup is no use of the copy and must not change its time.
    os.utime(changelogs, (used_at, used_at))
    return removed


def _empty(path: Path) -> int:
    """Remove the database and the cached changelogs, but not the unfinished files of a running task."""
    # The pointer first: without it no reader looks for the other files.
    gone = [path / "current", *path.glob("db-*"), *path.glob("changelogs/*.changelog")]
    freed = sum(map(_size_bytes, gone))
    for place in gone:
        _remove(place)
    return freed


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def _size_bytes(place: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        if place.is_dir() and not place.is_symlink():
            return sum(map(_size_bytes, place.iterdir()))
        return place.stat(follow_symlinks=False).st_size
    return 0
