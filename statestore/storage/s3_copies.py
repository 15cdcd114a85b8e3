"""Copies of objects inside S3, also between buckets: no byte passes through this process.

PUT    key with x-amz-copy-source                       up to 5 GiB
PUT    key?uploadId&partNumber=1 with a range of it     the parts of a larger object

Each request copies only if the source still has the ETag of its listing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from statekeeper.statestore.errors import AlreadyExists, StorageError
from statekeeper.statestore.storage.base import Entry, Kind, changed
from statekeeper.statestore.storage.s3_parts import Request, S3Upload

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
