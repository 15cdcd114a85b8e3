"""Copies of objects inside Azure's and Google's storage, also between containers: no byte passes through this process.

Azure    PUT blob with x-ms-copy-source, inside one storage account; then HEAD until a copy in the background is complete
Google   POST rewriteTo, repeated with its token until a large object is complete

Each request copies only if the source still has the ETag (Azure) or the generation (Google) of its listing. On Google
it also copies only if the target does not exist. Both conditions apply to each request of a large object, because the
last one creates the target.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

POLL_SECONDS = 0.5
"""Pause between two looks at a copy that Azure does in the background."""


class ServiceCopy(Protocol):
    """Copies the object at the driver's path `source` to `target` if it still has the mark `etag` of its listing.

    Raises the driver's exceptions: status 412 if the source has changed; `FileExistsError` if one of several conditions
    failed, and the reply does not show which.
    """

    async def __call__(self, files: Any, source: str, target: str, etag: str | None) -> None: ...


async def copy_on_azure(files: Any, source: str, target: str, etag: str | None) -> None:
    """Copy a blob inside a storage account. See `ServiceCopy`."""
    from azure.core import MatchConditions
    from azure.core.exceptions import AzureError

    blobs = [
        files.service_client.get_blob_client(container=container, blob=blob)
        for container, _, blob in (place.partition("/") for place in (source, target))
    ]
    how = {} if etag is None else {"source_etag": f'"{etag}"', "source_match_condition": MatchConditions.IfNotModified}
    try:
        done = await blobs[1].start_copy_from_url(blobs[0].url, **how)
        while (status := done["copy_status"]) == "pending":
            await asyncio.sleep(POLL_SECONDS)
            status = (await blobs[1].get_blob_properties()).copy.status
            done = {"copy_status": status}
        if status != "success":
            raise AzureError(f"the copy of {source} ended with status {status}")
    finally:
        for blob in blobs:
            await blob.close()


async def copy_on_google(files: Any, source: str, target: str, etag: str | None) -> None:
    """Copy an object inside Google Cloud Storage. See `ServiceCopy`; `etag` is the generation. An existing target is not
    overwritten: `FileExistsError`, also if the source has changed."""
    places = [place.partition("/") for place in (source, target)]
    names = [name for bucket, _, key in places for name in (bucket, key)]
    token: dict[str, str] = {}
    while True:
        done = await files._call(  # noqa: SLF001 - the driver's own copy has no condition
            "POST",
            "b/{}/o/{}/rewriteTo/b/{}/o/{}",
            *names,
            headers={"Content-Type": "application/json"},
            json_out=True,
            ifSourceGenerationMatch=etag,
            ifGenerationMatch="0",
            **token,
        )
        if done["done"] is True:
            return
        token = {"rewriteToken": done["rewriteToken"]}
