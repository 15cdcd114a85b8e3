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

from statestore.errors import CorruptFile, ObjectMissing, UnsafePath

TEMP_FOLDER = "_statekeeper/tmp"
DELETE_BATCH = 1000
"""Names in one delete request: the most that S3 takes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as a listing shows it. The time is the store's, in seconds since the epoch. `etag`: what a bucket calls
    these bytes; None on a file system."""

    path: str
    size_bytes: int
    modified_at_seconds: float | None
    etag: str | None = None


MOST_READ_BYTES = 64 * 1024 * 1024
"""Of an object that is read as a whole: logs, descriptions, records, zips. Others are downloaded, or read by ranges."""

MOST_OMITTED = 10_000

Entries = list[Entry]
Names = list[str]
"""Named here because inside a class with a method `list` the built-in cannot be written."""


class Created(Enum):
    """How a create-if-absent ended well."""

    NEW = "new"
    SAME = "same"
    """The object stood there already with the very same bytes: an earlier try of ours, or a twin of the task."""


class Deletion(Enum):
    """How a delete of certain bytes ended."""

    DELETED = "deleted"
    CHANGED = "other bytes stand there, and stay"
    MISSING = "nothing stands there"
    """Another process was first, or an earlier try of ours whose reply was lost."""


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

    @property
    def omissions(self) -> Omissions:
        """What the listings so far have left out."""

    def read(self, path: str) -> bytes:
        """The whole object, of up to MOST_READ_BYTES. Raises ObjectMissing, CorruptFile for a larger one."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Up to `length` bytes from byte `start`; fewer, or none, where the object ends. Raises ObjectMissing."""

    def download(self, path: str, target: Path) -> int:
        """Write the object to a local file, piece by piece; its size in bytes. Raises ObjectMissing.

        *Guarantee*: no half of it is left at `target` when it fails.
        """

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        """Create the object if there is none of that name. A Path is uploaded piece by piece, not held in memory.

        On a file system it gets owner, group and mode of the files beside it, or those of the file `like`.

        *Guarantee*: all or nothing is visible under the name, and of several writers exactly one wins. Raises
        AlreadyExists when other bytes stand there. Any other error leaves open whether the object landed: create it
        again with the same bytes to know.
        """

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        """Write the object whether or not it exists. A Path is uploaded as with `create`.

        On a file system an existing file keeps owner, group and mode; a new one gets them as with `create`.

        *Danger*: the last writer wins and nobody learns of it. For own control files, and for changelogs of structure V1,
        where digests tell which bytes were confirmed.
        *Guarantee*: a reader sees the old bytes or the new ones.
        """

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        """Everything below the folder `prefix` ("" is the root) at any depth, sorted by path.

        A missing folder is an empty list. What is no regular file, or has a name that is no path, is left out and noted in
        `omissions`. Names with a part that starts with '.' are left out (Hadoop's sidecars and
        unfinished files) unless `hidden` asks for them, and so is TEMP_FOLDER unless `prefix` names it: that is how
        leftovers of crashes are found.
        """

    def list_after(self, folder: str, name: str, *, beginning: str) -> Entries:
        """The objects directly in a folder whose names begin with `beginning` and sort after `name`, sorted by path.

        On S3 the listing starts and ends there. Other stores list the folder whole, in one request.
        """

    def folders(self, prefix: str) -> Names:
        """The names of the folders directly below the folder `prefix` ("" is the root), sorted; hidden ones left out.

        A missing folder has none. One listing, whatever lies in them.
        """

    def stat(self, path: str) -> Entry | None:
        """Size and time of one object; None when it is missing."""

    def require_ownership(self) -> None:
        """Raises `ForeignOwner` when this process cannot give its files owner and group of the checkpoint's files. Verbs
        call it before they write; a store without owners has nothing to ask."""

    def delete_unchanged(self, path: str, data: bytes) -> Deletion:
        """Delete the object only while it holds these bytes: a holder that stalled must not delete what its successor wrote
        under the same name.

        *Guarantee*: in one step on local disk, and on S3 where the store honours `If-Match` (see `s3_conditions`).
        Elsewhere the bytes are compared first: a write in the moment between is deleted.
        """

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, up to DELETE_BATCH in a request. What is not there is fine.

        *Danger*: an error leaves some of them deleted and some not. Run it again.
        """


def compare_and_delete(storage: Storage, path: str, data: bytes) -> Deletion:
    """`Storage.delete_unchanged` for a store that cannot do it in one step: a write between the two requests is lost."""
    found = read_or_none(storage, path)
    if found is None:
        return Deletion.MISSING
    if found != data:
        return Deletion.CHANGED
    storage.delete([path])
    return Deletion.DELETED


@dataclass(frozen=True)
class Omitted:
    """Something below the root that no listing shows. `shown`: its path, for people; it may be none that can be used."""

    shown: str
    why: str


class Omissions:
    """What listings met and left out: links, FIFOs, sockets, devices, and names that no path can hold. Safe to use from
    several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, str] = {}

    def note(self, path: str, why: str) -> None:
        with self._lock:
            # A folder of nothing else is not to fill the memory; what is left out is kept all the same.
            if len(self._found) < MOST_OMITTED:
                self._found[printable(path)] = why

    def below(self, folder: str) -> tuple[Omitted, ...]:
        """Those in a folder ("" is the root), as far as listings have met them, sorted; of many, some."""
        with self._lock:
            found = sorted(self._found.items())
        return tuple(Omitted(shown, why) for shown, why in found if not folder or is_below(shown, folder))


def printable(path: str) -> str:
    """The path with what is not text, or would change a terminal, written as escapes."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class OpenedStore:
    """What all stores share: their url, their counters, and that they stay in the process that opened them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests = Requests()
        self.omissions = Omissions()

    def require_ownership(self) -> None:
        """An object store has no owners of objects that a reader would trip over."""

    def __reduce__(self) -> Never:
        # A connection, its event loop and its locks do not survive pickling or a fork; Spark's workers do both.
        raise TypeError("a Storage is never pickled: send its StorageSpec and open it in the worker")


def checked(path: str) -> str:
    """The path itself; UnsafePath, a ValueError, when it is not relative, plain and inside of the root."""
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise UnsafePath(
            f"{path[:200]!r} is no path below a state root: it is relative, without '.', '..' and empty parts"
        )
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


def only_after(entries: Iterable[Entry], folder: str, name: str, beginning: str) -> Entries:
    """Of the entries of a folder those that `Storage.list_after` shows."""
    after, first = f"{folder}/{name}", f"{folder}/{beginning}"
    inside = len(folder) + 1
    return [e for e in entries if e.path.startswith(first) and e.path > after and "/" not in e.path[inside:]]


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is the folder or in it."""
    return path == folder or path.startswith(f"{folder}/")


def too_large(size_bytes: int, shown: str) -> CorruptFile:
    """The error for an object of more than MOST_READ_BYTES."""
    return CorruptFile(
        f"has {size_bytes:,} bytes; a file of its kind has {MOST_READ_BYTES:,} at most",
        path=shown,
        hint="restore the file from a backup",
    )


def read_or_none(storage: Storage, path: str) -> bytes | None:
    """The whole object, None when it is not there."""
    try:
        return storage.read(path)
    except ObjectMissing:
        return None
