"""The facts of a mirror."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format import mirror_names
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.untrusted import BAD_VALUES, json_object
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
    batch: int = -1
    first: int = 0

    def encoded(self) -> bytes:
        """Encode the record."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True).encode()


def read(storage: Storage) -> MirrorRecord | None:
    """Read the record of a mirror; None if the root is no mirror. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(storage, mirror_names.MIRROR)
    return None if data is None else _parsed(json_object(data, mirror_names.MIRROR))


def read_marks(storage: Storage, numbers: list[int]) -> Marks:
    """Read the lists of copied files with these numbers. One request each. Raises `CorruptFile`, `StorageError`."""
    found: dict[int, dict[str, str]] = {}

    def look(number: int) -> None:
        path = mirror_names.mirrored(number)
        body = json_object(storage.read(path), path)
        try:
            found[number] = {str(name): str(mark) for name, mark in dict(body["files"]).items()}
        except BAD_VALUES as error:
            raise CorruptFile(f"is no valid list of mirrored files: {error}", path=path, hint=_HINT) from error

    at_once(look, numbers)
    return {path: mark for number in sorted(found) for path, mark in found[number].items()}


def encode_marks(marks: Marks) -> bytes:
    """Encode a list of copied files."""
    return json.dumps({"format": _FORMAT, "files": dict(marks)}, sort_keys=True).encode()


def _parsed(body: dict[str, Any]) -> MirrorRecord:
    try:
        if body["format"] != _FORMAT:
            raise ValueError(f"format {body['format']!r}")
        return MirrorRecord(
            source=str(body["source"]),
            query=str(body["query"]),
            root=str(body["root"]),
            batch=int(body["batch"]),
            first=int(body["first"]),
        )
    except BAD_VALUES as error:
        raise CorruptFile(f"is no valid record of a mirror: {error}", path=mirror_names.MIRROR, hint=_HINT) from error


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
