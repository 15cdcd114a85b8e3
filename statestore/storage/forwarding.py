"""Storages around another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from statekeeper.statestore.format.limits import SizeLimits
from statekeeper.statestore.storage.base import (
    Created,
    Deletion,
    Entries,
    Entry,
    Location,
    Names,
    PartsUpload,
    Requests,
    Storage,
    UnfinishedUpload,
    Uploads,
)
from statekeeper.statestore.storage.omissions import Omissions


def _itself(storage: Storage) -> Storage:
    return storage


class ForwardingStorage:
    """A `Storage` that forwards each request to the storage `inner`. Subclasses change some requests.

    Pickled, it is the storage `inner`: a lease and what is remembered stay in the process that has them.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def __reduce__(self) -> tuple[object, ...]:
        return (_itself, (self.inner,))

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def limits(self) -> SizeLimits:
        return self.inner.limits

    @property
    def requests(self) -> Requests:
        return self.inner.requests

    @property
    def omissions(self) -> Omissions:
        return self.inner.omissions

    @property
    def location(self) -> Location:
        return self.inner.location

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.inner.read_range(path, start, length)

    def download(self, path: str, target: Path, *, expected_bytes: int | None = None) -> int:
        return self.inner.download(path, target, expected_bytes=expected_bytes)

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        return self.inner.create(path, data, like=like)

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        self.inner.replace(path, data, like=like)

    def copy(self, path: str, source: Location, entry: Entry) -> None:
        self.inner.copy(path, source, entry)

    def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload | None:
        return self.inner.create_in_parts(path, part_bytes=part_bytes, replaces=replaces)

    def unfinished_uploads(self) -> Uploads:
        return self.inner.unfinished_uploads()

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self.inner.abort_upload(upload)

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        return self.inner.list(prefix, hidden=hidden)

    def list_after(self, folder: str, name: str, *, beginning: str) -> Entries:
        return self.inner.list_after(folder, name, beginning=beginning)

    def folders(self, prefix: str) -> Names:
        return self.inner.folders(prefix)

    def stat(self, path: str) -> Entry | None:
        return self.inner.stat(path)

    def require_ownership(self) -> None:
        self.inner.require_ownership()

    def delete_unchanged(self, path: str, data: bytes) -> Deletion:
        return self.inner.delete_unchanged(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        self.inner.delete(paths)


class CheckedStorage(ForwardingStorage):
    """A storage that calls `check` before each request that writes or deletes. Its error is that of the request."""

    def __init__(self, inner: Storage, check: Callable[[], None]) -> None:
        super().__init__(inner)
        self._check = check

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        self._check()
        return super().create(path, data, like=like)

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        self._check()
        super().replace(path, data, like=like)

    def copy(self, path: str, source: Location, entry: Entry) -> None:
        self._check()
        super().copy(path, source, entry)

    def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload | None:
        self._check()
        return super().create_in_parts(path, part_bytes=part_bytes, replaces=replaces)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._check()
        super().abort_upload(upload)

    def delete_unchanged(self, path: str, data: bytes) -> Deletion:
        self._check()
        return super().delete_unchanged(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        self._check()
        super().delete(paths)
