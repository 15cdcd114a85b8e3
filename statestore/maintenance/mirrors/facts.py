"""The facts of a mirror."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statekeeper.statestore.binding import Binding
from statekeeper.statestore.chain import Chain
from statekeeper.statestore.errors import CorruptFile
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import CloneFacts
from statekeeper.statestore.maintenance.mirrors.record import Marks, MirrorRecord


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
