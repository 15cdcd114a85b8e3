"""A root in an S3 bucket, or in a store that implements the S3 protocol with If-None-Match.

s3fs provides the session, the credentials and the event loop. The requests are sent here one by one, because its
file-like calls hide them: each request must be counted, one place must retry, and each conflict must be verified. The
listing and instance caches of s3fs are disabled; `StorageSpec` explains the problem with forks.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import s3fs
from aiobotocore.session import AioSession
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as NotConnected
from botocore.utils import parse_timestamp
from fsspec.asyn import sync
from s3fs.core import S3_RETRYABLE_ERRORS

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import AccessDenied, AlreadyExists, BucketMissing, ObjectMissing, StorageError
from statekeeper.statestore.format.limits import DEFAULT_LIMITS, SizeLimits
from statekeeper.statestore.storage import hedging, s3_reads
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
    UnfinishedUpload,
    Uploads,
    another_exists,
    changed,
    checked,
    checked_folder,
    is_listed,
    marks_folder,
    only_after,
    too_large,
)
from statekeeper.statestore.storage.content import DOWNLOAD_PIECE_BYTES, Content, require_size, scratch_file
from statekeeper.statestore.storage.parallel import at_once
from statekeeper.statestore.storage.resending import TRIES, Resending

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import S3Store

NETWORK_ERRORS: tuple[type[Exception], ...] = (
    *S3_RETRYABLE_ERRORS,
    IncompleteReadError,
    NotConnected,  # s3fs does not retry a failed connection, but the store may be restarting
    ConnectionError,
)
FAILURES: tuple[type[Exception], ...] = (ClientError, BotoCoreError, *NETWORK_ERRORS)

_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)
_DENIED = {
    "401",
    "403",
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
}
_MISSING = {"404", "NoSuchKey", "NoSuchUpload"}
_PASSING = {
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
}
_CREATE = {"IfNoneMatch": "*"}
"""The condition of a create-if-absent."""

_BRIEF_BYTES = 8 * 1024 * 1024

_THROTTLING = {"SlowDown", "ServiceUnavailable", "Throttling"}
_CONFLICTS = {"PreconditionFailed", "412"}


class BeyondEnd(StorageError):
    """A range starts at or after the end of the object. The caller gets no bytes instead of an error."""


def is_passing(error: Exception) -> bool:
    """Return whether a retry of the same request may succeed."""
    if isinstance(error, ClientError):
        return _code(error) in _PASSING or _status(error) >= 500 or _status(error) == 429
    return isinstance(error, NETWORK_ERRORS)


def is_throttling(error: Exception) -> bool:
    """Return whether the store asks for fewer requests."""
    return isinstance(error, ClientError) and (_code(error) in _THROTTLING or _status(error) in (503, 429))


def is_answer(error: BaseException) -> bool:
    """Return whether the error is the store's answer to the request, and neither transient nor a conflict."""
    return isinstance(error, ClientError) and not is_passing(error) and _code(error) not in _CONFLICTS


def translate(error: Exception, shown: str) -> StorageError:
    """Return the library's error for one of FAILURES about the object `shown`."""
    if isinstance(error, _CREDENTIALS):
        return AccessDenied(
            "the credentials are missing or incomplete",
            path=shown,
            hint="set the storage options key and secret, or the environment variables AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY. For a public bucket, set the storage option anon",
        )
    if not isinstance(error, ClientError):
        hint = "check endpoint_url and the network" if is_passing(error) else "check the URL and its options"
        return StorageError(f"{type(error).__name__}: {error}", path=shown, hint=hint)
    code = _code(error)
    if code == "NoSuchBucket":
        return BucketMissing("the bucket does not exist", path=shown, hint="create it, or correct the URL")
    if code in _MISSING:
        return ObjectMissing("does not exist", path=shown)
    if code in _DENIED:
        hint = (
            "correct the credentials or the bucket policy. Without the permission s3:ListBucket, the storage reports a "
            "missing object as access denied"
        )
        return AccessDenied(f"access denied ({code})", path=shown, hint=hint)
    if code in _CONFLICTS:
        return another_exists(shown)
    if code in ("InvalidRange", "416"):
        return BeyondEnd("the range starts after the end of the object", path=shown)
    hint = "try again later" if is_passing(error) else "follow the message of the storage"
    message = error.response.get("Error", {}).get("Message", "")
    return StorageError(f"the storage returned {code}: {message}", path=shown, hint=hint)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


T = TypeVar("T")
# aiobotocore creates clients from service descriptions at run time; they have no static types.
Call = Callable[[Any], Awaitable[T]]


class Request(Protocol):
    """Sends a request, with retries. `is_optional`: it does not wait for storage that is unavailable."""

    def __call__(
        self, kind: Kind, path: str, call: Call[T], *, bytes_written: int = 0, is_optional: bool = False
    ) -> T: ...


@dataclass(frozen=True)
class _PartContent(Content):
    """The content of a file in parts of a given size, which determines its ETag."""

    part_bytes: int

    @property
    def piece_bytes(self) -> int:
        return self.part_bytes


class S3Upload:
    """A multipart upload.

    kind      how its requests are counted
    where     bucket and key
    is_early  the parts are sent before the commit: if the storage is unavailable, the commit waits and sends them again
    """

    def __init__(
        self, kind: Kind, path: str, where: Mapping[str, str], request: Request, *, is_early: bool = False
    ) -> None:
        async def begin(client: Any) -> str:
            return str((await client.create_multipart_upload(**where))["UploadId"])

        self._kind = kind
        self._path = path
        self._request = request
        self._is_early = is_early
        self._upload = {**where, "UploadId": request(kind, path, begin, is_optional=is_early)}
        self._etags: dict[int, str] = {}

    def send(self, number: int, data: bytes) -> None:
        """Send part `number`, from 0. Thread-safe."""

        async def call(client: Any) -> str:
            return str((await client.upload_part(**self._upload, PartNumber=number + 1, Body=data))["ETag"])

        self._etags[number] = self._request(
            self._kind, self._path, call, bytes_written=len(data), is_optional=self._is_early
        )

    def copy(self, number: int, **source: Any) -> None:
        """Copy part `number`, from 0, from a range of another object."""

        async def call(client: Any) -> str:
            done = await client.upload_part_copy(**self._upload, PartNumber=number + 1, **source)
            return str(done["CopyPartResult"]["ETag"])

        self._etags[number] = self._request(self._kind, self._path, call)

    def finish(self, **how: str) -> None:
        """Make the object visible. Raises ObjectMissing if the upload is unknown: it is complete and the reply to the
        first try was lost, or another process aborted it."""
        parts = [{"PartNumber": number + 1, "ETag": etag} for number, etag in sorted(self._etags.items())]

        async def call(client: Any) -> None:
            await client.complete_multipart_upload(**self._upload, MultipartUpload={"Parts": parts}, **how)

        self._request(self._kind, self._path, call)

    def abort(self) -> None:
        """Drop the parts. They are invisible, but billed until then."""

        async def call(client: Any) -> None:
            await client.abort_multipart_upload(**self._upload)

        with suppress(ObjectMissing):
            self._request(Kind.DELETE, self._path, call, is_optional=True)


class S3PartsUpload:
    """The `PartsUpload` of a bucket.

    exists    whether the object exists
    compare   return SAME if the object has this content, else raise AlreadyExists
    """

    def __init__(
        self,
        upload: S3Upload,
        *,
        part_bytes: int,
        how: Mapping[str, str],
        exists: Callable[[], bool],
        compare: Callable[[Content], Created],
    ) -> None:
        self._upload = upload
        self._part_bytes = part_bytes
        self._how = how
        self._exists = exists
        self._compare = compare

    def send(self, number: int, data: bytes) -> None:
        self._upload.send(number, data)

    def complete(self, file: Path) -> Created:
        try:
            self._upload.finish(**self._how)
        except (AlreadyExists, ObjectMissing) as error:
            # Verify the conflict, as in `S3Storage.create`: the reply to an earlier try may be lost.
            if isinstance(error, ObjectMissing) and not self._exists():
                raise
            found = self._compare(_PartContent(file, file.stat().st_size, self._part_bytes))
            # A conflict leaves the upload open.
            with suppress(StorageError):
                self.abort()
            return found
        return Created.NEW

    def abort(self) -> None:
        self._upload.abort()


def unfinished(
    bucket: str, folder: str, path_of: Callable[[str], str | None], request: Request
) -> list[UnfinishedUpload]:
    """List the uploads of keys with the prefix `folder` that are neither complete nor aborted, sorted by path.

    One request for 1,000 uploads, and one for 1,000 parts of each. `path_of`: the path of a key; None to omit it.
    """
    listed = [
        (path, found) for found in _listed(bucket, folder, request) if (path := path_of(found["Key"])) is not None
    ]
    uploads: list[UnfinishedUpload] = []

    def measure(item: tuple[str, Any]) -> None:
        path, found = item
        where = {"Bucket": bucket, "Key": found["Key"], "UploadId": found["UploadId"]}
        # Race: the upload is completed after the listing.
        with suppress(ObjectMissing):
            size_bytes = _size_bytes(path, where, request)
            uploads.append(UnfinishedUpload(path, found["UploadId"], size_bytes, found["Initiated"].timestamp()))

    at_once(measure, listed)
    return sorted(uploads, key=lambda upload: (upload.path, upload.id))


def _listed(bucket: str, folder: str, request: Request) -> Iterator[Any]:
    position: dict[str, str] = {}
    while True:

        async def call(client: Any, position: dict[str, str] = position) -> Any:
            return await client.list_multipart_uploads(Bucket=bucket, Prefix=folder, **position)

        page = request(Kind.LIST, "", call)
        yield from page.get("Uploads", [])
        if not page.get("IsTruncated"):
            return
        position = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def _size_bytes(path: str, where: Mapping[str, str], request: Request) -> int:
    size_bytes = 0
    position: dict[str, int] = {}
    while True:

        async def call(client: Any, position: dict[str, int] = position) -> Any:
            return await client.list_parts(**where, **position)

        page = request(Kind.LIST, path, call)
        size_bytes += sum(int(part["Size"]) for part in page.get("Parts", []))
        if not page.get("IsTruncated"):
            return size_bytes
        position = {"PartNumberMarker": int(page["NextPartNumberMarker"])}


def abort(bucket: str, key: str, upload: UnfinishedUpload, request: Request) -> None:
    """Drop the parts of an upload that another process began."""

    async def call(client: Any) -> None:
        await client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload.id)

    with suppress(ObjectMissing):
        request(Kind.DELETE, upload.path, call)


OPTIONS = ("endpoint_url", "key", "secret", "region", "anon", hedging.OPTION)


class S3Storage(OpenedStore):
    """Storage in a bucket; one request is one HTTP request.

    Exception: if a connection breaks before the first byte of the reply, aiohttp resends reads and plain uploads once,
    uncounted. So a conflict may be caused by our own request even without a retry in this module.
    """

    def __init__(
        self,
        bucket: str,
        folder: str,
        *,
        clock: Clock,
        ids: Ids,
        options: Mapping[str, str],
        timeout_seconds: float,
        is_hedged: bool = True,
        limits: SizeLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(f"s3://{bucket}/{folder}".rstrip("/"), limits)
        self._bucket = bucket
        self._before = f"{folder}/" if folder else ""
        self._ids = ids
        self._bucket_seen = False
        self._endpoint = options.get("endpoint_url") or os.environ.get("AWS_ENDPOINT_URL", "")
        options, is_hedged = hedging.chosen(options, unless_given=is_hedged)
        self._connection = shared(options)
        self._reads = s3_reads.shared(
            bucket,
            self._connection,
            connect_timeout_seconds=_CONNECT_TIMEOUT_SECONDS,
            read_timeout_seconds=_READ_TIMEOUT_SECONDS,
        )
        self._is_hedged = is_hedged
        self._hedging = hedging.shared((self._endpoint, bucket), self._connection.loop, is_on=is_hedged)
        self._resending = Resending(self.url, self.requests, clock=clock, ids=ids, timeout_seconds=timeout_seconds)
        self._briefly = Resending(self.url, self.requests, clock=clock, ids=ids, timeout_seconds=0.0)

    def read(self, path: str) -> bytes:
        return self._get(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"no range of bytes: {length} from {start}")
        # HTTP cannot request zero bytes: one byte is requested and dropped, to detect a missing object.
        try:
            return self._get(path, Range=f"bytes={start}-{start + max(length, 1) - 1}")[:length]
        except BeyondEnd:
            return b""

    def download(self, path: str, target: Path, *, expected_bytes: int | None = None) -> int:
        key = self._key(path)

        def here(store: S3Store) -> int:
            answer = self._reads.get_here(store, key)
            size_bytes: int = answer.meta["size"]
            require_size(self._shown(path), size_bytes, expected_bytes)
            with scratch_file(target) as write:
                for piece in answer.stream(min_chunk_size=DOWNLOAD_PIECE_BYTES):
                    write(bytes(piece))
                    self.requests.count_bytes_read(len(piece))
            return size_bytes

        async def written(size_bytes: int, pieces: AsyncIterator[bytes]) -> int:
            require_size(self._shown(path), size_bytes, expected_bytes)
            with scratch_file(target) as write:
                async for piece in pieces:
                    write(piece)
                    self.requests.count_bytes_read(len(piece))
            return size_bytes

        async def quick(store: S3Store) -> int:
            answer = await self._opened_quickly(store, key)
            return await written(answer.meta["size"], self._reads.pieces(answer, DOWNLOAD_PIECE_BYTES))

        async def call(client: Any) -> int:
            answer = await self._opened(client, key)
            async with answer["Body"] as body:
                return await written(answer["ContentLength"], body.iter_chunks(DOWNLOAD_PIECE_BYTES))

        # A large file may need more time than one request has.
        is_brief = (expected_bytes or 0) <= _BRIEF_BYTES
        return self._request(Kind.READ, path, call, quick=quick, here=here if is_brief else None)

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        del like  # of a file system
        content = Content.of(data)
        if content.pieces > 1 and self.stat(path) is not None:
            # A large upload would detect the conflict only at its end.
            return self._compare(path, content)
        try:
            if content.pieces > 1:
                self._upload_pieces(Kind.CREATE, path, content, **_CREATE)
            else:
                self._put(Kind.CREATE, path, content.piece(0), **_CREATE)
        except (AlreadyExists, _UploadGone):
            # Verify the conflict. Race: our request succeeds, its reply is lost, we resend it, and the store reports a
            # conflict with our own object. Without this check, a committed batch would be given up.
            return self._compare(path, content)
        return Created.NEW

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        del like
        content = Content.of(data)
        if content.pieces == 1:
            self._put(Kind.REPLACE, path, content.piece(0))
            return
        try:
            self._upload_pieces(Kind.REPLACE, path, content)
        except _UploadGone:
            self._compare(path, content)

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        folder = f"{self._before}{checked_folder(prefix)}/" if prefix else self._before
        return sorted(self._listed(self._objects(prefix, folder), prefix, hidden=hidden), key=lambda entry: entry.path)

    def list_after(self, folder: str, name: str, *, beginning: str) -> Entries:
        first = self._before + checked(folder)
        pages = self._pages(folder, f"{first}/{beginning}", StartAfter=f"{first}/{name}")
        entries = list(self._listed(_objects_of(pages), folder, hidden=False))
        return only_after(sorted(entries, key=lambda entry: entry.path), folder, name, beginning)

    def folders(self, prefix: str) -> Names:
        folder = f"{self._before}{checked_folder(prefix)}/" if prefix else self._before
        found: Names = []
        for page in self._pages(prefix, folder, Delimiter="/"):
            keys = (common["Prefix"] for common in page.get("CommonPrefixes", []))
            found.extend(key.removeprefix(folder).removesuffix("/") for key in keys)
        return sorted(name for name in found if name and not name.startswith("."))

    def stat(self, path: str) -> Entry | None:
        key = self._key(path)

        def here(store: S3Store) -> Entry:
            return replace(self._reads.head_here(store, key), path=path)

        async def call(client: Any) -> Entry:
            found = await client.head_object(Bucket=self._bucket, Key=key)
            return Entry(path, found["ContentLength"], found["LastModified"].timestamp(), found["ETag"].strip('"'))

        async def call_for_bucket(client: Any) -> None:
            await client.head_bucket(Bucket=self._bucket)

        try:
            return self._request(Kind.STAT, path, call, here=here)
        except ObjectMissing:
            # A 404 to HEAD has no body to distinguish a missing object from a missing bucket, and a misspelt bucket
            # must not look like a new, empty root.
            if not self._bucket_seen:
                try:
                    self._request(Kind.STAT, path, call_for_bucket)
                except ObjectMissing as error:
                    raise BucketMissing(
                        "the bucket does not exist", path=self.url, hint="create it, or correct the URL"
                    ) from error
            return None

    def delete(self, paths: Iterable[str]) -> None:
        keys = iter([self._key(path) for path in paths])
        while batch := list(islice(keys, DELETE_BATCH)):
            self._delete_batch(batch)

    def delete_unchanged(self, path: str, data: bytes) -> Deletion:
        for _ in range(TRIES):
            try:
                found, etag = self._get_with_etag(path)
            except ObjectMissing:
                return Deletion.MISSING
            if found != data:
                return Deletion.CHANGED
            if not self._deletes_on_condition():
                self.delete([path])
                return Deletion.DELETED
            # Rejected: another object, the same bytes written again, or a lost reply to an earlier try. Read it again.
            with suppress(AlreadyExists, ObjectMissing):
                self._delete_if(path, etag)
                return Deletion.DELETED
        raise StorageError(
            "was not deleted, because another process keeps overwriting it",
            path=self._shown(path),
            hint="stop the other process",
        )

    def _deletes_on_condition(self) -> bool:
        path = f"{TEMP_FOLDER}/{self._ids.fresh()}"
        return deletes_on_condition(
            (self._endpoint, self._bucket),
            create=lambda: self._put(Kind.CREATE, path, b"probe"),
            delete_if=lambda etag: self._delete_if(path, etag),
            delete=lambda: self.delete([path]),
        )

    def _delete_if(self, path: str, etag: str) -> None:
        """Delete the object if it has this ETag, else raise `AlreadyExists`."""
        key = self._key(path)
        self._settle([key])

        async def call(client: Any) -> None:
            await client.delete_object(Bucket=self._bucket, Key=key, IfMatch=etag)

        self._request(Kind.DELETE, path, call)

    def _settle(self, keys: Iterable[str]) -> None:
        """Wait for slower creates of objects that are about to be deleted, which could create them again."""
        if late := self._hedging.late(keys):
            sync(self._connection.loop, self._hedging.settle, late)

    def _pages(self, shown: str, folder: str, *, first: Mapping[str, Any] | None = None, **how: str) -> Iterator[Any]:
        """Iterate over the pages of a listing of all keys with the prefix `folder`, one request each. `first`: the first
        page, if it was requested already."""
        page = first
        position: dict[str, str] = {}
        while True:

            async def call(client: Any, position: dict[str, str] = position) -> Any:
                return await client.list_objects_v2(Bucket=self._bucket, Prefix=folder, **how, **position)

            if page is None:
                page = self._request(Kind.LIST, shown, call)
            yield page
            if not page.get("IsTruncated"):
                return
            position, page = {"ContinuationToken": page["NextContinuationToken"]}, None

    def _objects(self, shown: str, folder: str) -> Iterable[Entry]:
        """List the objects whose keys begin with `folder`, which is empty or ends with a slash. Their paths are keys."""

        async def call(client: Any) -> Sequence[Entry] | Mapping[str, Any]:
            page: Mapping[str, Any] = await client.list_objects_v2(Bucket=self._bucket, Prefix=folder)
            return page

        async def quick(store: S3Store) -> Sequence[Entry] | Mapping[str, Any]:
            return await self._reads.list(store, folder)

        def here(store: S3Store) -> Sequence[Entry] | Mapping[str, Any]:
            return self._reads.list_here(store, folder)

        found = self._request(Kind.LIST, shown, call, quick=quick, here=here)
        if isinstance(found, Mapping):
            return _objects_of(self._pages(shown, folder, first=found))
        for _ in range(s3_reads.PAGE, len(found), s3_reads.PAGE):
            self.requests.count(Kind.LIST)
        return found

    def _get(self, path: str, **how: str) -> bytes:
        return self._get_with_etag(path, **how)[0]

    def _get_with_etag(self, path: str, **how: str) -> tuple[bytes, str]:
        key = self._key(path)

        def require_allowed(size_bytes: int) -> None:
            if "Range" not in how and size_bytes > self.limits.object_bytes:
                raise too_large(size_bytes, self._shown(path), self.limits)

        def noted(data: bytes, etag: str | None) -> tuple[bytes, str]:
            self.requests.count_bytes_read(len(data))
            return data, etag or ""

        def here(store: S3Store) -> tuple[bytes, str]:
            answer = self._reads.get_here(store, key, how.get("Range"))
            require_allowed(answer.meta["size"])
            return noted(bytes(answer.bytes()), answer.meta["e_tag"])

        async def quick(store: S3Store) -> tuple[bytes, str]:
            answer = await self._opened_quickly(store, key, how.get("Range"))
            require_allowed(answer.meta["size"])
            pieces = [piece async for piece in self._reads.pieces(answer, DOWNLOAD_PIECE_BYTES)]
            return noted(b"".join(pieces), answer.meta["e_tag"])

        async def call(client: Any) -> tuple[bytes, str]:
            answer = await self._opened(client, key, **how)
            async with answer["Body"] as body:
                require_allowed(answer["ContentLength"])
                return noted(await body.read(), answer["ETag"])

        return self._request(Kind.READ, path, call, quick=quick, here=here)

    async def _opened_quickly(self, store: S3Store, key: str, range_header: str | None = None) -> GetResult:
        """As `_opened`, of `s3_reads`."""
        return await self._hedging.read(
            lambda: self._reads.get(store, key, range_header), self.requests, is_final=is_answer
        )

    async def _opened(self, client: Any, key: str, **how: str) -> Any:
        """Return the reply of a GET whose body is not read yet."""

        async def send() -> Any:
            return await client.get_object(Bucket=self._bucket, Key=key, **how)

        return await self._hedging.read(
            send, self.requests, is_final=is_answer, discard=lambda answer: answer["Body"].close()
        )

    def _put(self, kind: Kind, path: str, data: bytes, **how: str) -> None:
        key = self._key(path)

        async def call(client: Any) -> None:
            async def send() -> None:
                await client.put_object(Bucket=self._bucket, Key=key, Body=data, **how)

            if how == _CREATE:
                await self._hedging.create(send, self.requests, name=key, size_bytes=len(data), is_final=is_answer)
            else:
                await send()

        def here(store: S3Store) -> None:
            self._reads.create_here(store, key, data)

        self._request(kind, path, call, bytes_written=len(data), here=here if how == _CREATE else None)

    def _upload_pieces(self, kind: Kind, path: str, content: Content, **how: str) -> None:
        """Upload in several requests. The object becomes visible with the last one."""
        upload = S3Upload(kind, path, self._where(path), self._request)
        try:
            for number in range(content.pieces):
                upload.send(number, content.piece(number))
            try:
                upload.finish(**how)
            except ObjectMissing as error:
                raise _UploadGone(error.what, path=error.path) from error
        except Exception:
            # The earlier error is reported; retention aborts the upload later.
            with suppress(StorageError):
                upload.abort()
            raise

    @property
    def location(self) -> Location:
        # Roots with the same client have the same endpoint and credentials.
        return Location(("s3", id(self._connection)), f"{self._bucket}/{self._before}".rstrip("/"))

    def copy(self, path: str, source: Location, entry: Entry) -> None:
        bucket, _, folder = source.place.partition("/")
        origin = {"Bucket": bucket, "Key": f"{folder}/{entry.path}" if folder else entry.path}
        copy(self._where(path), origin, path, entry, self._request)

    def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload:
        kind = Kind.REPLACE if replaces else Kind.CREATE
        return S3PartsUpload(
            S3Upload(kind, path, self._where(path), self._request, is_early=True),
            part_bytes=part_bytes,
            how={} if replaces else _CREATE,
            exists=lambda: self.stat(path) is not None,
            compare=lambda content: self._compare(path, content),
        )

    def unfinished_uploads(self) -> Uploads:
        def path_of(key: str) -> str | None:
            path = key.removeprefix(self._before)
            with suppress(ValueError):
                return checked(path)
            return None

        return unfinished(self._bucket, self._before, path_of, self._request)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        abort(self._bucket, self._key(upload.path), upload, self._request)

    def _where(self, path: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._key(path)}

    def _compare(self, path: str, content: Content) -> Created:
        """Return SAME if the object has this content, else raise AlreadyExists. Raises StorageError if it cannot be
        read."""
        found = self.stat(path)
        shown = self._shown(path)
        if found is None:
            raise StorageError("is missing, although the storage reported that it exists", path=shown, hint="try again")
        if found.size_bytes == content.size_bytes:
            # An equal ETag saves the download. Equal bytes can have different ETags: with KMS, or uploaded in other pieces.
            same = found.etag == content.etag()
            if same or content.equals(lambda start, length: self.read_range(path, start, length)):
                return Created.SAME
        raise another_exists(shown)

    def _listed(self, objects: Iterable[Entry], prefix: str, *, hidden: bool) -> Iterator[Entry]:
        """Yield what is below a prefix. `objects`: their paths are keys."""
        for found in objects:
            path = found.path.removeprefix(self._before)
            if marks_folder(path, found.size_bytes):
                continue
            try:
                checked(path)
            except ValueError:
                # The owner of these objects is unknown.
                self.omissions.note(path, "its name is not a valid path in a state root")
                continue
            if is_listed(path, prefix, hidden=hidden):
                yield replace(found, path=path)

    def _delete_batch(self, keys: Iterable[str]) -> None:
        remaining = list(keys)

        self._settle(remaining)

        async def call(client: Any) -> None:
            nonlocal remaining
            names = {"Objects": [{"Key": key} for key in remaining], "Quiet": True}
            answer = await client.delete_objects(Bucket=self._bucket, Delete=names)
            errors = [error for error in answer.get("Errors", []) if error.get("Code") != "NoSuchKey"]
            if errors:
                # The store replies 200 and names the objects that it could not delete. Only these are retried.
                remaining = [error["Key"] for error in errors]
                raise ClientError({"Error": errors[0]}, "DeleteObjects")

        self._request(Kind.DELETE, remaining[0].removeprefix(self._before), call)

    def _request(
        self,
        kind: Kind,
        path: str,
        call: Call[T],
        *,
        bytes_written: int = 0,
        is_optional: bool = False,
        quick: Call[T] | None = None,
        here: Callable[[S3Store], T] | None = None,
    ) -> T:
        """Send a request, again after transient failures.

        call         the request to a client of botocore
        is_optional  do not wait for storage that is unavailable
        quick        the request through `s3_reads`
        here         likewise, in the calling thread, for storage without hedging
        """

        async def opened() -> Any:
            try:
                return await self._connection.set_session()
            except ValueError as error:
                raise StorageError(str(error), path=self.url, hint="correct endpoint_url") from error

        async def with_botocore() -> T:
            return await call(await opened())

        async def send() -> T:
            if quick is None:
                return await with_botocore()
            return await self._reads.first(await opened(), quick, with_botocore, again=again)

        def again() -> None:
            self.requests.count(kind, bytes_written=bytes_written)

        def attempt() -> T:
            def in_loop(coroutine: Callable[[], Awaitable[T]]) -> T:
                return sync(self._connection.loop, coroutine)  # type: ignore[no-any-return]

            again()
            store = None if here is None or self._is_hedged else self._reads.opened()
            if store is None or here is None:
                return in_loop(send)
            return self._reads.here(store, here, lambda: in_loop(with_botocore), again=again)

        def is_transient(error: Exception) -> bool:
            if is_throttling(error):
                self._hedging.throttled()
            return isinstance(error, FAILURES) and is_passing(error)

        try:
            answer = (self._briefly if is_optional else self._resending).send(attempt, is_transient)
        except FAILURES as error:
            translated = translate(error, self._shown(path))
            if isinstance(translated, AccessDenied):
                forget(self._connection)
            raise translated from error
        self._bucket_seen = True
        return answer

    def _key(self, path: str) -> str:
        return self._before + checked(path)

    def _shown(self, path: str) -> str:
        return f"{self.url}/{path}"


def _objects_of(pages: Iterable[Mapping[str, Any]]) -> Iterator[Entry]:
    for page in pages:
        for one in page.get("Contents", []):
            yield Entry(one["Key"], one["Size"], one["LastModified"].timestamp(), one["ETag"].strip('"'))


class _UploadGone(StorageError):
    """The store does not know the upload that is to be completed."""


_CONNECT_TIMEOUT_SECONDS = 5
_READ_TIMEOUT_SECONDS = 30
_MOST_CONNECTIONS = 64
"""Per client: eight concurrent roots with eight concurrent requests each."""

_CLIENTS: dict[object, s3fs.S3FileSystem] = {}
"""The shared clients by process, options and environment. A fork must not use those of its parent."""


def shared(options: Mapping[str, str]) -> s3fs.S3FileSystem:
    """Return this process's client for these options. Sends no request."""
    # Missing options come from these variables.
    environment = sorted(item for item in os.environ.items() if item[0].startswith("AWS_"))
    key = (os.getpid(), *sorted(options.items()), *environment)
    # `setdefault` gives concurrent threads the same client. A lock could be held during a fork.
    return _CLIENTS.get(key) or _CLIENTS.setdefault(key, _client(options))


def forget(client: s3fs.S3FileSystem) -> None:
    """Stop sharing a client. The next open reads the credentials again, which may have been renewed in their file.

    *Race*: credentials are rotated. A sensor that polls each 15 seconds would be rejected until the process is
    restarted.
    """
    for key, shared in list(_CLIENTS.items()):
        if shared is client:
            _CLIENTS.pop(key, None)


def _client(options: Mapping[str, str]) -> s3fs.S3FileSystem:
    region = options.get("region") or os.environ.get("AWS_REGION")  # botocore itself reads AWS_DEFAULT_REGION only
    return s3fs.S3FileSystem(
        anon=options.get("anon", "false").lower() == "true",
        endpoint_url=options.get("endpoint_url"),
        key=options.get("key"),
        secret=options.get("secret"),
        client_kwargs={"region_name": region} if region else {},
        config_kwargs={
            "connect_timeout": _CONNECT_TIMEOUT_SECONDS,
            "read_timeout": _READ_TIMEOUT_SECONDS,
            "max_pool_connections": _MOST_CONNECTIONS,
            # `s3` does the retries, so that they are counted and can be simulated.
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        },
        session=_session(),
        use_listings_cache=False,
        skip_instance_cache=True,
    )


def _session() -> AioSession:
    """Return a session that parses the times of listings quickly: botocore's own parser accepts all formats, and takes two
    thirds of the time of a listing."""
    session = AioSession()
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time)
    return session


def _time(text: str | float) -> datetime:
    """Parse a time of a listing, `2026-03-01T03:00:00.000Z`, or of a header, in one of the formats of botocore."""
    if isinstance(text, str) and text.endswith("Z"):
        with suppress(ValueError):
            return datetime.fromisoformat(text)
    found: datetime = parse_timestamp(text)
    return found


_WRONG_ETAG = '"00000000000000000000000000000000"'

_KNOWN: dict[tuple[str, str], bool] = {}
"""The results in this process, by endpoint and bucket."""


def deletes_on_condition(
    store: tuple[str, str], create: Callable[[], None], delete_if: Callable[[str], None], delete: Callable[[], None]
) -> bool:
    """Return whether the store (endpoint and bucket) supports the condition. Three requests, once per process.

    The requests use one new object that no other process knows. Raises `StorageError` for failures unrelated to
    conditions.
    """
    if store not in _KNOWN:
        create()
        try:
            delete_if(_WRONG_ETAG)
            honours = False
        except AlreadyExists:
            honours = True
        except StorageError:
            honours = False  # the store rejects the unknown header; the later deletes report other errors
        delete()
        _KNOWN[store] = honours
    return _KNOWN[store]


MOST_BYTES_IN_ONE_REQUEST = 5 * 1024**3
"""The limit of S3."""

PART_BYTES = 512 * 1024**2
"""With 10,000 parts at most, enough for the largest object of S3, which has 5 TiB."""


def copy(
    where: Mapping[str, str],
    source: Mapping[str, str],
    path: str,
    entry: Entry,
    request: Request,
    *,
    part_bytes: int = PART_BYTES,
    most_bytes: int = MOST_BYTES_IN_ONE_REQUEST,
) -> None:
    """Copy the object at `source`, which was listed as `entry`, to `where` (bucket and key). `path` is for errors.

    Raises `ObjectMissing` and `SourceChanged` if the source was deleted or has changed; `StorageError`.
    """
    from_it: dict[str, Any] = {"CopySource": dict(source)}
    if entry.etag is not None:
        from_it["CopySourceIfMatch"] = entry.etag
    if entry.size_bytes <= most_bytes:

        async def call(client: Any) -> None:
            await client.copy_object(**where, **from_it)

        with _unchanged(source):
            request(Kind.CREATE, path, call)
        return
    upload = S3Upload(Kind.CREATE, path, where, request)
    try:
        for number, first in enumerate(range(0, entry.size_bytes, part_bytes)):
            last = min(first + part_bytes, entry.size_bytes) - 1
            with _unchanged(source):
                upload.copy(number, **from_it, CopySourceRange=f"bytes={first}-{last}")
        upload.finish()
    except Exception:
        # The earlier error is reported; retention aborts the upload later.
        with suppress(StorageError):
            upload.abort()
        raise


@contextmanager
def _unchanged(source: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except AlreadyExists as error:
        # No other condition of these requests can fail.
        raise changed(f"s3://{source['Bucket']}/{source['Key']}") from error
