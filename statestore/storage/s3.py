"""A root in an S3 bucket, or in a store that implements the S3 protocol with If-None-Match.

s3fs provides the session, the credentials and the event loop. The requests are sent here one by one, because its
file-like calls hide them: each request must be counted, one place must retry, and each conflict must be verified. The
listing and instance caches of s3fs are disabled; `StorageSpec` explains the problem with forks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from botocore.exceptions import ClientError
from fsspec.asyn import sync

from statekeeper.statestore.clock import Clock, Ids
from statekeeper.statestore.errors import AccessDenied, AlreadyExists, BucketMissing, ObjectMissing, StorageError
from statekeeper.statestore.format.limits import DEFAULT_LIMITS, SizeLimits
from statekeeper.statestore.storage import hedging, s3_clients, s3_conditions, s3_copies, s3_parts
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
    checked,
    checked_folder,
    is_listed,
    marks_folder,
    only_after,
    too_large,
)
from statekeeper.statestore.storage.content import DOWNLOAD_PIECE_BYTES, Content, require_size, scratch_file
from statekeeper.statestore.storage.resending import TRIES, Resending
from statekeeper.statestore.storage.s3_errors import (
    FAILURES,
    BeyondEnd,
    is_answer,
    is_passing,
    is_throttling,
    translate,
)
from statekeeper.statestore.storage.s3_parts import Call, S3PartsUpload, S3Upload

OPTIONS = ("endpoint_url", "key", "secret", "region", "anon", hedging.OPTION)

T = TypeVar("T")


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
        limits: SizeLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(f"s3://{bucket}/{folder}".rstrip("/"), limits)
        self._bucket = bucket
        self._before = f"{folder}/" if folder else ""
        self._ids = ids
        self._bucket_seen = False
        self._endpoint = options.get("endpoint_url") or os.environ.get("AWS_ENDPOINT_URL", "")
        options, is_hedged = hedging.chosen(options)
        self._connection = s3_clients.shared(options)
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

        async def call(client: Any) -> int:
            answer = await self._opened(client, key)
            size_bytes = 0
            async with answer["Body"] as body:
                require_size(self._shown(path), answer["ContentLength"], expected_bytes)
                with scratch_file(target) as write:
                    while piece := await body.read(DOWNLOAD_PIECE_BYTES):
                        write(piece)
                        size_bytes += len(piece)
                        self.requests.count_bytes_read(len(piece))
            return size_bytes

        return self._request(Kind.READ, path, call)

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        del like  # of a file system
        content = Content.of(data)
        if content.pieces > 1 and self.stat(path) is not None:
            # A large upload would detect the conflict only at its end.
            return self._compare(path, content)
        try:
            if content.pieces > 1:
                self._upload_pieces(Kind.CREATE, path, content, IfNoneMatch="*")
            else:
                self._put(Kind.CREATE, path, content.piece(0), IfNoneMatch="*")
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
        entries = [
            entry
            for page in self._pages(prefix, folder)
            for entry in self._listed(page.get("Contents", []), prefix, hidden=hidden)
        ]
        return sorted(entries, key=lambda entry: entry.path)

    def list_after(self, folder: str, name: str, *, beginning: str) -> Entries:
        first = self._before + checked(folder)
        entries = [
            entry
            for page in self._pages(folder, f"{first}/{beginning}", StartAfter=f"{first}/{name}")
            for entry in self._listed(page.get("Contents", []), folder, hidden=False)
        ]
        return only_after(sorted(entries, key=lambda entry: entry.path), folder, name, beginning)

    def folders(self, prefix: str) -> Names:
        folder = f"{self._before}{checked_folder(prefix)}/" if prefix else self._before
        found: Names = []
        for page in self._pages(prefix, folder, Delimiter="/"):
            keys = (common["Prefix"] for common in page.get("CommonPrefixes", []))
            found.extend(key.removeprefix(folder).removesuffix("/") for key in keys)
        return sorted(name for name in found if name and not name.startswith("."))

    def stat(self, path: str) -> Entry | None:
        found = self._head(path)
        return found and Entry(
            path, found["ContentLength"], found["LastModified"].timestamp(), found["ETag"].strip('"')
        )

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
        return s3_conditions.deletes_on_condition(
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

    def _pages(self, shown: str, folder: str, **how: str) -> Iterator[Any]:
        """Iterate over the pages of a listing of all keys with the prefix `folder`, one request each."""
        position: dict[str, str] = {}
        while True:

            async def call(client: Any, position: dict[str, str] = position) -> Any:
                return await client.list_objects_v2(Bucket=self._bucket, Prefix=folder, **how, **position)

            page = self._request(Kind.LIST, shown, call)
            yield page
            if not page.get("IsTruncated"):
                return
            position = {"ContinuationToken": page["NextContinuationToken"]}

    def _get(self, path: str, **how: str) -> bytes:
        return self._get_with_etag(path, **how)[0]

    def _get_with_etag(self, path: str, **how: str) -> tuple[bytes, str]:
        key = self._key(path)

        async def call(client: Any) -> tuple[bytes, str]:
            answer = await self._opened(client, key, **how)
            async with answer["Body"] as body:
                if "Range" not in how and answer["ContentLength"] > self.limits.object_bytes:
                    raise too_large(answer["ContentLength"], self._shown(path), self.limits)
                data: bytes = await body.read()
            self.requests.count_bytes_read(len(data))
            return data, answer["ETag"]

        return self._request(Kind.READ, path, call)

    async def _opened(self, client: Any, key: str, **how: str) -> Any:
        """Return the reply of a GET whose body is not read yet."""

        async def send() -> Any:
            return await client.get_object(Bucket=self._bucket, Key=key, **how)

        return await self._hedging.read(
            send, self.requests, is_final=is_answer, discard=lambda answer: answer["Body"].close()
        )

    def _head(self, path: str) -> Any:
        key = self._key(path)

        async def call(client: Any) -> Any:
            return await client.head_object(Bucket=self._bucket, Key=key)

        async def call_for_bucket(client: Any) -> None:
            await client.head_bucket(Bucket=self._bucket)

        try:
            return self._request(Kind.STAT, path, call)
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

    def _put(self, kind: Kind, path: str, data: bytes, **how: str) -> None:
        key = self._key(path)

        async def call(client: Any) -> None:
            async def send() -> None:
                await client.put_object(Bucket=self._bucket, Key=key, Body=data, **how)

            if "IfNoneMatch" in how:
                await self._hedging.create(send, self.requests, name=key, size_bytes=len(data), is_final=is_answer)
            else:
                await send()

        self._request(kind, path, call, bytes_written=len(data))

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
        s3_copies.copy(self._where(path), origin, path, entry, self._request)

    def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload:
        kind = Kind.REPLACE if replaces else Kind.CREATE
        return S3PartsUpload(
            S3Upload(kind, path, self._where(path), self._request, is_early=True),
            part_bytes=part_bytes,
            how={} if replaces else {"IfNoneMatch": "*"},
            exists=lambda: self.stat(path) is not None,
            compare=lambda content: self._compare(path, content),
        )

    def unfinished_uploads(self) -> Uploads:
        def path_of(key: str) -> str | None:
            path = key.removeprefix(self._before)
            with suppress(ValueError):
                return checked(path)
            return None

        return s3_parts.unfinished(self._bucket, self._before, path_of, self._request)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        s3_parts.abort(self._bucket, self._key(upload.path), upload, self._request)

    def _where(self, path: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._key(path)}

    def _compare(self, path: str, content: Content) -> Created:
        """Return SAME if the object has this content, else raise AlreadyExists. Raises StorageError if it cannot be
        read."""
        found = self._head(path)
        shown = self._shown(path)
        if found is None:
            raise StorageError("is missing, although the storage reported that it exists", path=shown, hint="try again")
        if found["ContentLength"] == content.size_bytes:
            # An equal ETag saves the download. Equal bytes can have different ETags: with KMS, or uploaded in other pieces.
            same = found["ETag"].strip('"') == content.etag()
            if same or content.equals(lambda start, length: self.read_range(path, start, length)):
                return Created.SAME
        raise another_exists(shown)

    def _listed(self, found: Iterable[Any], prefix: str, *, hidden: bool) -> Iterator[Entry]:
        for item in found:
            path = item["Key"].removeprefix(self._before)
            if marks_folder(path, item["Size"]):
                continue
            try:
                checked(path)
            except ValueError:
                # The owner of these objects is unknown.
                self.omissions.note(path, "its name is not a valid path in a state root")
                continue
            if is_listed(path, prefix, hidden=hidden):
                yield Entry(path, item["Size"], item["LastModified"].timestamp(), item["ETag"].strip('"'))

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

    def _request(self, kind: Kind, path: str, call: Call[T], *, bytes_written: int = 0, is_optional: bool = False) -> T:
        """Send a request, again after transient failures. `is_optional`: do not wait for storage that is unavailable."""

        async def send() -> T:
            try:
                client = await self._connection.set_session()
            except ValueError as error:
                raise StorageError(str(error), path=self.url, hint="correct endpoint_url") from error
            return await call(client)

        def attempt() -> T:
            self.requests.count(kind, bytes_written=bytes_written)
            return sync(self._connection.loop, send)  # type: ignore[no-any-return]

        def is_transient(error: Exception) -> bool:
            if is_throttling(error):
                self._hedging.throttled()
            return isinstance(error, FAILURES) and is_passing(error)

        try:
            answer = (self._briefly if is_optional else self._resending).send(attempt, is_transient)
        except FAILURES as error:
            translated = translate(error, self._shown(path))
            if isinstance(translated, AccessDenied):
                s3_clients.forget(self._connection)
            raise translated from error
        self._bucket_seen = True
        return answer

    def _key(self, path: str) -> str:
        return self._before + checked(path)

    def _shown(self, path: str) -> str:
        return f"{self.url}/{path}"


class _UploadGone(StorageError):
    """The store does not know the upload that is to be completed."""
