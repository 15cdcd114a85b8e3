"""The files of a copy, and how each of them is copied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from statekeeper.statestore.format import names
from statekeeper.statestore.storage import Entry


class Part(Enum):
    """The parts of a checkpoint, in the order in which they are copied."""

    STATE = "state"
    METADATA = "metadata and schemas"
    SOURCES = "progress of sources"
    OFFSETS = "offset log"
    COMMITS = "commit log"


class Way(Enum):
    """How a file is copied."""

    SERVICE = "by the storage service"
    """On a local disk: a hard link, or a reflink or a copy if links fail."""
    STREAM = "through this machine"
    REWRITE = "with other ids or URLs"
    PRESENT = "present from an earlier run"


@dataclass(frozen=True, kw_only=True)
class CopyFile:
    """One file of the clone. `entry`: in the source; `body`: the bytes of a rewritten file."""

    part: Part
    way: Way
    entry: Entry
    body: bytes | None = None

    @property
    def path(self) -> str:
        """The path, which is the same in both roots."""
        return self.entry.path

    @property
    def is_log(self) -> bool:
        """Whether the file belongs to the offset log or to the commit log."""
        return self.part in (Part.OFFSETS, Part.COMMITS)

    @property
    def batch(self) -> int | None:
        """The batch of a log entry."""
        return names.parse_batch(self.path) if self.is_log else None

    @property
    def size_bytes(self) -> int:
        """The size of the file in the clone."""
        return self.entry.size_bytes if self.body is None else len(self.body)


def oldest_batch(files: Iterable[CopyFile], batch: int) -> int:
    """The oldest batch whose commit is among the files of a copy of `batch`: retention of the source must keep it."""
    return min((file.batch for file in files if file.part is Part.COMMITS and file.batch is not None), default=batch)


def part_of(path: str) -> Part:
    """Return the part of a checkpoint to which a file belongs."""
    folder = path.split("/", 1)[0]
    if folder in (names.OFFSETS, names.COMMITS):
        return Part.OFFSETS if folder == names.OFFSETS else Part.COMMITS
    if folder == names.SOURCES:
        return Part.SOURCES
    is_state = folder == names.STATE and "/_metadata/" not in path and "/_stateSchema/" not in path
    return Part.STATE if is_state or path.startswith(f"{names.BATCH_LOGS}/") else Part.METADATA


def mark(entry: Entry) -> str:
    """The ETag of a file, or its time on a file system. It changes if the bytes do."""
    return entry.etag or repr(entry.modified_at_seconds)
