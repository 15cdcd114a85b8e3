"""System users without a name: one owns a checkpoint, another maintains it."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SPARK = 64_001
OTHER = 64_002
GROUP = 64_100

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@contextmanager
def umask(bits: int) -> Iterator[None]:
    """Create files without these mode bits."""
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that every user can reach: pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="users-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def give(place: Path, user: int = SPARK, group: int = GROUP, *, files: int = 0o644, folders: int = 0o755) -> None:
    """The folder and all in it become this user's, with these modes."""
    for folder, _, names in os.walk(place):
        os.chown(folder, user, group)
        os.chmod(folder, folders)
        for name in names:
            os.chown(f"{folder}/{name}", user, group)
            os.chmod(f"{folder}/{name}", files)


def owned(place: Path) -> dict[str, tuple[int, int, int]]:
    """Owner, group and mode of each file and folder below."""
    found = {}
    for item in place.rglob("*"):
        about = item.lstat()
        found[str(item.relative_to(place))] = (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode))
    return found


def as_user(user: int, work: Callable[[], object], group: int = GROUP) -> int:
    """Do it in a process of this user with umask 077; its exit code, 0 where nothing is raised."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
        os.umask(0o077)
        work()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
