"""The facts of a mirror."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from msgspec import Meta

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format import json_records, mirror_names
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.json_records import About, Count, Record
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.clones import CloneFacts
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.storage import Storage, at_once, read_or_none

_FORMAT = 1
_HINT = "mirror to an empty location"

Marks = Mapping[str, str]
"""The mark of each copied file by path: see `copies.copy_file.mark`."""


@dataclass(frozen=True, kw_only=True)
class MirrorRecord:
    """The source of a mirror and its progress.

    source   URL of the source
    query    id of the query, which the mirror keeps
    root     id of the mirror's root; "" for a native checkpoint
    batch    the newest mirrored batch; -1 before the first run is complete
    first    the oldest batch of the mirror
    """

    source: str
    query: str
    root: str
    batch: Annotated[int, Meta(ge=-1)] = -1
    first: Count = 0

    def encoded(self) -> bytes:
        """Encode the record."""
        return json_records.encoded({"format": _FORMAT, **asdict(self)}, sort_keys=True)


def read(storage: Storage) -> MirrorRecord | None:
    """Read the record of a mirror; None if the root is no mirror. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(storage, mirror_names.MIRROR)
    about = About("record of a mirror", hint=_HINT)
    return (
        None
        if data is None
        else json_records.decoded(MirrorRecord, data, mirror_names.MIRROR, about, only_format=_FORMAT)
    )


class _Marked(Record):
    files: dict[str, str]


def read_marks(storage: Storage, numbers: list[int]) -> Marks:
    """Read the lists of copied files with these numbers. One request each. Raises `CorruptFile`, `StorageError`."""
    found: dict[int, dict[str, str]] = {}

    def look(number: int) -> None:
        path, about = mirror_names.mirrored(number), About("list of mirrored files", hint=_HINT)
        found[number] = json_records.decoded(_Marked, storage.read(path), path, about).files

    at_once(look, numbers)
    return {path: mark for number in sorted(found) for path, mark in found[number].items()}


def encode_marks(marks: Marks) -> bytes:
    """Encode a list of copied files."""
    return json_records.encoded({"format": _FORMAT, "files": marks}, sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The ids in the files of a mirror. Before the first run has copied them, they are None.

    query_id  in `metadata`: of a Spark query; of a Python job, the id of the root
    binding   of the root of a Python job
    """

    query_id: str | None
    binding: Binding | None


@dataclass(frozen=True, kw_only=True)
class MirrorFacts:
    """A source and its mirror.

    copy       the facts of the files to copy; its marks include files that were written again with the same bytes
    record     None before the first run
    marks      the files that earlier runs copied, with their marks
    lists      the numbers of the lists of these files
    owner      the ids in the mirror
    structure  of the newest mirrored batch; None before the first run
    logs       the log entries to compare, by path: the bytes in the source and in the mirror, None if missing
    damaged    the errors of metadata that was replaced in the source and cannot be parsed
    """

    copy: CloneFacts
    record: MirrorRecord | None
    marks: Marks
    lists: tuple[int, ...]
    owner: Owner
    structure: Structure | None
    logs: Mapping[str, tuple[bytes | None, bytes | None]]
    damaged: tuple[CorruptFile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CleanupFacts:
    """The files of a mirror and of its source, to decide on deletions.

    marks      the files that the mirror copied
    source     the paths of the files of the source
    existing   the sizes in bytes of the files of the mirror, by path
    chains     the committed versions of each store of the mirror, back to a base of batch `first`, as they are without the
               files that the source has deleted
    tables     the paths of the tables that other snapshots of the mirror name
    positions  the newest entry of each file source in the newest batch of the mirror
    first      the oldest batch of the mirror, or an older one that another run reads; 0 if a hold cannot be decoded
    omitted    a name that a listing of the source has omitted; None if the listing is whole
    """

    marks: Marks
    source: frozenset[str]
    existing: Mapping[str, int]
    chains: Mapping[StorePath, Chain]
    tables: frozenset[str]
    positions: Positions
    first: int
    omitted: str | None = None
