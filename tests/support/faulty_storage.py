"""A storage that fails as planned, around a real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.format.limits import SizeLimits
from statekeeper.statestore.storage import (
    TEMP_FOLDER,
    Created,
    Deletion,
    Entry,
    Kind,
    PartsUpload,
    Requests,
    Storage,
    UnfinishedUpload,
)
from statekeeper.statestore.storage.base import Location
from statekeeper.statestore.storage.omissions import Omissions

T = TypeVar("T")
Entries = list[Entry]
Names = list[str]


class Fault(Enum):
    """A fault of a request. With the first three the process dies: `SimulatedCrash`."""

    BEFORE = "dies before the request is sent"
    AFTER = "dies when the request is done, before its result is used"
    TORN = "dies in the middle, in the way in which a real store does"
    """Local create, replace: half of the bytes in the temp folder. S3 create, replace: nothing, there are no half
    objects. Download: half of the local file. Delete: the first half of the names is gone. Other reads: as BEFORE."""
    LOST_REPLY = "done, but the caller is told of a time-out: StorageError"


class SimulatedCrash(BaseException):
    """The process is dead. Not an Exception, so that no `except Exception` of the library survives its own death."""


@dataclass(frozen=True)
class Request:
    """One call, as recorded. `path` is the prefix of a list, and the first name of a delete."""

    number: int
    kind: Kind
    path: str
    tears: bool
    """Whether TORN is another thing than BEFORE."""


def crash_matrix(requests: Sequence[Request]) -> list[tuple[Request, Fault]]:
    """Each request with each fault that can befall it; TORN only where it differs from BEFORE."""
    return [(request, fault) for request in requests for fault in Fault if fault is not Fault.TORN or request.tears]


class FaultyStorage:
    """A Storage that numbers the calls from 0 in `trace` and lets `plan[number]` happen.

    After a crash each further call raises SimulatedCrash too, unrecorded: the dead run no `finally` block. A restart
    takes the inner storage again, which is not harmed.
    """

    def __init__(self, inner: Storage, plan: Mapping[int, Fault] | None = None) -> None:
        self.trace: list[Request] = []
        self.crashed = False
        self._inner = inner
        self._plan = dict(plan or {})
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def limits(self) -> SizeLimits:
        return self._inner.limits

    @property
    def requests(self) -> Requests:
        return self._inner.requests

    @property
    def omissions(self) -> Omissions:
        return self._inner.omissions

    def read(self, path: str) -> bytes:
        return self._do(Kind.READ, path, lambda: self._inner.read(path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._do(Kind.READ, path, lambda: self._inner.read_range(path, start, length))

    def download(self, path: str, target: Path, *, expected_bytes: int | None = None) -> int:
        def tear() -> None:
            found = self._inner.stat(path)
            if found is not None:
                target.write_bytes(self._inner.read_range(path, 0, found.size_bytes // 2))

        return self._do(
            Kind.READ, path, lambda: self._inner.download(path, target, expected_bytes=expected_bytes), tear
        )

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        def act() -> Created:
            return self._inner.create(path, data, like=like)

        return self._do(Kind.CREATE, path, act, lambda: self._leave_half(data))

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        def act() -> None:
            self._inner.replace(path, data, like=like)

        self._do(Kind.REPLACE, path, act, lambda: self._leave_half(data))

    @property
    def location(self) -> Location:
        return self._inner.location

    def copy(self, path: str, source: Location, entry: Entry) -> None:
        self._do(Kind.CREATE, path, lambda: self._inner.copy(path, source, entry))

    def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload | None:
        kind = Kind.REPLACE if replaces else Kind.CREATE

        def act() -> PartsUpload | None:
            return self._inner.create_in_parts(path, part_bytes=part_bytes, replaces=replaces)

        begun = self._do(kind, path, act)
        return None if begun is None else _FaultyParts(begun, kind, path, self)

    def unfinished_uploads(self) -> list[UnfinishedUpload]:
        return self._do(Kind.LIST, "", self._inner.unfinished_uploads)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._do(Kind.DELETE, upload.path, lambda: self._inner.abort_upload(upload))

    def require_ownership(self) -> None:
        self._inner.require_ownership()

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        return self._do(Kind.LIST, prefix, lambda: self._inner.list(prefix, hidden=hidden))

    def list_after(self, folder: str, name: str, *, beginning: str) -> Entries:
        return self._do(Kind.LIST, folder, lambda: self._inner.list_after(folder, name, beginning=beginning))

    def folders(self, prefix: str) -> Names:
        return self._do(Kind.LIST, prefix, lambda: self._inner.folders(prefix))

    def stat(self, path: str) -> Entry | None:
        return self._do(Kind.STAT, path, lambda: self._inner.stat(path))

    def delete(self, paths: Iterable[str]) -> None:
        names = list(paths)
        first = names[0] if names else ""
        half = names[: len(names) // 2]
        self._do(Kind.DELETE, first, lambda: self._inner.delete(names), lambda: self._inner.delete(half))

    def delete_unchanged(self, path: str, data: bytes) -> Deletion:
        return self._do(Kind.DELETE, path, lambda: self._inner.delete_unchanged(path, data), lambda: None)

    def _do(self, kind: Kind, path: str, act: Callable[[], T], tear: Callable[[], None] | None = None) -> T:
        with self._lock:
            if self.crashed:
                raise SimulatedCrash("the process is dead")
            request = Request(len(self.trace), kind, path, tears=tear is not None)
            self.trace.append(request)
            fault = self._fault_of(request)
            self.crashed = fault in (Fault.BEFORE, Fault.AFTER, Fault.TORN)
        if fault is None:
            return act()
        if fault is Fault.TORN and tear:
            tear()
        if fault in (Fault.AFTER, Fault.LOST_REPLY):
            # Neither a dead process nor one without a reply knows whether the request succeeded.
            with suppress(StorageError):
                act()
        if fault is Fault.LOST_REPLY:
            raise StorageError("timed out", path=path, hint="try again")
        raise SimulatedCrash(f"{fault.value}: {request}")

    def on_disk(self) -> bool:
        """Whether it stores files, which can be partially written."""
        return self._inner.url.startswith("file:")

    def _fault_of(self, request: Request) -> Fault | None:
        return self._plan.get(request.number)

    def _leave_half(self, data: bytes | Path) -> None:
        if self.on_disk():
            whole = data.read_bytes() if isinstance(data, Path) else data
            # If a process dies twice at the same request, the later half remains.
            self._inner.replace(f"{TEMP_FOLDER}/torn-{len(self.trace)}", whole[: len(whole) // 2])


class _FaultyParts:
    """An upload in parts, each of whose calls is a request of its storage."""

    def __init__(self, inner: PartsUpload, kind: Kind, path: str, storage: FaultyStorage) -> None:
        self._inner = inner
        self._kind = kind
        self._path = path
        self._storage = storage

    def send(self, number: int, data: bytes) -> None:
        def tear() -> None:
            self._inner.send(number, data[: len(data) // 2])

        tears = tear if self._storage.on_disk() else None
        self._storage._do(self._kind, self._path, lambda: self._inner.send(number, data), tears)

    def complete(self, file: Path) -> Created:
        return self._storage._do(self._kind, self._path, lambda: self._inner.complete(file))

    def abort(self) -> None:
        self._storage._do(Kind.DELETE, self._path, self._inner.abort)
