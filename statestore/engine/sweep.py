"""What dead runs and finished queries leave on a host's disk, and when it goes.

    <user folder>/<root id>/<operator>-<partition>/      a `LocalCopyFolder`
    <user folder>/sweep.lock                             held by who sweeps
    <user folder>/swept                                  its time is that of the last sweep

Nothing below such a folder is the truth, but a running task may be using it. Other files in the local folder are nobody's
business here and stay.
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

from statestore.clock import Clock
from statestore.engine.local_copy import LEFTOVER_SECONDS, folder_locked
from statestore.errors import LocalStateError

IN_USE_SECONDS = 15 * 60
"""A copy used since then stays whatever the quota says: its next batch would only build it anew."""

_COPY_NAME = re.compile(r"\d+-\d+")


class Reason(Enum):
    """Why something was removed."""

    UNUSED = "not used for long"
    QUOTA = "least recently used, above the quota"
    LEFTOVER = "left by a process that died"


@dataclass(frozen=True)
class SweepLimits:
    """`quota_bytes`: what the copies of all queries on a host may take together. `unused_seconds`: how long a copy stays
    that nobody asks for."""

    quota_bytes: int = 64 * 1024**3
    unused_seconds: float = 7 * 24 * 60 * 60


@dataclass(frozen=True)
class Removed:
    """One thing that was removed, and why."""

    path: Path
    size_bytes: int
    reason: Reason


@dataclass(frozen=True)
class SweepReport:
    """What a sweep did. `kept_bytes` may be above the quota: copies in use stay, and so do `locked` ones."""

    removed: tuple[Removed, ...]
    kept_bytes: int
    locked: tuple[Path, ...]


@dataclass(frozen=True)
class _Copy:
    path: Path
    size_bytes: int
    used_at: float


def sweep_when_due(folder: Path, limits: SweepLimits, *, clock: Clock, every_seconds: float) -> SweepReport | None:
    """Sweep unless somebody on this host did so in the last `every_seconds`, or is at it; None then."""
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
        # A stamp from the future is none: the clock was set back.
        if stamp.exists() and 0 <= now - stamp.stat().st_mtime < every_seconds:
            return None
        stamp.touch()
        os.utime(stamp, (now, now))
        return sweep(folder, limits, clock=clock)
    finally:
        lock.release()


def sweep(folder: Path, limits: SweepLimits, *, clock: Clock) -> SweepReport:
    """Remove copies unused for long, leftovers of dead processes, and the least recently used copies above the quota.

    *Danger*: deletes below `folder`. *Guarantee*: nothing in a copy whose lock is held; no copy that was used within
    `IN_USE_SECONDS`; no unfinished file or private copy younger than `LEFTOVER_SECONDS` of a copy that was used within
    `unused_seconds`; no file that is not a part of a copy. A task that reads a database while it goes keeps it through
    its open files.
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
            # Looked at under the lock: a task that came back has noted its use before it waits for it.
            used_at = _used_at(path)
            if now - used_at > limits.unused_seconds:
                removed.append(Removed(path, _size_bytes(path), Reason.UNUSED))
                _remove(path)
                continue
            removed.extend(_remove_leftovers(path, now))
            kept.append(_Copy(path, _size_bytes(path), used_at))
    kept_bytes = sum(copy.size_bytes for copy in kept) + sum(map(_size_bytes, locked))
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


def _copies(folder: Path) -> Iterator[Path]:
    for root in sorted(folder.iterdir()):
        if not root.is_dir() or root.is_symlink():
            continue
        for path in sorted(root.iterdir()):
            is_copy = _COPY_NAME.fullmatch(path.name) and (path / "changelogs").is_dir()
            if is_copy and not path.is_symlink():
                yield path


def _used_at(path: Path) -> float:
    """When a task used the copy last: each load touches the pointer, each task and batch the folder of changelogs."""
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
    # Tidying up is no use: it must not make a copy look younger than it is.
    os.utime(changelogs, (used_at, used_at))
    return removed


def _empty(path: Path) -> int:
    """Remove the database and the cached changelogs; a task that still writes here keeps its unfinished files."""
    # The pointer first: without it nobody looks for what goes.
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
