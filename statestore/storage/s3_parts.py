"""Multipart uploads to S3: an object is sent in parts, and becomes visible as a whole with the last request.

POST   key?uploads                 the id of the upload
PUT    key?uploadId&partNumber=1   at least 5 MiB each, but for the last part
POST   key?uploadId                complete; with If-None-Match: * only if the key is free
DELETE key?uploadId                abort
GET    ?uploads, key?uploadId      unfinished uploads and their parts
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from statekeeper.statestore.errors import AlreadyExists, ObjectMissing, StorageError
from statekeeper.statestore.storage.base import Created, Kind, UnfinishedUpload
from statekeeper.statestore.storage.content import Content
from statekeeper.statestore.storage.parallel import at_once

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
