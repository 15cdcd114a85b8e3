"""The facts of a mirror."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statestore.binding import Binding
from statestore.chain import Chain
from statestore.format.names import StorePath
from statestore.maintenance.copies import CloneFacts
from statestore.maintenance.mirrors.record import Marks, MirrorRecord


@dataclass(frozen=True, kw_only=True)
class MirrorFacts:
    """A source and its mirror.

    copy      the facts of the files to copy
    record    None before the first run
    marks     the files that earlier runs copied, with their marks
    lists     the numbers of the lists of these files
    binding   of the mirror; None for a native checkpoint, and before the first run has copied it
    logs      the log entries to compare, by path: the bytes in the source and in the mirror, None if missing
    """

    copy: CloneFacts
    record: MirrorRecord | None
    marks: Marks
    lists: tuple[int, ...]
    binding: Binding | None
    logs: Mapping[str, tuple[bytes | None, bytes | None]]


@dataclass(frozen=True, kw_only=True)
class CleanupFacts:
    """The files of a mirror and of its source, to decide on deletions.

    marks     the files that the mirror copied
    source    the paths of the files of the source
    existing  the sizes in bytes of the files of the mirror, by path
    chains    the committed versions of each store of the mirror, back to a base of batch `first`, as they are without the
              files that the source has deleted
    first     the oldest batch of the mirror
    omitted   a name that a listing of the source has omitted; None if the listing is whole
    """

    marks: Marks
    source: frozenset[str]
    existing: Mapping[str, int]
    chains: Mapping[StorePath, Chain]
    first: int
    omitted: str | None = None
