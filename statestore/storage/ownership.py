"""Owner, group and mode of new files in a root on a local or mounted file system.

A checkpoint belongs to the user of its streaming query. The maintainer is often another user, with another umask:

    the maintainer        adds                     without this module
    root, umask 077       state/0/3/17.zip 0600    Spark fails: CANNOT_READ_STREAMING_STATE_FILE
    root, umask 022       state/0/3/SSTs/ 0755     Spark cannot upload the tables of its own snapshots

So each new file gets owner, group and mode of the adjacent files, and each new folder those of its parent. If there are
no adjacent files, the nearest parent folder with files is used, and in an empty root the root's own folder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from statekeeper.statestore.base.errors import ForeignOwner

_SAMPLE_FILES = 8
"""Number of adjacent files to examine. A single one may have the mode of a careless maintainer."""
_SAMPLE_ENTRIES = 64
_FILE_BITS = 0o666
_FILE_BITS_FROM_FOLDER = 0o664
"""Files in a world-writable folder do not become world-writable."""
_NOT_GIVEN = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EROFS}


@dataclass(frozen=True)
class Ownership:
    """Numeric owner and group, and the permission bits."""

    user: int
    group: int
    mode: int

    @property
    def identity(self) -> tuple[int, int]:
        """Owner and group."""
        return self.user, self.group


def of_file(place: Path) -> Ownership | None:
    """Return the ownership of a file; None if it does not exist."""
    with suppress(FileNotFoundError, NotADirectoryError):
        about = place.stat(follow_symlinks=False)
        return _of_file(about) if stat.S_ISREG(about.st_mode) else None
    return None


def for_file(root: Path, folder: Path) -> Ownership:
    """Return the ownership for a new file in a folder of the root."""
    while (found := _most_common(folder)) is None:
        if folder == root:
            about = root.stat()
            return Ownership(about.st_uid, about.st_gid, about.st_mode & _FILE_BITS_FROM_FOLDER)
        folder = folder.parent
    return found


def for_folder(parent: Path) -> Ownership:
    """Return the ownership for a new folder, including the setgid and sticky bits of its parent."""
    about = parent.stat()
    return Ownership(about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode))


def give(descriptor: int, ownership: Ownership) -> None:
    """Set the ownership of an open file or folder that this process created, as far as permitted.

    Uses a descriptor: the query's user may write to the folder, and could replace a name by a link while root changes
    the owner. A streaming job that does not own its root keeps its own user on its files; maintenance verbs call
    `require_can_give` before they write.
    """
    about = os.fstat(descriptor)
    if about.st_gid != ownership.group:
        _try(lambda: os.fchown(descriptor, -1, ownership.group))
    if about.st_uid != ownership.user:
        _try(lambda: os.fchown(descriptor, ownership.user, -1))
    # Last, because a change of owner clears bits.
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != ownership.mode:
        _try(lambda: os.fchmod(descriptor, ownership.mode))


def require_can_give(root: Path, probe: Callable[[], Path]) -> None:
    """Raise `ForeignOwner` if this process cannot give its files the owner and group of the checkpoint's files.

    `probe` returns the path of a temporary file. Root tries a chown on it, because a mounted file system may reject
    root, too. Examines some files of each folder that Spark writes to; the cost does not grow with the number of
    batches.
    """
    if not root.is_dir():
        return
    seen: dict[tuple[int, int], Path] = {}
    for place, ownership in _owned(root):
        seen.setdefault(ownership.identity, place)
    mine = os.geteuid()
    for (user, group), place in seen.items():
        if mine != 0 and (user != mine or group not in {os.getegid(), *os.getgroups()}):
            raise _foreign(place, user, group)
    if mine == 0 and any(identity != (0, os.getegid()) for identity in seen):
        _require_chown(seen, probe())


def _require_chown(seen: dict[tuple[int, int], Path], probe: Path) -> None:
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for (user, group), place in seen.items():
            try:
                os.fchown(descriptor, user, group)
            except OSError as error:
                raise _foreign(place, user, group) from error
    finally:
        os.close(descriptor)
        probe.unlink(missing_ok=True)


def _foreign(place: Path, user: int, group: int) -> ForeignOwner:
    return ForeignOwner(
        f"belongs to user {user} and group {group}, but this process runs as user {os.geteuid()}: the query could not "
        "replace the files of this process. Nothing was written",
        path=str(place),
        hint=f"run the command as user {user} and group {group}. As root, you can start it with: setpriv --reuid {user} "
        f"--regid {group} --clear-groups statekeeper ...",
    )


def _owned(root: Path) -> Iterator[tuple[Path, Ownership]]:
    """Iterate over the folders, and some of the files, that Spark or Statekeeper writes to: the logs and the stores."""
    yield root, for_folder(root)
    for log in ("commits", "offsets", "metadata"):
        yield from _sampled(root / log)
    for operator in _folders(root / "state"):
        for partition in _folders(operator):
            yield from _sampled(partition, depth=2)


def _sampled(place: Path, depth: int = 0) -> Iterator[tuple[Path, Ownership]]:
    try:
        about = place.stat(follow_symlinks=False)
    except OSError:
        return
    if stat.S_ISREG(about.st_mode):
        yield place, _of_file(about)
    elif stat.S_ISDIR(about.st_mode):
        yield place, for_folder(place)
        with suppress(OSError), os.scandir(place) as found:
            items = list(islice(found, _SAMPLE_ENTRIES))
            files = [item for item in items if item.is_file(follow_symlinks=False)][:_SAMPLE_FILES]
            folders = [item for item in items if depth and item.is_dir(follow_symlinks=False)]
            for item in (*files, *folders):
                yield from _sampled(place / item.name, depth - 1)


def _folders(folder: Path) -> list[Path]:
    with suppress(OSError), os.scandir(folder) as found:
        return [folder / item.name for item in found if item.is_dir(follow_symlinks=False)]
    return []


def _most_common(folder: Path) -> Ownership | None:
    """Return the most common ownership in a sample of a folder's files; None without files."""
    found: list[Ownership] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as items:
        for item in islice(items, _SAMPLE_ENTRIES):
            with suppress(FileNotFoundError):
                if not item.name.startswith(".") and item.is_file(follow_symlinks=False):
                    found.append(_of_file(item.stat(follow_symlinks=False)))
            if len(found) == _SAMPLE_FILES:
                break
    return Counter(found).most_common(1)[0][0] if found else None


def _of_file(about: os.stat_result) -> Ownership:
    return Ownership(about.st_uid, about.st_gid, about.st_mode & _FILE_BITS)


def _try(change: Callable[[], None]) -> None:
    try:
        change()
    except OSError as error:
        if error.errno not in _NOT_GIVEN:
            raise
