"""A root in memory for simulations: same guarantees as disk and S3, with a clock of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.errors import ObjectMissing
from statekeeper.statestore.storage.base import (
    Created,
    Deletion,
    Entries,
    Entry,
    Kind,
    Names,
    OpenedStore,
    another_exists,
    checked,
    checked_folder,
    is_listed,
    only_after,
)
from statekeeper.statestore.storage.content import require_size


@dataclass(frozen=True)
class StoredObject:
    """Bytes, and when they were written (seconds since the epoch)."""

    data: bytes
    modified_at_seconds: float


class MemoryStorage(OpenedStore):
    """Storage in a dict. `now_seconds` is the store's own clock."""

    def __init__(self, now_seconds: Callable[[], float]) -> None:
        super().__init__("memory://")
        self.objects: dict[str, StoredObject] = {}
        self._now_seconds = now_seconds

    def read(self, path: str) -> bytes:
        self.requests.count(Kind.READ)
        data = self._found(path).data
        self.requests.count_bytes_read(len(data))
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self.requests.count(Kind.READ)
        data = self._found(path).data[start : start + length]
        self.requests.count_bytes_read(len(data))
        return data

    def download(self, path: str, target: Path, *, expected_bytes: int | None = None) -> int:
        data = self.read(path)
        require_size(path, len(data), expected_bytes)
        target.write_bytes(data)
        return len(data)

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        del like  # of a file system
        body = data.read_bytes() if isinstance(data, Path) else data
        self.requests.count(Kind.CREATE, bytes_written=len(body))
        there = self.objects.get(checked(path))
        if there is None:
            self.objects[path] = StoredObject(body, self._now_seconds())
            return Created.NEW
        if there.data == body:
            return Created.SAME
        raise another_exists(path)

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        del like
        body = data.read_bytes() if isinstance(data, Path) else data
        self.requests.count(Kind.REPLACE, bytes_written=len(body))
        self.objects[checked(path)] = StoredObject(body, self._now_seconds())

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        self.requests.count(Kind.LIST)
        below = f"{checked_folder(prefix)}/" if prefix else ""
        return [
            _entry(path, found)
            for path, found in sorted(self.objects.items())
            if path.startswith(below) and is_listed(path, prefix, hidden=hidden)
        ]

    def list_after(self, folder: str, name: str, *, beginning: str) -> Entries:
        return only_after(self.list(folder), folder, name, beginning)

    def folders(self, prefix: str) -> Names:
        self.requests.count(Kind.LIST)
        below = f"{checked_folder(prefix)}/" if prefix else ""
        parts = [path.removeprefix(below).split("/") for path in self.objects if path.startswith(below)]
        return sorted({part[0] for part in parts if len(part) > 1 and not part[0].startswith(".")})

    def stat(self, path: str) -> Entry | None:
        self.requests.count(Kind.STAT)
        found = self.objects.get(checked(path))
        return None if found is None else _entry(path, found)

    def delete(self, paths: Iterable[str]) -> None:
        self.requests.count(Kind.DELETE)
        for path in paths:
            self.objects.pop(checked(path), None)

    def delete_unchanged(self, path: str, data: bytes) -> Deletion:
        self.requests.count(Kind.DELETE)
        found = self.objects.get(checked(path))
        if found is None:
            return Deletion.MISSING
        if found.data != data:
            return Deletion.CHANGED
        self.delete([path])
        return Deletion.DELETED

    def _found(self, path: str) -> StoredObject:
        found = self.objects.get(checked(path))
        if found is None:
            raise ObjectMissing("does not exist", path=path)
        return found


def _entry(path: str, found: StoredObject) -> Entry:
    return Entry(path, len(found.data), found.modified_at_seconds)
