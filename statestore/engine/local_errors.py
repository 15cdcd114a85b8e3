"""Errors of the local disk and of RocksDB as typed errors. rocksdict raises a bare `Exception` for each error."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from statekeeper.statestore.errors import (
    LocalDiskFull,
    LocalStateDamaged,
    LocalStateError,
    LocalStateLocked,
    StatekeeperError,
)

REBUILT = "no action is needed: the next load rebuilds the local copy from storage"


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Convert errors of rocksdict and of the operating system to `LocalStateError`s about `path`."""
    try:
        yield
    except StatekeeperError:
        raise  # an unreadable changelog during a replay is no error of the database
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LocalDiskFull(
                f"{error}; the store cannot be loaded or written here",
                path=str(path),
                hint=LocalDiskFull.remedy,
            ) from error
        raise LocalStateError(
            f"{error}; the store cannot be loaded or written here",
            path=str(path),
            hint="make this folder on the local disk usable, or give another folder with --scratch",
        ) from error
    except Exception as error:
        if type(error) is not Exception:
            raise  # an error of the caller; rocksdict raises only bare exceptions
        text = str(error)
        if "No space left" in text or "Disk quota" in text:
            raise LocalDiskFull(
                f"{text}; the store cannot be loaded or written here",
                path=str(path),
                hint=LocalDiskFull.remedy,
            ) from error
        if "lock hold by current process" in text or "While lock file" in text:
            raise LocalStateLocked(
                text, path=str(path), hint="wait until the other process closes the database, then try again"
            ) from error
        raise LocalStateDamaged(
            f"the local copy of a store is damaged: {text}", path=str(path), hint=REBUILT
        ) from error
