"""A root on a local or mounted POSIX file system.

An object is written in full to `_statekeeper/tmp`, flushed, and then given its name by a hard link, which fails when
the name is taken. So a reader, Spark included, never meets half of a file, and a crash leaves at worst a leftover in
that folder. The whole root has to be on one file system, and that has to know hard links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from statestore.clock import Ids
from statestore.errors import AccessDenied, AlreadyExists, ObjectMissing, StorageError
from statestore.storage.base import (
    DELETE_BATCH,
    TEMP_FOLDER,
    Created,
    Entries,
    Entry,
    Kind,
    Names,
    OpenedStore,
    checked,
    checked_folder,
    is_listed,
)
from statestore.storage.content import DOWNLOAD_PIECE_BYTES, Content, scratch_file

_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}


class LocalStorage(OpenedStore):
    """Storage on a local disk; one request is one call, and up to DELETE_BATCH deletes."""

    def __init__(self, root: Path, *, ids: Ids) -> None:
        # Links above the root are the operator's business; below it none is followed.
        self._root = Path(os.path.realpath(root))
        self._ids = ids
        super().__init__(self._root.as_uri())

    def read(self, path: str) -> bytes:
        place = self._place(path)
        self.requests.count(Kind.READ)
        with self._translated(path), place.open("rb") as file:
            data = file.read()
        self.requests.received(len(data))
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"no range of bytes: {length} from {start}")
        place = self._place(path)
        self.requests.count(Kind.READ)
        with self._translated(path), place.open("rb") as file:
            file.seek(start)
            data = file.read(length)
        self.requests.received(len(data))
        return data

    def download(self, path: str, target: Path) -> int:
        place = self._place(path)
        self.requests.count(Kind.READ)
        size_bytes = 0
        with self._translated(path), place.open("rb") as source, scratch_file(target) as write:
            while piece := source.read(DOWNLOAD_PIECE_BYTES):
                write(piece)
                size_bytes += len(piece)
                self.requests.received(len(piece))
        return size_bytes

    def create(self, path: str, data: bytes | Path) -> Created:
        content = Content.of(data)
        target = self._place(path)
        self.requests.count(Kind.CREATE, bytes_written=content.size_bytes)
        with self._translated(path), self._unfinished(content) as temp:
            self._make_folder(target.parent)
            if not target.exists():
                _forget_sidecar(target)
            if self._link(temp, target, path):
                created = Created.NEW
            else:
                self._compare(path, target, content)
                created = Created.SAME
                # The one who linked it may have died before its flush, and our caller is about to rely on the file.
                _flush(target)
            _flush(target.parent)
        return created

    def replace(self, path: str, data: bytes | Path) -> None:
        content = Content.of(data)
        target = self._place(path)
        self.requests.count(Kind.REPLACE, bytes_written=content.size_bytes)
        with self._translated(path), self._unfinished(content) as temp:
            self._make_folder(target.parent)
            _forget_sidecar(target)
            temp.replace(target)
            _flush(target.parent)

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        folder = self._place(prefix) if checked_folder(prefix) else self._root
        self.requests.count(Kind.LIST)
        with self._translated(prefix):
            return sorted(self._walk(folder, prefix, hidden=hidden), key=lambda entry: entry.path)

    def folders(self, prefix: str) -> Names:
        folder = self._place(prefix) if checked_folder(prefix) else self._root
        self.requests.count(Kind.LIST)
        try:
            with self._translated(prefix):
                found = [item.name for item in os.scandir(folder) if item.is_dir(follow_symlinks=False)]
        except ObjectMissing:
            return []
        return sorted(name for name in found if not name.startswith("."))

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
        # Not flushed: a deletion that a power cut takes back leaves garbage, which the next run finds again.
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

    def _place(self, path: str) -> Path:
        """Where the object is. A link below the root could lead a delete anywhere on the machine: it is refused."""
        place = self._root / checked(path)
        if os.path.realpath(place) != str(place):
            raise self._linked(path)
        return place

    @contextmanager
    def _unfinished(self, content: Content) -> Iterator[Path]:
        """The content in a flushed file of its own, which has another name, or none, when the block is left."""
        temp = self._place(f"{TEMP_FOLDER}/{self._ids.fresh()}")
        self._make_folder(temp.parent)
        try:
            with temp.open("xb") as file:
                for number in range(content.pieces):
                    file.write(content.piece(number))
                file.flush()
                os.fsync(file.fileno())
            yield temp
        finally:
            temp.unlink(missing_ok=True)

    def _make_folder(self, folder: Path) -> None:
        """Make it and what is above it; each new name is flushed, else a power cut could take it with its files."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _flush(folder.parent)

    def _link(self, temp: Path, target: Path, path: str) -> bool:
        """Give the finished file its name; False when the name is taken."""
        try:
            target.hardlink_to(temp)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            raise StorageError(
                f"cannot be created by a hard link ({error.strerror})",
                path=self._shown(path),
                hint="keep the whole root on one file system that has hard links, or on S3",
            ) from error
        return True

    def _compare(self, path: str, target: Path, content: Content) -> None:
        """Return when the file at `target` has this content, else raise AlreadyExists."""
        self.requests.count(Kind.READ)

        def read_range(start: int, length: int) -> bytes:
            file.seek(start)
            piece = file.read(length)
            self.requests.received(len(piece))
            return piece

        with target.open("rb") as file:
            if os.fstat(file.fileno()).st_size == content.size_bytes and content.equals(read_range):
                return
        raise AlreadyExists("stands there with other bytes", path=self._shown(path), hint="somebody else was first")

    def _walk(self, folder: Path, prefix: str, *, hidden: bool) -> Iterator[Entry]:
        try:
            with self._translated(prefix):
                found = list(os.scandir(folder))
        except ObjectMissing:
            return
        for item in found:
            path = f"{prefix}/{item.name}" if prefix else item.name
            if not is_listed(path, prefix, hidden=hidden):
                continue
            if item.is_symlink():
                raise self._linked(path)
            if item.is_dir(follow_symlinks=False):
                yield from self._walk(folder / item.name, path, hidden=hidden)
            elif item.is_file(follow_symlinks=False):
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

    def _linked(self, path: str) -> StorageError:
        what = "a symbolic link below the state root is not followed"
        return StorageError(what, path=self._shown(path), hint="put the files themselves there")

    def _shown(self, path: str) -> str:
        return f"{self._root}/{path}"


def translate(error: OSError, shown: str) -> StorageError:
    """The library's error for what the operating system says of the file `shown`."""
    if error.errno in _MISSING:
        return ObjectMissing("is not there", path=shown)
    if error.errno in _DENIED:
        return AccessDenied("the file system refuses it", path=shown, hint="look at owner and mode of root and file")
    if error.errno in _FULL:
        return StorageError("no space is left on the disk of the state root", path=shown, hint="free space")
    return StorageError(error.strerror or str(error), path=shown, hint="look at the disk, then try again")


def _forget_sidecar(target: Path) -> None:
    """Remove Hadoop's `.NAME.crc` of bytes that are going: left behind, it makes the next file unreadable to Hadoop."""
    target.with_name(f".{target.name}.crc").unlink(missing_ok=True)


def _flush(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
