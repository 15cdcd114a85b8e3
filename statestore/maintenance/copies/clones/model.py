"""The facts of a clone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum

from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format import json_records, names
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.json_records import About, Count
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.storage import Entry, Storage, read_or_none
from statekeeper.statestore.storage.base import Location

_FORMAT = 1
_ABOUT = About("record of a clone", hint="clone to an empty location")


@dataclass(frozen=True, kw_only=True)
class CloneRecord:
    """Where a clone comes from, and the ids that it got. A second run uses the same ids.

    source    URL of the source
    batch     the newest batch of the clone
    query     id of its query: that of the source, or a new one
    root      id of its root; "" for a native checkpoint
    """

    source: str
    batch: Count
    query: str
    root: str

    def encoded(self) -> bytes:
        """Encode the record."""
        return json_records.encoded({"format": _FORMAT, **asdict(self)}, sort_keys=True)


def read(storage: Storage) -> CloneRecord | None:
    """Read the record of a clone; None if the root is no clone. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(storage, names.CLONED)
    return None if data is None else json_records.decoded(CloneRecord, data, names.CLONED, _ABOUT, only_format=_FORMAT)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A root: its URL and its location."""

    url: str
    location: Location


@dataclass(frozen=True, kw_only=True)
class CloneFacts:
    """A source at one batch, and the destination.

    batch        the batch to clone
    since        the oldest batch to copy, if it can be loaded: of a clone, `batch`
    floor        the oldest batch whose logs are copied, if it can be loaded: of a clone, 0
    newest       the newest committed batch of the source
    settled      the newest batch whose files no query replaces any more; below 0 if there is none
    structure    of the batch
    query_id     of the query of the source; that of a Python job is in the binding
    binding      of a root of a Python job; None for a native checkpoint
    chains       the committed versions of each store, back to a base of the batch
    source       the files of the source by path, without control files other than batch logs and schemas
    positions    the newest entry that the batch has read from each file source
    metadata     the bytes of the operators' metadata by path, if they contain URIs
    rows         the state schemas of a Python job that a later batch has extended, by path, as of the batch
    existing     the files of the destination by path
    record       the record of an earlier run in the destination
    marks        of a mirror: the mark of each file that the mirror has, by path; see `copies.copy_file.mark`
    """

    source_place: Place
    destination_place: Place
    batch: int
    since: int
    floor: int
    newest: int
    settled: int
    structure: Structure
    query_id: str
    binding: Binding | None
    chains: Mapping[StorePath, Chain]
    source: Mapping[str, Entry]
    positions: Positions
    metadata: Mapping[str, bytes]
    rows: Mapping[str, bytes]
    existing: Mapping[str, Entry]
    record: CloneRecord | None
    marks: Mapping[str, str] | None = None


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
