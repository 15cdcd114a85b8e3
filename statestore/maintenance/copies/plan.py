"""Plans a clone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.errors import StatekeeperError
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.copy_file import CopyFile, Part, Way
from statekeeper.statestore.maintenance.copies.facts import CloneFacts
from statekeeper.statestore.maintenance.copies.files import files_of
from statekeeper.statestore.maintenance.copies.obstacles import obstacles, occupied
from statekeeper.statestore.maintenance.copies.record import CloneRecord


@dataclass(frozen=True)
class FreshIds:
    """Random ids for a clone. `root`: of a Python job's root; `query`: None if the clone keeps the query."""

    root: str
    query: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClonePlan:
    """The files to copy, in their order, and the reasons not to clone.

    record       what the destination records
    newest       the newest batch of the source
    structure    of the batch
    stores       number of stores
    is_complete  the destination already is this clone
    """

    record: CloneRecord
    newest: int
    structure: Structure
    stores: int
    files: tuple[CopyFile, ...]
    refusals: tuple[StatekeeperError, ...]
    is_complete: bool

    def size_bytes(self, *ways: Way) -> int:
        """The bytes of the files that are copied in one of these ways, by default in any."""
        return sum(file.size_bytes for file in self.files if not ways or file.way in ways)

    def to_copy(self, *parts: Part) -> list[CopyFile]:
        """The files of these parts that are not present yet."""
        return [file for file in self.files if file.part in parts and file.way is not Way.PRESENT]


def plan(
    gathered: CloneFacts,
    fresh: FreshIds,
    *,
    query_id: str | None = None,
    location: str | None = None,
    command: str = "clone",
) -> ClonePlan:
    """Plan a clone.

    fresh      ids that the clone gets, unless an earlier run has chosen others
    query_id   the certain id that the clone must get; None for that of `fresh`, or that of the source
    location   the URL that Spark uses for the destination; None derives it from the URLs in the source
    command    the verb with its options that continues this copy: shown to people
    """
    record = CloneRecord(
        source=gathered.source_place.url,
        batch=gathered.batch,
        query=query_id or fresh.query or gathered.query_id,
        root="" if gathered.binding is None else fresh.root,
    )
    earlier = gathered.record
    if earlier is not None and _is_continued(gathered, earlier, record, is_certain=query_id is not None):
        record = earlier
    files, refusals = files_of(gathered, record, location)
    refusals = (*occupied(gathered, record, command), *obstacles(gathered, files), *refusals)
    is_complete = not refusals and all(file.path in gathered.existing for file in files if file.is_log)
    return ClonePlan(
        record=record,
        newest=gathered.newest,
        structure=gathered.structure,
        stores=len(gathered.chains),
        files=tuple(files),
        refusals=refusals,
        is_complete=is_complete,
    )


def _is_continued(gathered: CloneFacts, earlier: CloneRecord, record: CloneRecord, *, is_certain: bool) -> bool:
    """Return whether this run continues the earlier one: the same source and batch, and an id as it is wanted now."""
    if (earlier.source, earlier.batch) != (record.source, record.batch):
        return False
    if is_certain or record.query == gathered.query_id:
        return earlier.query == record.query
    return earlier.query != gathered.query_id
