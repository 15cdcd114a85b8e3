"""Unfinished uploads in parts: their verdicts, and their abort.

An upload of a dead process is invisible, but its parts are billed until it is aborted. If retention aborts the upload of a
running task, the task uploads its changelog again from its local file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from statekeeper.statestore.base.errors import AccessDenied
from statekeeper.statestore.maintenance.records import announcements
from statekeeper.statestore.maintenance.upkeep.retention.model import Rule, Verdict
from statekeeper.statestore.storage import Entry, Storage, UnfinishedUpload, at_once

LIFE_SECONDS = announcements.LIFE_SECONDS
"""A younger upload may be of a running task."""

ABORTED_AT_ONCE = 100
_ID = "?uploadId="


def find(storage: Storage) -> tuple[tuple[UnfinishedUpload, ...], str | None]:
    """List the unfinished uploads; also return the finding if the credentials do not permit it. Raises `StorageError`."""
    try:
        return tuple(storage.unfinished_uploads()), None
    except AccessDenied as error:
        return (), (
            f"unfinished uploads cannot be listed, and their parts are billed: {error.what}. Grant "
            "s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts, or give the bucket a lifecycle rule"
        )


def entry_of(upload: UnfinishedUpload) -> Entry:
    """Return the upload as a file. Its path is unique: an object and several uploads may have one name."""
    return Entry(f"{upload.path}{_ID}{upload.id}", upload.size_bytes, upload.started_at_seconds)


def is_upload(path: str) -> bool:
    """Return whether a path is of `entry_of`."""
    return _ID in path


def verdict(upload: UnfinishedUpload, now_seconds: float) -> Verdict:
    """Return the verdict on an upload. Pure."""
    is_young = now_seconds - upload.started_at_seconds < LIFE_SECONDS
    path = entry_of(upload).path
    return Verdict(path, upload.size_bytes, Rule.YOUNG if is_young else Rule.LEFTOVER, upload)


def abort(storage: Storage, verdicts: Sequence[Verdict], may_delete: Callable[[], None]) -> Iterator[list[Verdict]]:
    """Abort the uploads of these verdicts; yield them in groups after their requests. Raises `StorageError`."""

    def drop(verdict: Verdict) -> None:
        assert verdict.upload is not None
        storage.abort_upload(verdict.upload)

    for start in range(0, len(verdicts), ABORTED_AT_ONCE):
        part = list(verdicts[start : start + ABORTED_AT_ONCE])
        may_delete()
        at_once(drop, part)
        yield part
