"""What every store of bytes can do, and the values it speaks in. No I/O here; the stores are `local`, `s3` and `remote`.

A root looks the same in each:

    <root>/
    ├── state/0/3/17_6ad1….changelog    created once under a name that is never reused with other bytes
    ├── commits/16  offsets/16          likewise
    └── _statekeeper/                   control files of this library; Spark never looks here
        └── tmp/                        unfinished files of the local disk; left out of a listing of anything above
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from pathlib import Path
from typing import Never, Protocol

from statestore.errors import ObjectMissing

TEMP_FOLDER = "_statekeeper/tmp"
DELETE_BATCH = 1000
"""Names in one delete request: the most that S3 takes."""


@dataclass(frozen=True)
class Entry:
    """An object as a listing shows it. The time is the store's, in seconds since the epoch."""

    path: str
    size_bytes: int
    modified_at_seconds: float | None


Entries = list[Entry]
Names = list[str]
"""Named here because inside a class with a method `list` the built-in cannot be written."""


class Created(Enum):
    """How a create-if-absent ended well."""

    NEW = "new"
    SAME = "same"
    """The object stood there already with the very same bytes: an earlier try of ours, or a twin of the task."""


class Kind(StrEnum):
    """What a request does."""

    READ = "read"
    CREATE = "create"
    REPLACE = "replace"
    LIST = "list"
    STAT = "stat"
    DELETE = "delete"


@dataclass(frozen=True)
class RequestCounts:
    """Requests by kind, and bytes that crossed the wire (of failed tries too: they are paid for)."""

    read: int = 0
    create: int = 0
    replace: int = 0
    list: int = 0
    stat: int = 0
    delete: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def total(self) -> int:
        """Requests of any kind."""
        return self.read + self.create + self.replace + self.list + self.stat + self.delete


class Requests:
    """Counts what a store does. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {field.name: 0 for field in fields(RequestCounts)}

    def count(self, kind: Kind, *, bytes_written: int = 0) -> None:
        with self._lock:
            self._counts[kind.value] += 1
            self._counts["bytes_written"] += bytes_written

    def received(self, size_bytes: int) -> None:
        with self._lock:
            self._counts["bytes_read"] += size_bytes

    def snapshot(self) -> RequestCounts:
        with self._lock:
            return RequestCounts(**self._counts)

    def since(self, earlier: RequestCounts) -> RequestCounts:
        """What was added after `earlier`."""
        now = self.snapshot()
        return RequestCounts(
            **{field.name: getattr(now, field.name) - getattr(earlier, field.name) for field in fields(RequestCounts)}
        )


class Storage(Protocol):
    """A root in a store. Paths are relative to it, with '/'; '..', '.', absolute paths and empty parts: ValueError.

    Every method raises StorageError or one of its subclasses (AccessDenied, BucketMissing, ...), after bounded retries.
    One instance may be used by several threads. It belongs to the process that opened it: what travels is StorageSpec.
    """

    @property
    def url(self) -> str: ...

    @property
    def requests(self) -> Requests: ...

    def read(self, path: str) -> bytes:
        """The whole object. Raises ObjectMissing."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Up to `length` bytes from byte `start`; fewer, or none, where the object ends. Raises ObjectMissing."""

    def download(self, path: str, target: Path) -> int:
        """Write the object to a local file, piece by piece; its size in bytes. Raises ObjectMissing.

        *Guarantee*: no half of it is left at `target` when it fails.
        """

    def create(self, path: str, data: bytes | Path) -> Created:
        """Create the object if there is none of that name. A Path is uploaded piece by piece, not held in memory.

        *Guarantee*: all or nothing is visible under the name, and of several writers exactly one wins. Raises
        AlreadyExists when other bytes stand there. Any other error leaves open whether the object landed: create it
        again with the same bytes to know.
        """

    def replace(self, path: str, data: bytes | Path) -> None:
        """Write the object whether or not it exists. A Path is uploaded as with `create`.

        *Danger*: the last writer wins and nobody learns of it. For own control files, and for changelogs of structure V1,
        where digests tell which bytes were confirmed.
        *Guarantee*: a reader sees the old bytes or the new ones.
        """

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        """Everything below the folder `prefix` ("" is the root) at any depth, sorted by path.

        A missing folder is an empty list. Names with a part that starts with '.' are left out (Hadoop's sidecars and
        unfinished files) unless `hidden` asks for them, and so is TEMP_FOLDER unless `prefix` names it: that is how
        leftovers of crashes are found.
        """

    def folders(self, prefix: str) -> Names:
        """The names of the folders directly below the folder `prefix` ("" is the root), sorted; hidden ones left out.

        A missing folder has none. One listing, whatever lies in them.
        """

    def stat(self, path: str) -> Entry | None:
        """Size and time of one object; None when it is missing."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, up to DELETE_BATCH in a request. What is not there is fine.

        *Danger*: an error leaves some of them deleted and some not. Run it again.
        """


class OpenedStore:
    """What all stores share: their url, their counters, and that they stay in the process that opened them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests = Requests()

    def __reduce__(self) -> Never:
        # A connection, its event loop and its locks do not survive pickling or a fork; Spark's workers do both.
        raise TypeError("a Storage is never pickled: send its StorageSpec and open it in the worker")


def checked(path: str) -> str:
    """The path itself; ValueError when it is not relative, plain and inside of the root."""
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{path!r} is no path below a state root: it is relative, without '.', '..' and empty parts")
    return path


def checked_folder(prefix: str) -> str:
    """As `checked`, with "" for the root itself."""
    return prefix and checked(prefix)


def is_hidden(path: str) -> bool:
    """Whether a part of the path starts with '.'."""
    return any(part.startswith(".") for part in path.split("/"))


def is_listed(path: str, prefix: str, *, hidden: bool = False) -> bool:
    """Whether a listing of the folder `prefix` shows `path`; see `Storage.list`."""
    if is_hidden(path) and not hidden:
        return False
    return is_below(prefix, TEMP_FOLDER) or not is_below(path, TEMP_FOLDER)


def marks_folder(path: str, size_bytes: int) -> bool:
    """Whether an object of that name stands for a folder: empty, and named as consoles and Hadoop name it (`state/`), or
    Amazon's EMR (`state_$folder$`)."""
    return path.endswith("/") or (size_bytes == 0 and path.endswith("_$folder$"))


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is the folder or in it."""
    return path == folder or path.startswith(f"{folder}/")


def read_or_none(storage: Storage, path: str) -> bytes | None:
    """The whole object, None when it is not there."""
    try:
        return storage.read(path)
    except ObjectMissing:
        return None
