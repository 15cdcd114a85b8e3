"""A root on a local or mounted POSIX file system.

An object is written in full to `_statekeeper/tmp`, flushed, and then named by a hard link, which fails if the name
exists. So a reader, including Spark, never reads a partial file, and a crash leaves at most an unfinished file in that
folder. The whole root must be on one file system with hard links. `ownership` sets owner, group and mode of the
objects.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.base.errors import AccessDenied, NotAFile, ObjectMissing, StorageError
from statekeeper.statestore.format.limits import DEFAULT_LIMITS, SizeLimits
from statekeeper.statestore.storage import ownership
from statekeeper.statestore.storage.base import (
    DELETE_BATCH,
    TEMP_FOLDER,
    Created,
    Deletion,
    Entries,
    Entry,
    Kind,
    Location,
    Names,
    OpenedStore,
    PartsUpload,
    Requests,
    another_exists,
    changed,
    checked,
    checked_folder,
    is_listed,
    only_after,
    too_large,
)
from statekeeper.statestore.storage.content import DOWNLOAD_PIECE_BYTES, Content, require_size, scratch_file
from statekeeper.statestore.storage.omissions import SYMBOLIC_LINK
from statekeeper.statestore.storage.ownership import Ownership
from statekeeper.statestore.storage.posix import NO_LINK, file_system, flush, hard_link, opened


class LocalPartsUpload:
    """The `PartsUpload` of a file system.

    temp        the temporary file; created here
    translated  translates errors of the operating system
    publish     gives the complete file its owner and its name; `descriptor` is open for writing, `file` has the same bytes
    """

    def __init__(
        self,
        temp: Path,
        *,
        part_bytes: int,
        kind: Kind,
        requests: Requests,
        translated: Callable[[], AbstractContextManager[None]],
        publish: Callable[[int, Path], Created],
    ) -> None:
        self._temp = temp
        self._part_bytes = part_bytes
        self._kind = kind
        self._requests = requests
        self._translated = translated
        self._publish = publish
        requests.count(kind)
        with translated():
            # Private until it has its final owner.
            self._descriptor: int | None = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def send(self, number: int, data: bytes) -> None:
        self._requests.count(self._kind, bytes_written=len(data))
        with self._translated():
            written = 0
            while written < len(data):
                written += os.pwrite(self._open, data[written:], number * self._part_bytes + written)
            os.fdatasync(self._open)

    def complete(self, file: Path) -> Created:
        self._requests.count(self._kind)
        try:
            with self._translated():
                return self._publish(self._open, file)
        finally:
            self.abort()

    def abort(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        with self._translated():
            self._temp.unlink(missing_ok=True)

    @property
    def _open(self) -> int:
        assert self._descriptor is not None, "the upload is complete or aborted"
        return self._descriptor


_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_DENIED = {errno.EACCES, errno.EPERM}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FOLDERS = threading.Lock()
"""Held while a folder is created: a folder inside it copies its owner and mode, so these must be set first."""


class LocalStorage(OpenedStore):
    """Storage on a local disk. One call counts as one request, as do up to DELETE_BATCH deletes."""

    def __init__(self, root: Path, *, ids: Ids, limits: SizeLimits = DEFAULT_LIMITS) -> None:
        # Links above the root are resolved. Links below it are rejected.
        self._root = Path(os.path.realpath(root))
        self._ids = ids
        super().__init__(self._root.as_uri(), limits)

    def read(self, path: str) -> bytes:
        with self._opened(path) as file:
            if (size_bytes := _size(file)) > self.limits.object_bytes:
                raise too_large(size_bytes, self._shown(path), self.limits)
            # `read` allocates its argument.
            data = file.read(size_bytes)
        self.requests.count_bytes_read(len(data))
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"no range of bytes: {length} from {start}")
        with self._opened(path) as file:
            # `read` allocates its argument: a corrupt length must not exhaust the memory.
            there = max(0, os.fstat(file.fileno()).st_size - start)
            file.seek(start)
            data = file.read(min(length, there))
        self.requests.count_bytes_read(len(data))
        return data

    def download(self, path: str, target: Path, *, expected_bytes: int | None = None) -> int:
        size_bytes = 0
        with self._opened(path) as source, scratch_file(target) as write:
            require_size(self._shown(path), _size(source), expected_bytes)
            while piece := source.read(DOWNLOAD_PIECE_BYTES):
                write(piece)
                size_bytes += len(piece)
                self.requests.count_bytes_read(len(piece))
        return size_bytes

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        content = Content.of(data)
        target = self._place(path)
        self.requests.count(Kind.CREATE, bytes_written=content.size_bytes)
        with self._translated(path), self._unfinished(content, target, like) as temp:
            return self._name(temp, target, path, content)

    def _name(self, temp: Path, target: Path, path: str, content: Content) -> Created:
        """Give a flushed file its name if the name is free. Raises as `create`."""
        if not target.exists():
            _forget_sidecar(target)
        if self._link(temp, target, path):
            created = Created.NEW
        else:
            self._compare(path, target, content)
            created = Created.SAME
            # The process that created it may have died before its flush, and the caller relies on the file.
            flush(target)
        flush(target.parent)
        return created

    @property
    def location(self) -> Location:
        there = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
        return Location(("file", file_system(there)), str(self._root), shutil.disk_usage(there).free)

    def copy(self, path: str, source: Location, entry: Entry) -> None:
        origin, target = _inside(Path(source.place), entry.path), self._place(path)
        self.requests.count(Kind.CREATE)
        _require_unchanged(origin, entry)
        with self._translated(path):
            self._make_folder(target.parent)
            try:
                is_new = hard_link(origin, target)
            except OSError as error:
                if error.errno not in NO_LINK:
                    raise
                content = Content.of(origin)
                with self._unfinished(content, target, None) as temp:
                    _require_unchanged(origin, entry)
                    self._name(temp, target, path, content)
                return
            if not is_new and not target.samefile(origin):
                self._compare(path, target, Content.of(origin))
            flush(target.parent)

    def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload:
        target, temp = self._place(path), self._temp_file()

        def publish(descriptor: int, file: Path) -> Created:
            self._make_folder(target.parent)
            ownership.give(descriptor, self._ownership(target, path if replaces and target.exists() else None))
            os.fsync(descriptor)
            if not replaces:
                return self._name(temp, target, path, Content.of(file))
            self._rename(temp, target)
            return Created.NEW

        with self._translated(path):
            self._make_folder(temp.parent)
        return LocalPartsUpload(
            temp,
            part_bytes=part_bytes,
            kind=Kind.REPLACE if replaces else Kind.CREATE,
            requests=self.requests,
            translated=lambda: self._translated(path),
            publish=publish,
        )

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        content = Content.of(data)
        target = self._place(path)
        self.requests.count(Kind.REPLACE, bytes_written=content.size_bytes)
        with self._translated(path), self._unfinished(content, target, path if target.exists() else like) as temp:
            self._rename(temp, target)

    def _rename(self, temp: Path, target: Path) -> None:
        _forget_sidecar(target)
        temp.replace(target)
        flush(target.parent)

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        folder = self._place(prefix) if checked_folder(prefix) else self._root
        self.requests.count(Kind.LIST)
        with self._translated(prefix):
            return sorted(self._walk(folder, prefix, hidden=hidden), key=lambda entry: entry.path)

    def list_after(self, folder: str, name: str, *, beginning: str) -> Entries:
        return only_after(self.list(folder), folder, name, beginning)

    def folders(self, prefix: str) -> Names:
        folder = self._place(prefix) if checked_folder(prefix) else self._root
        self.requests.count(Kind.LIST)
        try:
            with self._translated(prefix):
                found = [item.name for item in os.scandir(folder) if item.is_dir(follow_symlinks=False)]
        except ObjectMissing:
            return []
        return sorted(name for name in found if not name.startswith(".") and _is_text(name))

    def stat(self, path: str) -> Entry | None:
        place = self._place(path)
        self.requests.count(Kind.STAT)
        try:
            with self._translated(path):
                found = place.stat(follow_symlinks=False)
        except ObjectMissing:
            return None
        return Entry(path, found.st_size, found.st_mtime) if stat.S_ISREG(found.st_mode) else None

    def delete(self, paths: Iterable[str]) -> None:
        # Not flushed: if a power failure reverts a delete, the next run finds the file again.
        for number, path in enumerate([checked(path) for path in paths]):
            if number % DELETE_BATCH == 0:
                self.requests.count(Kind.DELETE)
            target = self._place(path)
            try:
                with self._translated(path):
                    target.unlink()
                    _forget_sidecar(target)
            except ObjectMissing:
                continue

    def delete_unchanged(self, path: str, data: bytes) -> Deletion:
        target, claimed = self._place(path), self._temp_file()
        self.requests.count(Kind.DELETE)
        with self._translated(path):
            try:
                about = target.stat(follow_symlinks=False)
                if not stat.S_ISREG(about.st_mode) or about.st_size != len(data) or target.read_bytes() != data:
                    return Deletion.CHANGED
                self._make_folder(claimed.parent)
                target.rename(claimed)
            except FileNotFoundError:
                return Deletion.MISSING
            try:
                # Race: a successor's file takes the name between the read and the rename. The renamed file cannot change
                # any more, because no file is written in place.
                if claimed.read_bytes() == data:
                    _forget_sidecar(target)
                    return Deletion.DELETED
                self._link(claimed, target, path)
                return Deletion.CHANGED
            finally:
                claimed.unlink(missing_ok=True)

    def require_ownership(self) -> None:
        def probe() -> Path:
            temp = self._temp_file()
            self._make_folder(temp.parent)
            return temp

        with self._translated(""):
            ownership.require_can_give(self._root, probe)

    def _place(self, path: str) -> Path:
        """Return the path of an object. Rejects links below the root, because a delete could follow one to any file of
        the machine."""
        return _inside(self._root, path)

    @contextmanager
    def _opened(self, path: str) -> Iterator[BinaryIO]:
        """Open the file for reading. Rejects FIFOs and devices: opening one may block forever or change it."""
        place = self._place(path)
        self.requests.count(Kind.READ)
        with self._translated(path):
            mode = place.stat().st_mode
            if not stat.S_ISREG(mode):
                raise _missing(self._shown(path)) if stat.S_ISDIR(mode) else self._odd(path)
            with os.fdopen(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                yield file

    @contextmanager
    def _unfinished(self, content: Content, target: Path, like: str | None) -> Iterator[Path]:
        """Write the content to a flushed temporary file with the ownership of `target`, and create the target's folder.

        The block may rename the file. Otherwise the file is removed.
        """
        temp = self._temp_file()
        self._make_folder(temp.parent)
        self._make_folder(target.parent)
        whose = self._ownership(target, like)
        try:
            # Private until it has its final owner.
            descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                content.write_to(file)
                file.flush()
                ownership.give(descriptor, whose)
                os.fsync(file.fileno())
            yield temp
        finally:
            temp.unlink(missing_ok=True)

    def _temp_file(self) -> Path:
        return self._place(f"{TEMP_FOLDER}/{self._ids.fresh()}")

    def _ownership(self, target: Path, like: str | None) -> Ownership:
        found = None if like is None else ownership.of_file(self._place(like))
        return found or ownership.for_file(self._root, target.parent)

    def _make_folder(self, folder: Path) -> None:
        """Create the folder and its parents. Flush each new name, because a power failure could remove it with its
        files."""
        if folder.is_dir():
            return
        with _FOLDERS:
            self._make_folders(folder)

    def _make_folders(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folders(folder.parent)
        if not folder.is_relative_to(self._root) or folder == self._root:
            folder.mkdir(exist_ok=True)
        else:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                with opened(folder, os.O_DIRECTORY | os.O_NOFOLLOW) as descriptor:
                    ownership.give(descriptor, ownership.for_folder(folder.parent))
        flush(folder.parent)

    def _link(self, temp: Path, target: Path, path: str) -> bool:
        """Link the finished file to its name; return False if the name exists."""
        try:
            return hard_link(temp, target)
        except OSError as error:
            if error.errno not in NO_LINK:
                raise
            raise StorageError(
                f"cannot be created with a hard link ({error.strerror}); nothing was written",
                path=self._shown(path),
                hint="move the whole root to one file system with hard links, or to S3",
            ) from error

    def _compare(self, path: str, target: Path, content: Content) -> None:
        """Return if the file at `target` has this content, else raise AlreadyExists."""

        def read_range(start: int, length: int) -> bytes:
            file.seek(start)
            piece = file.read(length)
            self.requests.count_bytes_read(len(piece))
            return piece

        with self._opened(path) as file:
            if os.fstat(file.fileno()).st_size == content.size_bytes and content.equals(read_range):
                return
        raise another_exists(self._shown(path))

    def _walk(self, folder: Path, prefix: str, *, hidden: bool) -> Iterator[Entry]:
        pending = [(folder, prefix)]
        while pending:
            place, inside = pending.pop()
            try:
                with self._translated(inside):
                    found = list(os.scandir(place))
            except ObjectMissing:
                continue
            for item in found:
                path = f"{inside}/{item.name}" if inside else item.name
                if not is_listed(path, prefix, hidden=hidden):
                    continue
                if (reason := _omitted(item)) is not None:
                    self.omissions.note(path, reason)
                elif item.is_dir(follow_symlinks=False):
                    pending.append((place / item.name, path))
                else:
                    try:
                        about = item.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    yield Entry(path, about.st_size, about.st_mtime)

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise translate(error, self._shown(path)) from error

    def _odd(self, path: str) -> NotAFile:
        return NotAFile("is not a regular file", path=self._shown(path), hint="replace it by a regular file")

    def _shown(self, path: str) -> str:
        return f"{self._root}/{path}"


def translate(error: OSError, shown: str) -> StorageError:
    """Return the library's error for an error of the operating system about the file `shown`."""
    if error.errno in _MISSING:
        return _missing(shown)
    if error.errno == errno.EROFS:
        return AccessDenied(
            "is on a file system that is mounted read-only; nothing was written",
            path=shown,
            hint="mount the file system with write access, then run this command again",
        )
    if error.errno in _DENIED:
        return AccessDenied("permission denied", path=shown, hint="check the owner and mode of root and file")
    if error.errno in _FULL:
        return StorageError(
            "the disk of the state root is full (no space is left)", path=shown, hint="free space, then try again"
        )
    return StorageError(error.strerror or str(error), path=shown, hint="check the disk, then try again")


def _inside(root: Path, path: str) -> Path:
    place = root / checked(path)
    if os.path.realpath(place) != str(place):
        what = "contains a symbolic link; links below a state root are not followed"
        raise NotAFile(what, path=str(place), hint="replace the link by the file or folder itself")
    return place


def _require_unchanged(origin: Path, entry: Entry) -> None:
    """Raise `SourceChanged` if a file has changed since it was listed."""
    try:
        about = origin.stat(follow_symlinks=False)
    except OSError as error:
        raise translate(error, str(origin)) from error
    if (about.st_size, about.st_mtime) != (entry.size_bytes, entry.modified_at_seconds):
        raise changed(str(origin))


def _missing(shown: str) -> ObjectMissing:
    return ObjectMissing("does not exist", path=shown)


def _omitted(item: os.DirEntry[str]) -> str | None:
    """Return the reason why listings omit an entry; None for a file or folder with a valid name."""
    if not _is_text(item.name):
        return "its name is not UTF-8"
    if item.is_symlink():
        return SYMBOLIC_LINK
    if item.is_dir(follow_symlinks=False) or item.is_file(follow_symlinks=False):
        return None
    return "it is not a regular file"


def _is_text(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _forget_sidecar(target: Path) -> None:
    """Remove Hadoop's `.NAME.crc` of replaced or deleted bytes. Otherwise Hadoop cannot read the next file with this
    name."""
    target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
