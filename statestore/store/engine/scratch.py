"""Folders for temporary files on local disk, below the scratch folder of a verb.

    <scratch>/rewrite-x7k2p9/          for one piece of work, deleted at its end
        .statekeeper.lock              locked by the process while it lives, however it dies
        work/

A killed process leaves its folders behind, which may be as large as the state. So the first folder of a process deletes
those whose lock is free. A folder without such a lock stays: it is not known whose it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from statekeeper.statestore.base.errors import LocalDiskFull, LocalStateError
from statekeeper.statestore.store.engine.rocks import translated

_FULL = "the disk of the scratch folder is full"
_LOCK = ".statekeeper.lock"
_WORK = "work"
_NAME = re.compile(r"[a-z-]+-[a-z0-9_]{8}")
"""As `mkdtemp` names a folder."""

_swept: set[tuple[int, Path]] = set()
_sweeping = threading.Lock()


def free_bytes(scratch: Path) -> int:
    """Return the free bytes of the disk of the folder, which need not exist yet."""
    place = scratch.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def require_usable(scratch: Path) -> None:
    """Make the scratch folder unless it exists. Raises `LocalDiskFull`, `LocalStateError`."""
    with _named_if_full(scratch), translated(scratch):
        scratch.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def work_folder(scratch: Path | None, purpose: str) -> Iterator[Path]:
    """Make an empty folder below `scratch`, or below the system's temporary folder, for the body of a `with` statement.

    Raises `LocalDiskFull` with the scratch folder if its disk is full, also in place of that error of the body;
    `LocalStateError` if the scratch folder cannot be used.
    """
    base = Path(tempfile.gettempdir()) if scratch is None else scratch
    require_usable(base)
    with _named_if_full(base), translated(base):
        _sweep_once(base)
        folder, lock = _made(base, purpose)
    try:
        with _named_if_full(base):
            yield folder / _WORK
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def _named_if_full(scratch: Path) -> Iterator[None]:
    """Name the scratch folder in the error of a full disk, and the option that chooses another one."""
    try:
        yield
    except LocalDiskFull as error:
        place = error.path or ""
        is_named = place == str(scratch) and error.what.startswith(_FULL)
        if is_named or not Path(place or scratch).is_relative_to(scratch):
            raise
        raise LocalDiskFull(
            f"{_FULL}: {free_bytes(scratch):,} bytes are free now; {error.what}",
            path=str(scratch),
            hint=f"{LocalDiskFull.remedy}, then run this command again",
        ) from error


def _made(scratch: Path, purpose: str) -> tuple[Path, int | None]:
    """Make a folder. Return it, and the descriptor of its locked file; None if the file system has no locks."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=scratch, prefix=f"{purpose}-"))
        file = folder / _LOCK
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            (folder / _WORK).mkdir()
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(file.stat(), os.fstat(lock)):
                return folder, lock
        except (BlockingIOError, FileNotFoundError):
            pass  # race: another process sweeps the folder before it is locked
        except OSError:
            os.close(lock)
            file.unlink(missing_ok=True)
            if not (folder / _WORK).is_dir():
                shutil.rmtree(folder, ignore_errors=True)
                raise
            return folder, None
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _sweep_once(scratch: Path) -> None:
    with _sweeping:
        key = (os.getpid(), scratch.absolute())
        if key not in _swept:
            _swept.add(key)
            sweep(scratch)


def sweep(scratch: Path) -> None:
    """Delete the folders of dead processes of this user below the scratch folder.

    *Danger*: deletes. *Guarantee*: only folders that `work_folder` has made and whose lock no process has.
    """
    for folder in scratch.iterdir():
        if _NAME.fullmatch(folder.name) is None:
            continue
        with contextlib.suppress(OSError):
            about = folder.stat(follow_symlinks=False)
            if about.st_uid == os.geteuid():
                _delete_if_free(folder)


def _delete_if_free(folder: Path) -> None:
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The lock last: an interrupted sweep is continued by the next one.
        shutil.rmtree(folder / _WORK)
        (folder / _LOCK).unlink()
        folder.rmdir()
    finally:
        os.close(lock)


_PRIVATE = 0o700


def user_folder(base: Path) -> Path:
    """Create the folder of this user in `base`, if it is missing. Raises as `make_private`."""
    with translated(base):
        base.mkdir(parents=True, exist_ok=True)
    folder = base / f"statekeeper-{os.geteuid()}"
    make_private(folder)
    return folder


def make_private(folder: Path) -> None:
    """Create the folder with mode 0700, or verify that it belongs to this user and set the mode.

    Raises `LocalStateError` for a link, and for a folder that another user owns or could write to.
    """
    with translated(folder):
        try:
            folder.mkdir(mode=_PRIVATE, parents=True)
        except FileExistsError:
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                raise _refused(folder, "is a link or a file, or belongs to another user") from None
            if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise _refused(folder, "is writable by other users") from None
            if stat.S_IMODE(about.st_mode) != _PRIVATE:
                folder.chmod(_PRIVATE)


def _refused(folder: Path, what: str) -> LocalStateError:
    return LocalStateError(
        f"{what}; local copies in it are not trusted and no store was opened",
        path=str(folder),
        hint="remove the folder, or choose another local folder. The copies are rebuilt from storage",
    )
