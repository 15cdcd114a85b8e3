"""A root behind a driver: on Azure, Google Cloud Storage or HDFS. See `drivers`.

One call of the driver counts as one request. Its own retries, and several requests in one call, are not counted.
Azure and Google Cloud Storage have hedged requests; a namenode of HDFS would execute a second one on the same disks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fsspec.asyn import AsyncFileSystem, sync

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import AccessDenied, AlreadyExists, BucketMissing, ObjectMissing, StorageError
from statekeeper.statestore.format.limits import DEFAULT_LIMITS, SizeLimits
from statekeeper.statestore.storage import hedging
from statekeeper.statestore.storage.base import (
    Created,
    Deletion,
    Entries,
    Entry,
    Kind,
    Location,
    Names,
    OpenedStore,
    another_exists,
    changed,
    checked,
    checked_folder,
    compare_and_delete,
    is_listed,
    marks_folder,
    only_after,
    too_large,
)
from statekeeper.statestore.storage.content import PIECE_BYTES, Content, require_size, scratch_file
from statekeeper.statestore.storage.drivers import Opened
from statekeeper.statestore.storage.parallel import at_once
from statekeeper.statestore.storage.resending import Resending

_TIMES = ("last_modified", "mtime", "updated", "LastModified")
"""Names of the modification time in the entries of the drivers."""

_DENIED = {401, 403}
_THROTTLED = {429, 503}
_UNANSWERED = ("aiohttp.", "azure.core.exceptions.ServiceRe")
"""Names of errors without a reply. `ServiceRequestError` and `ServiceResponseError` are Azure's."""

_MISSING = 404
_CHANGED = 412
"""The source of a copy is not the listed one any more."""

T = TypeVar("T")


class RemoteStorage(OpenedStore):
    """Storage through a driver."""

    def __init__(
        self,
        url: str,
        opened: Opened,
        *,
        clock: Clock,
        ids: Ids,
        timeout_seconds: float,
        is_hedged: bool = True,
        limits: SizeLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(url.rstrip("/"), limits)
        self._files = opened.files
        self._service = opened.service
        self._place = opened.place
        # Empty if paths of the driver start with "/": then there is no bucket.
        self._bucket = opened.place.partition("/")[0]
        self._failures = opened.failures
        self._upload = opened.upload
        self._copy = opened.copy
        self._is_seen = False
        # The driver retries transient failures itself.
        self._resending = Resending(
            self.url, self.requests, clock=clock, ids=ids, tries=1, timeout_seconds=timeout_seconds
        )
        self._hedging: hedging.Hedging | None = None
        if isinstance(self._files, AsyncFileSystem):
            # Roots with the same driver share a store; see `drivers`.
            self._hedging = hedging.shared(id(self._files), self._files.loop, is_on=is_hedged)

    def read(self, path: str) -> bytes:
        most_bytes = self.limits.object_bytes
        data = self.read_range(path, 0, most_bytes + 1)
        if len(data) > most_bytes:
            raise too_large(self._size(path), self._shown(path), self.limits)
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"no range of bytes: {length} from {start}")
        if not length:
            self._size(path)
            return b""
        try:
            return self._cat(path, self._at(path), start=start, end=start + length)
        except ObjectMissing:
            raise
        except StorageError:
            # Each store has its own error for a range that starts at the end of the object.
            if start < self._size(path):
                raise
            return b""

    def download(self, path: str, target: Path, *, expected_bytes: int | None = None) -> int:
        if expected_bytes is not None:
            require_size(self._shown(path), self._size(path), expected_bytes)
        size_bytes = 0
        with scratch_file(target) as write:
            # The drivers' own download holds much of a large object in memory.
            while piece := self.read_range(path, size_bytes, PIECE_BYTES):
                write(piece)
                size_bytes += len(piece)
                if len(piece) < PIECE_BYTES:
                    break
        return size_bytes

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        del like  # of a file system
        content = Content.of(data)
        if content.pieces > 1 and self.stat(path) is not None:
            # A large upload would detect the conflict only at its end.
            return self._compare(path, content)
        try:
            self._put(Kind.CREATE, path, content, mode="create")
        except AlreadyExists:
            # Verify the conflict: the driver may have resent its own request after a lost reply. See `s3`.
            return self._compare(path, content)
        return Created.NEW

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        del like
        self._put(Kind.REPLACE, path, Content.of(data))

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        folder = self._folder(prefix)
        entries = []
        for name, about in self._listing(prefix, lambda: self._found(folder)).items():
            path = self._path(name, folder, prefix)
            if path is None or about["type"] != "file" or marks_folder(path, int(about["size"])):
                continue
            if is_listed(path, prefix, hidden=hidden):
                entries.append(_entry(path, about))
        return sorted(entries, key=lambda entry: entry.path)

    def list_after(self, folder: str, name: str, *, beginning: str) -> Entries:
        return only_after(self.list(folder), folder, name, beginning)

    def folders(self, prefix: str) -> Names:
        folder = self._folder(prefix)
        listed = self._listing(prefix, lambda: {one["name"]: one for one in self._files.ls(folder, detail=True)})
        paths = (self._path(name.rstrip("/"), folder, "") for name, one in listed.items() if one["type"] == "directory")
        return sorted(path for path in paths if path and "/" not in path and not path.startswith("."))

    def stat(self, path: str) -> Entry | None:
        place = self._at(path)
        try:
            about = self._send(Kind.STAT, path, lambda: self._files.info(place))
        except ObjectMissing:
            self._require_bucket()
            return None
        self._is_seen = True
        return _entry(path, about) if about["type"] == "file" else None

    def delete(self, paths: Iterable[str]) -> None:
        places = {path: self._at(path) for path in paths}
        if not places:
            return

        if self._hedging and (late := self._hedging.late(places.values())):
            sync(self._files.loop, self._hedging.settle, late)

        def delete(path: str) -> None:
            with suppress(ObjectMissing):
                # One by one: the drivers' bulk delete interprets `*` and `?` in a name as a pattern.
                self._send(Kind.DELETE, path, lambda: self._files.rm_file(places[path]))

        at_once(delete, list(places))

    def delete_unchanged(self, path: str, data: bytes) -> Deletion:
        return compare_and_delete(self, path, data)

    @property
    def location(self) -> Location:
        return Location(self._service, self._place, copies=self._copy is not None)

    def copy(self, path: str, source: Location, entry: Entry) -> None:
        if self._copy is None:
            raise NotImplementedError("the service does not copy objects: see Location.copies")
        service_copy = partial(self._copy, self._files, f"{source.place}/{entry.path}", self._at(path), entry.etag)
        try:
            self._send(Kind.CREATE, path, lambda: sync(self._files.loop, service_copy))
        except AlreadyExists:
            self._verify_copied(path, f"{source.place}/{entry.path}", entry)
        except StorageError as error:
            cause = error.__cause__
            if cause is not None and _status(cause) == _CHANGED:
                raise changed(f"{source.place}/{entry.path}") from error
            raise

    def _put(self, kind: Kind, path: str, content: Content, **how: str) -> None:
        place = self._at(path)
        data = content.data

        async def create() -> None:
            await self._files._pipe_file(place, data, **how)  # noqa: SLF001 - the driver's coroutine

        def put() -> None:
            if isinstance(data, Path):
                self._files.put_file(str(data), place, **how, **self._upload)
            elif self._hedging and kind is Kind.CREATE:
                hedged = partial(self._hedging.create, name=place, size_bytes=len(data), is_final=_is_answer)
                sync(self._files.loop, hedged, create, self.requests)
            else:
                self._files.pipe_file(place, data, **how)

        try:
            self._send(kind, path, put, bytes_written=content.size_bytes)
        except ObjectMissing as error:
            if not self._bucket:
                raise
            raise self._no_bucket() from error

    def _cat(self, path: str, place: str, **how: int) -> bytes:
        async def read() -> Any:
            return await self._files._cat_file(place, **how)  # noqa: SLF001 - the driver's coroutine

        def cat() -> Any:
            if self._hedging is None:
                return self._files.cat_file(place, **how)
            hedged = partial(self._hedging.read, size_bytes=how["end"] - how["start"], is_final=_is_answer)
            return sync(self._files.loop, hedged, read, self.requests)

        data = bytes(self._send(Kind.READ, path, cat))
        self.requests.count_bytes_read(len(data))
        return data

    def _size(self, path: str) -> int:
        """Return the object's size in bytes. Raises `ObjectMissing`."""
        found = self.stat(path)
        if found is None:
            raise ObjectMissing("does not exist", path=self._shown(path))
        return found.size_bytes

    def _found(self, folder: str) -> Mapping[str, Any]:
        found = self._files.find(folder, detail=True)
        # If the path is an object instead of a folder, some drivers return only its name.
        return found if isinstance(found, dict) else {}

    def _listing(self, prefix: str, ask: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        try:
            found = self._send(Kind.LIST, prefix, ask)
        except ObjectMissing:
            found = {}
        if found:
            self._is_seen = True
        else:
            self._require_bucket()
        return found

    def _require_bucket(self) -> None:
        """Raise `BucketMissing` if the bucket does not exist. Otherwise a misspelt bucket would look like an empty
        root."""
        if self._is_seen or not self._bucket:
            return
        try:
            self._send(Kind.LIST, "", lambda: self._files.ls(self._bucket, detail=True))
        except ObjectMissing as error:
            raise self._no_bucket() from error
        self._is_seen = True

    def _no_bucket(self) -> BucketMissing:
        return BucketMissing(
            "the bucket or container does not exist", path=self.url, hint="create it, or correct the URL"
        )

    def _compare(self, path: str, content: Content) -> Created:
        """Return SAME if the object has this content, else raise `AlreadyExists`. Raises `StorageError` if it cannot be
        read."""
        found = self.stat(path)
        shown = self._shown(path)
        if found is None:
            raise self._gone(path)
        if found.size_bytes == content.size_bytes and content.equals(
            lambda start, length: self.read_range(path, start, length)
        ):
            return Created.SAME
        raise another_exists(shown)

    def _verify_copied(self, path: str, origin: str, entry: Entry) -> None:
        """After the failed condition of a copy, verify that the object is the copy: the driver may have sent the request
        again after a lost reply.

        `origin`: the driver's path of the source. Raises `AlreadyExists` if the object has other bytes; `ObjectMissing`,
        `SourceChanged`, `StorageError`.
        """
        found = self.stat(path)
        parts = [
            {"start": start, "end": min(start + PIECE_BYTES, entry.size_bytes)}
            for start in range(0, entry.size_bytes, PIECE_BYTES)
        ]
        is_copy = (
            found is not None
            and found.size_bytes == entry.size_bytes
            and all(self._cat(path, self._at(path), **part) == self._cat(path, origin, **part) for part in parts)
        )
        # After the comparison: otherwise the compared bytes could be newer than the listing.
        if _entry(entry.path, self._send(Kind.STAT, path, lambda: self._files.info(origin))).etag != entry.etag:
            raise changed(origin)
        if found is None:
            raise self._gone(path)
        if not is_copy:
            raise another_exists(self._shown(path))

    def _gone(self, path: str) -> StorageError:
        """Return the error for an object that another process deleted after it prevented a create."""
        return StorageError(
            "is missing, although the storage reported that it exists", path=self._shown(path), hint="try again"
        )

    def _send(self, kind: Kind, path: str, call: Callable[[], T], *, bytes_written: int = 0) -> T:
        """Call the driver, again after transient failures if there is a time limit."""

        def attempt() -> T:
            self.requests.count(kind, bytes_written=bytes_written)
            return call()

        def is_transient(error: Exception) -> bool:
            if self._hedging and _status(error) in _THROTTLED:
                self._hedging.throttled()
            return isinstance(error, self._failures) and _is_transient(error)

        try:
            return self._resending.send(attempt, is_transient)
        except self._failures as error:
            raise self._translation(error, self._shown(path)) from error

    def _translation(self, error: Exception, shown: str) -> StorageError | Exception:
        status = _status(error)
        if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError) or status == _MISSING:
            return ObjectMissing("does not exist", path=shown)
        if isinstance(error, FileExistsError):
            return another_exists(shown)
        is_denied = isinstance(error, PermissionError) or status in _DENIED or "Forbidden" in str(error)
        if is_denied or "Authentication" in type(error).__name__ or "Credential" in type(error).__name__:
            return AccessDenied(f"access denied: {_line(error)}", path=shown, hint="give or correct credentials")
        return StorageError(
            f"{type(error).__name__}: {_line(error)}", path=shown, hint="check the URL, its options and the network"
        )

    def _at(self, path: str) -> str:
        return f"{self._place}/{checked(path)}"

    def _folder(self, prefix: str) -> str:
        return f"{self._place}/{checked_folder(prefix)}".rstrip("/")

    def _path(self, name: str, folder: str, prefix: str) -> str | None:
        """Return the path relative to the root for a name in a listing of `folder`.

        None for a name outside of the folder, and for an invalid path such as a folder marker.
        """
        inside = name.removeprefix(f"{folder}/")
        path = f"{prefix}/{inside}" if prefix else inside
        try:
            return None if inside == name else checked(path)
        except ValueError:
            return None

    def _shown(self, path: str) -> str:
        return f"{self.url}/{path}"


def _entry(path: str, about: Mapping[str, Any]) -> Entry:
    found = next((about[name] for name in _TIMES if about.get(name)), None)
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    if isinstance(found, datetime):
        found = found.timestamp()
    # Google replaces the ETag of an object when its metadata changes, but not its generation.
    etag = about.get("generation") or about.get("etag")
    return Entry(path, int(about["size"]), found, None if etag is None else str(etag).strip('"'))


def _status(error: BaseException) -> object:
    """Return the HTTP status of a driver's error; None if there was no reply."""
    return getattr(error, "status_code", None) or getattr(error, "code", None)


def _is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    status = _status(error)
    if isinstance(status, int):
        return status >= 500 or status in _THROTTLED
    name = f"{type(error).__module__}.{type(error).__name__}"
    return isinstance(error, ConnectionError | TimeoutError) or name.startswith(_UNANSWERED)


def _is_answer(error: BaseException) -> bool:
    """Return whether the error is the store's answer to the request, and neither transient nor a conflict."""
    return not _is_transient(error) and not isinstance(error, FileExistsError)


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
