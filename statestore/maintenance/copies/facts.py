"""The facts of a clone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statekeeper.statestore.binding import Binding
from statekeeper.statestore.chain import Chain
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.record import CloneRecord
from statekeeper.statestore.storage import Entry
from statekeeper.statestore.storage.base import Location


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
