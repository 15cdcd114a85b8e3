"""The folder of one user below a folder on local disk that several users may share, such as `/tmp`.

    <base>/statekeeper-<uid>/     0700, owned by that user

What lies there is read without another look, so nobody else may have written it. Another user who makes the name first, or
puts a link there, stops the work with an error and is not believed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from statestore.engine.rocks import translated
from statestore.errors import LocalStateError

_PRIVATE = 0o700


def user_folder(base: Path) -> Path:
    """The folder of this user in `base`, made when it is missing. Raises as `make_private`."""
    with translated(base):
        base.mkdir(parents=True, exist_ok=True)
    folder = base / f"statekeeper-{os.geteuid()}"
    make_private(folder)
    return folder


def make_private(folder: Path) -> None:
    """Make the folder, or verify that it is one of this user's, and let no other user in.

    Raises `LocalStateError` for a link, and for what another user owns or could have written to.
    """
    with translated(folder):
        try:
            folder.mkdir(mode=_PRIVATE, parents=True)
        except FileExistsError:
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                raise _refused(folder, "is a link or a file, or belongs to another user") from None
            if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise _refused(folder, "could be written to by other users") from None
            if stat.S_IMODE(about.st_mode) != _PRIVATE:
                folder.chmod(_PRIVATE)


def _refused(folder: Path, what: str) -> LocalStateError:
    return LocalStateError(
        f"{what}; local copies in it cannot be trusted",
        path=str(folder),
        hint="remove it, or choose another local folder; the copies are rebuilt from storage",
    )
