"""The interface of storage backends, and its value types. The backends are `local`, `s3` and `remote`. No I/O.

A root has the same layout in each backend:

    <root>/
    ├── state/0/3/17_6ad1….changelog    created once; the name is never reused for other bytes
    ├── commits/16  offsets/16          likewise
    └── _statekeeper/                   control files of Statekeeper; Spark does not read them
        └── tmp/                        unfinished files on local disk; listings of parent folders omit them
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from pathlib import Path
from typing import Never, Protocol

from statekeeper.statestore.base.errors import AlreadyExists, CorruptFile, ObjectMissing, SourceChanged, UnsafePath
from statekeeper.statestore.format import names
from statekeeper.statestore.format.limits import DEFAULT_LIMITS, SizeLimits, how_to_read
from statekeeper.statestore.storage.omissions import Omissions
from statekeeper.statestore.storage.paths import is_below

TEMP_FOLDER = names.TEMPORARY
DELETE_BATCH = 1000
"""Names in one delete request; the maximum of S3."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A listed object. The time is the backend's, in seconds since the epoch. `etag` identifies the bytes in a bucket;
    None on a file system."""

    path: str
    size_bytes: int
    modified_at_seconds: float | None
    etag: str | None = None


@dataclass(frozen=True)
class Location:
    """The storage service of a root, and the root's place in it.

    service   equal for roots of one service: the number of a file system, or the endpoint and the credentials of a bucket
    place     the root in the service, such as "bucket/folder"; paths of objects follow it after "/"
    free      free bytes of a local disk; None elsewhere
    copies    whether the service copies objects between its roots
    """

    service: Hashable
    place: str
    free: int | None = None
    copies: bool = True

    def can_copy_from(self, other: Location) -> bool:
        """Return whether the service copies objects of the other root to this one."""
        return self.service == other.service and self.copies

    def contains(self, other: Location) -> bool:
        """Return whether the other root is this root or inside it."""
        return self.service == other.service and is_below(other.place, self.place)


Entries = list[Entry]
Names = list[str]
"""A class with a method `list` cannot refer to the built-in type in its annotations."""


class Created(Enum):
    """The outcome of a successful create-if-absent."""

    NEW = "new"
    SAME = "same"
    """The object already existed with the same bytes, from an earlier try or from a duplicate attempt of the task."""


class Deletion(Enum):
    """The outcome of a conditional delete."""

    DELETED = "deleted"
    CHANGED = "the object has other bytes and was not deleted"
    MISSING = "the object does not exist"
    """Another process deleted it, or an earlier try whose reply was lost."""


class Kind(StrEnum):
    """The kind of a request."""

    READ = "read"
    CREATE = "create"
    REPLACE = "replace"
    LIST = "list"
    STAT = "stat"
    DELETE = "delete"


@dataclass(frozen=True, kw_only=True)
class RequestCounts:
    """Requests by kind and transferred bytes, including failed tries and hedges, which cost money too.

    hedges_sent   requests that were sent a second time because they were slow, see `hedging`
    hedges_won    those whose second reply came first
    wait_seconds  pauses before requests were sent again after a failure
    """

    read: int = 0
    create: int = 0
    replace: int = 0
    list: int = 0
    stat: int = 0
    delete: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    hedges_sent: int = 0
    hedges_won: int = 0
    wait_seconds: float = field(default=0.0, compare=False)

    @property
    def total(self) -> int:
        """The number of requests of all kinds."""
        return self.read + self.create + self.replace + self.list + self.stat + self.delete

    @property
    def writes(self) -> int:
        """The number of requests at the price of a PUT. Deletions are free."""
        return self.create + self.replace + self.list

    @property
    def reads(self) -> int:
        """The number of requests at the price of a GET."""
        return self.read + self.stat

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


class Requests:
    """Counts the requests of a backend. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {one.name: 0 for one in fields(RequestCounts) if one.name != "wait_seconds"}
        self._wait_seconds = 0.0

    def count(self, kind: Kind, *, bytes_written: int = 0) -> None:
        with self._lock:
            self._counts[kind.value] += 1
            self._counts["bytes_written"] += bytes_written

    def count_bytes_read(self, size_bytes: int) -> None:
        with self._lock:
            self._counts["bytes_read"] += size_bytes

    def count_hedge(self) -> None:
        with self._lock:
            self._counts["hedges_sent"] += 1

    def count_hedge_won(self) -> None:
        with self._lock:
            self._counts["hedges_won"] += 1

    def count_wait(self, seconds: float) -> None:
        with self._lock:
            self._wait_seconds += seconds

    def add(self, counts: RequestCounts) -> None:
        """Add requests that another process has sent for this one."""
        with self._lock:
            for name in self._counts:
                self._counts[name] += getattr(counts, name)
            self._wait_seconds += counts.wait_seconds

    def snapshot(self) -> RequestCounts:
        with self._lock:
            return RequestCounts(**self._counts, wait_seconds=self._wait_seconds)

    def since(self, earlier: RequestCounts) -> RequestCounts:
        """The requests after `earlier`."""
        now = self.snapshot()
        return RequestCounts(
            **{one.name: getattr(now, one.name) - getattr(earlier, one.name) for one in fields(RequestCounts)}
        )


class PartsUpload(Protocol):
    """An object that is created in parts of one size; the last part may be smaller. See `Storage.create_in_parts`."""

    def send(self, number: int, data: bytes) -> None:
        """Send part `number`, from 0. Several threads may send parts. Raises StorageError; ObjectMissing if another
        process aborted the upload."""

    def complete(self, file: Path) -> Created:
        """Make the object visible. `file` has the bytes of all parts, to verify a conflict.

        Raises as `Storage.create`; ObjectMissing if another process aborted the upload.
        """

    def abort(self) -> None:
        """Drop the parts. Raises StorageError."""


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An upload in parts that is neither complete nor aborted. Listings of objects omit it, but its parts are billed.

    `size_bytes`: of the parts that arrived; the time is the backend's, in seconds since the epoch.
    """

    path: str
    id: str
    size_bytes: int
    started_at_seconds: float


Uploads = list[UnfinishedUpload]


class Storage(Protocol):
    """A root in a storage backend. Paths are relative, with '/'; absolute paths, '.', '..' and empty parts: ValueError.

    Every method raises StorageError or a subclass (AccessDenied, BucketMissing, ...) after bounded retries. An instance is
    thread-safe and belongs to the process that opened it; pass a StorageSpec to another process.
    """

    @property
    def url(self) -> str: ...

    @property
    def requests(self) -> Requests: ...

    @property
    def omissions(self) -> Omissions:
        """The names that listings have omitted so far."""

    @property
    def limits(self) -> SizeLimits:
        """The sizes that this root accepts. Readers of changelogs and writers of records use them, too."""

    @property
    def location(self) -> Location: ...

    def read(self, path: str) -> bytes:
        """Read a whole object of up to `limits.object_bytes`. Raises ObjectMissing; CorruptFile for a larger object."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from byte `start`, fewer at the end of the object. Raises ObjectMissing."""

    def download(self, path: str, target: Path, *, expected_bytes: int | None = None) -> int:
        """Download the object to a local file in pieces; returns its size in bytes. Raises ObjectMissing; CorruptFile if it
        does not have `expected_bytes`, before its bytes are read.

        *Guarantee*: a failure leaves no partial file at `target`.
        """

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        """Create the object if it does not exist. A Path is uploaded in pieces and not held in memory.

        Raises TooLarge for bytes that `read` would reject.

        On a file system the file gets the owner, group and mode of the adjacent files, or of the file `like`.

        *Guarantee*: the object becomes visible as a whole, and exactly one of several writers succeeds. Raises
        AlreadyExists if the object exists with other bytes. After any other error the object may exist: to find out,
        create it again with the same bytes.
        """

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        """Create or overwrite the object. A Path is uploaded as in `create`. Raises TooLarge as `create`.

        On a file system an existing file keeps its owner, group and mode. A new file gets them as in `create`.

        *Danger*: the last writer wins silently. Use it only for control files, and for changelogs of structure V1, where
        digests identify the confirmed bytes.
        *Guarantee*: a reader sees the old bytes or the new bytes.
        """

    def copy(self, path: str, source: Location, entry: Entry) -> None:
        """Create the object as a copy of an object of another root in the same service. Its bytes do not pass through this
        process. On a file system the copy is a hard link. If links fail, it shares the blocks of the source, if the file
        system has reflinks; else the kernel copies the bytes or, if it cannot, this process.

        Raises ObjectMissing if the object of the other root was deleted, and SourceChanged if it has changed since it was
        listed. On a file system and on Google Cloud Storage, an object at `path` with other bytes stays, and the call
        raises AlreadyExists. *Danger*: on S3 and Azure, it is overwritten.
        """

    def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload | None:
        """Begin to create an object in parts; None if this backend creates an object only in one request.

        `replaces`: complete as `replace` does instead of `create`. Nothing is visible before the upload is complete.
        """

    def unfinished_uploads(self) -> Uploads:
        """List the uploads in parts below the root that are neither complete nor aborted, also of running tasks, sorted
        by path. On a file system they are unfinished files in TEMP_FOLDER instead."""

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Drop the parts of an upload. An upload that no longer exists is not an error.

        *Danger*: a running task then sends its changelog again from the start.
        """

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        """List all objects below the folder `prefix` ("" is the root) at any depth, sorted by path.

        A missing folder gives an empty list. The listing omits entries that are not regular files and names that are not
        paths, and records them in `omissions`. It omits names with a part that starts with '.' (Hadoop's sidecars and
        unfinished files) unless `hidden` is set, and TEMP_FOLDER unless `prefix` is in it.
        """

    def list_after(self, folder: str, name: str, *, beginning: str) -> Entries:
        """List the objects directly in a folder whose names begin with `beginning` and sort after `name`, sorted by path.

        S3 lists only this range. Other backends list the whole folder in one request.
        """

    def folders(self, prefix: str) -> Names:
        """List the names of the folders directly below the folder `prefix` ("" is the root), sorted, without hidden ones.

        A missing folder gives an empty list. Takes one listing, whatever the folders contain.
        """

    def stat(self, path: str) -> Entry | None:
        """The size and time of an object; None if it is missing."""

    def require_ownership(self) -> None:
        """Raise `ForeignOwner` if this process cannot give its files the owner and group of the checkpoint's files. Verbs
        call it before they write. A backend without owners does nothing."""

    def delete_unchanged(self, path: str, data: bytes) -> Deletion:
        """Delete the object only if it holds these bytes, so that a stalled holder cannot delete its successor's object.

        *Guarantee*: atomic on local disk, and on S3 if the store supports `If-Match` (see `s3_conditions`). Other backends
        compare the bytes first, and a write between the two requests is deleted.
        """

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects, up to DELETE_BATCH per request. Missing objects are not an error.

        *Danger*: after an error some objects are deleted and others are not. Call it again.
        """


def compare_and_delete(storage: Storage, path: str, data: bytes) -> Deletion:
    """Implement `Storage.delete_unchanged` in two requests, for a backend without conditional deletes. A write between the
    two requests is lost."""
    found = read_or_none(storage, path)
    if found is None:
        return Deletion.MISSING
    if found != data:
        return Deletion.CHANGED
    storage.delete([path])
    return Deletion.DELETED


class OpenedStore:
    """The base class of backends: URL, limits, request counters, and a guard against pickling."""

    def __init__(self, url: str, limits: SizeLimits = DEFAULT_LIMITS) -> None:
        self.url = url
        self.limits = limits
        self.requests = Requests()
        self.omissions = Omissions()

    def require_ownership(self) -> None:
        """Do nothing: readers of an object store do not check owners."""

    def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload | None:
        """Return None: the backend creates an object in one request."""
        return None

    def unfinished_uploads(self) -> Uploads:
        """Return none."""
        return []

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Do nothing: the backend has no uploads."""

    def __reduce__(self) -> Never:
        # Connections, event loops and locks do not survive pickling or a fork. Spark's workers do both.
        raise TypeError("a Storage is never pickled: send its StorageSpec and open it in the worker")


def checked(path: str) -> str:
    """Return the path. Raises UnsafePath, a ValueError, unless it is relative, plain and inside the root."""
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise UnsafePath(
            f"{path[:200]!r} is not a valid path in a checkpoint: it must be relative, without '.', '..' and empty parts",
            hint="correct the path. If a file in the checkpoint contains it, restore this file from a backup",
        )
    return path


def checked_folder(prefix: str) -> str:
    """As `checked`; "" is the root."""
    return prefix and checked(prefix)


def is_hidden(path: str) -> bool:
    """Return whether a part of the path starts with '.'."""
    return path.startswith(".") or "/." in path


def is_listed(path: str, prefix: str, *, hidden: bool = False) -> bool:
    """Return whether a listing of the folder `prefix` contains `path`; see `Storage.list`."""
    if is_hidden(path) and not hidden:
        return False
    return is_below(prefix, TEMP_FOLDER) or not is_below(path, TEMP_FOLDER)


def marks_folder(path: str, size_bytes: int) -> bool:
    """Return whether an object is a folder marker: empty, with a name as consoles and Hadoop write it (`state/`), or as
    Amazon EMR does (`state_$folder$`)."""
    return path.endswith("/") or (size_bytes == 0 and path.endswith("_$folder$"))


def only_after(entries: Iterable[Entry], folder: str, name: str, beginning: str) -> Entries:
    """Filter the entries of a folder as `Storage.list_after` does."""
    after, first = f"{folder}/{name}", f"{folder}/{beginning}"
    inside = len(folder) + 1
    return [e for e in entries if e.path.startswith(first) and e.path > after and "/" not in e.path[inside:]]


def too_large(size_bytes: int, shown: str, limits: SizeLimits) -> CorruptFile:
    """Return the error for an object of more than `limits.object_bytes`."""
    return CorruptFile(
        f"has {size_bytes:,} bytes, more than the limit of {limits.object_bytes:,} bytes for such a file; it was not read",
        path=shown,
        hint=f"if the file is intact, {how_to_read(size_bytes, 'object')}. If not, restore it from a backup",
    )


def another_exists(shown: str) -> AlreadyExists:
    """Return the error for a create whose name is taken by other bytes."""
    return AlreadyExists(
        "already exists with other bytes and was not overwritten",
        path=shown,
        hint="another process created the file first: wait until that process finishes, or stop one of the two processes",
    )


def changed(shown: str) -> SourceChanged:
    """Return the error for an object that is to be copied and has changed since it was listed."""
    return SourceChanged(
        "changed since it was listed; the copy is not complete", path=shown, hint="to continue, run the command again"
    )


def read_or_none(storage: Storage, path: str) -> bytes | None:
    """Read a whole object; None if it is missing."""
    try:
        return storage.read(path)
    except ObjectMissing:
        return None
