"""The folder of one user below a shared folder on the local disk, such as `/tmp`.

    <base>/statekeeper-<uid>/     0700, owned by that user

Files in it are trusted, so that no other user may write there. If another user created the folder or a link in its place,
an error is raised.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from statekeeper.statestore.engine.local_errors import translated
from statekeeper.statestore.errors import LocalStateError

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
