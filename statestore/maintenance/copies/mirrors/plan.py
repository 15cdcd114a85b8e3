"""Plans a run of a mirror. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from statekeeper.statestore.base.errors import (
    CorruptFile,
    DestinationNotEmpty,
    MirrorDiverged,
    MirrorStarted,
    RefusedAsUnsafe,
    StatekeeperError,
    UnknownFormatVersion,
)
from statekeeper.statestore.format import mirror_names, names
from statekeeper.statestore.format.names import StoreFileKind
from statekeeper.statestore.format.operators import UnknownColumnType, parse_operator, parse_schema
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.clones.model import (
    CloneFacts,
    CloneRecord,
    CopyFile,
    Part,
    Way,
    mark,
    part_of,
)
from statekeeper.statestore.maintenance.copies.clones.plan import (
    files_of,
    first_loadable,
    obstacles,
    oldest_loadable,
    uncertain_sources,
)
from statekeeper.statestore.maintenance.copies.mirrors.lag import Lag, lag_of
from statekeeper.statestore.maintenance.copies.mirrors.model import Marks, MirrorFacts, MirrorRecord, Owner
from statekeeper.statestore.storage import Entry, Storage, at_once

MOST_LISTS = 32
"""Lists of copied files. The next run merges them into one."""


@dataclass(frozen=True, kw_only=True)
class MirrorPlan:
    """The files that a run copies, and the reasons not to run.

    before      the record of the mirror; None before the first run
    record      the record after the run
    structure   of the batch
    stores      number of stores
    files       in the order in which they are copied; those that the mirror has are `Way.PRESENT`
    leftovers   files that are deleted before they are copied again: of an interrupted run, and checksums of rewritten zips
    marks       the files that the run lists as copied. A zip that it writes again is listed by the next run, which compares
                the bytes: after a crash between list and zip, the zip would count as copied
    rewritten   the zips that the source has written again, and their checksums: they are copied last
    number      of this list; it replaces `merged`
    lag         before the run
    left        the lag after the run
    """

    before: MirrorRecord | None
    record: MirrorRecord
    structure: Structure
    stores: int
    files: tuple[CopyFile, ...]
    leftovers: tuple[str, ...]
    marks: Marks
    rewritten: frozenset[str]
    number: int
    merged: tuple[int, ...]
    lag: Lag
    left: Lag
    refusals: tuple[StatekeeperError, ...]

    @property
    def is_current(self) -> bool:
        """Whether the mirror has all files, so that a run copies nothing."""
        # Metadata is small: a run with other files writes it again.
        is_new = any(file.way is not Way.PRESENT and file.part is not Part.METADATA for file in self.files)
        return self.before == self.record and not is_new

    def size_bytes(self, *ways: Way) -> int:
        """The bytes of the files that are copied in one of these ways, by default in any."""
        return sum(file.size_bytes for file in self.files if not ways or file.way in ways)

    def to_copy(self, *parts: Part) -> list[CopyFile]:
        """The files of these parts that are not present yet."""
        return [file for file in self.files if file.part in parts and file.way is not Way.PRESENT]


def plan(gathered: MirrorFacts, root_id: str, *, location: str | None = None) -> MirrorPlan:
    """Plan a run of a mirror. `root_id`: of the mirror of a Python job's root, unless it has one; `location`: the URL that
    Spark uses for the destination; None derives it."""
    facts, before = gathered.copy, gathered.record
    begun = before or MirrorRecord(
        source=facts.source_place.url, query=facts.query_id, root="" if facts.binding is None else root_id
    )
    as_clone = CloneRecord(source=begun.source, batch=facts.batch, query=begun.query, root=begun.root)
    files, unwritten = files_of(facts, as_clone, location)
    kept = [file for file in files if not _is_own(gathered, file)]
    known = {path: mark for path, mark in gathered.marks.items() if path in facts.existing}
    marks = {file.path: mark(file.entry) for file in kept if not _is_rewritten(facts, file)}
    is_merged = len(gathered.lists) >= MOST_LISTS
    return MirrorPlan(
        before=before,
        record=replace(begun, batch=max(facts.batch, begun.batch), first=_first(facts, begun)),
        structure=facts.structure,
        stores=len(facts.chains),
        files=tuple(kept),
        leftovers=tuple(
            file.path
            for file in kept
            if file.part is Part.STATE
            and file.way is not Way.PRESENT
            and file.path in facts.existing
            and not file.path.endswith(".zip")
        ),
        marks={**known, **marks}
        if is_merged
        else {path: mark for path, mark in marks.items() if known.get(path) != mark},
        rewritten=frozenset(file.path for file in kept if _differs(facts, file)),
        number=max(gathered.lists, default=0) + 1,
        merged=gathered.lists if is_merged else (),
        lag=lag_of(facts.source, begun.batch, facts.newest),
        left=lag_of(facts.source, max(facts.batch, begun.batch), facts.newest),
        refusals=(
            *_mismatches(gathered, differs=any(_differs(facts, file) for file in files)),
            *_damaged(facts, kept),
            *gathered.damaged,
            *obstacles(facts, kept),
            *uncertain_sources(facts),
            *unwritten,
        ),
    )


def _first(facts: CloneFacts, begun: MirrorRecord) -> int:
    """The oldest batch of the mirror. It stays until the source has deleted the batch: a lost file of a later batch does
    not change it. Of a new mirror: from it on, the source has all logs and the files that load every store."""
    if begun.batch >= 0:
        return max(begun.first, oldest_loadable(facts))
    first = facts.batch
    while first > first_loadable(facts) and {names.commits(first - 1), names.offsets(first - 1)} <= facts.source.keys():
        first -= 1
    return first


def _differs(facts: CloneFacts, file: CopyFile) -> bool:
    """Return whether the mirror has the snapshot with other bytes."""
    is_there = file.way is not Way.PRESENT and file.path in facts.existing
    return is_there and file.part is Part.STATE and mirror_names.is_snapshot(file.path)


def _is_own(gathered: MirrorFacts, file: CopyFile) -> bool:
    """Return whether the mirror keeps its own snapshot of a mirrored batch, which its maintenance wrote."""
    if gathered.record is None or file.path in gathered.marks or not _differs(gathered.copy, file):
        return False
    version = _version(file.path, StoreFileKind.SNAPSHOT)
    return version is not None and version <= gathered.record.batch + 1


def _is_rewritten(facts: CloneFacts, file: CopyFile) -> bool:
    """Return whether the source has written the zip again, as a repair does."""
    return _differs(facts, file) and file.path.endswith(".zip")


def _version(path: str, kind: StoreFileKind) -> int | None:
    found = names.parse_store_path(path.removesuffix(names.SIDECAR))
    return found[1].version.version if found is not None and found[1].kind is kind else None


# -- reasons not to run ------------------------------------------------------------------------------------------------


def _damaged(facts: CloneFacts, files: Iterable[CopyFile]) -> Iterator[StatekeeperError]:
    """Yield an error for each file that has another size in the mirror, although its name identifies its bytes."""
    for file in files:
        there = facts.existing.get(file.path)
        if there is None or not mirror_names.is_final(file.path) or there.size_bytes == file.size_bytes:
            continue
        yield RefusedAsUnsafe(
            f"has {file.size_bytes:,} bytes in the source and {there.size_bytes:,} in the mirror: one of the two files is "
            "damaged; nothing was written",
            path=f"{facts.source_place.url}/{file.path}",
            hint=f"to find out whether the file in the source is damaged, run: statekeeper audit {facts.source_place.url} "
            "--deep. Then replace the damaged file by the other file",
        )


def _mismatches(gathered: MirrorFacts, *, differs: bool) -> Iterator[StatekeeperError]:
    """Yield the reason why the destination does not continue as a mirror of the source; the first one is enough."""
    facts, record = gathered.copy, gathered.record
    url = facts.destination_place.url
    if record is None:
        if facts.existing:
            yield DestinationNotEmpty(
                f"is not empty and not a mirror: it contains {min(facts.existing)}; nothing was written",
                path=url,
                hint="choose an empty destination",
            )
        return
    if record.source != facts.source_place.url:
        yield DestinationNotEmpty(
            f"is a mirror of {record.source}; nothing was written",
            path=url,
            hint=f"choose an empty destination, or continue that mirror: statekeeper mirror {record.source} {url}",
        )
        return
    started = started_by_another(gathered.owner, record, url)
    if started is not None:
        yield started
        return
    for path, (_, mirrored) in gathered.logs.items():
        batch = names.parse_batch(path.rpartition("/")[2])
        if batch is not None and batch > record.batch and mirrored != gathered.logs[path][0]:
            yield MirrorStarted(
                f"was written by a query that was started from this mirror after batch {record.batch}; this run has "
                "changed nothing",
                path=f"{url}/{path}",
                hint="to mirror the new query, run: statekeeper mirror "
                f"{url} DESTINATION. To keep mirroring the source, choose an empty destination",
            )
            return
    problem = _divergence(gathered, record, differs=differs)
    if problem is not None:
        yield MirrorDiverged(
            f"{problem}; nothing was written",
            path=facts.source_place.url,
            hint="the mirror stays as it is. To mirror the source as it is now, choose an empty destination: "
            f"statekeeper mirror {facts.source_place.url} DESTINATION",
        )


def started_by_another(owner: Owner, record: MirrorRecord, url: str) -> MirrorStarted | None:
    """Return an error if a claim or a rewind of the mirror has changed its ids: a run would revert it."""
    held = owner.binding
    if owner.query_id not in (None, record.root or record.query):
        path, query = names.QUERY_METADATA, owner.query_id
    elif held is not None and (held.claim is not None or (held.query_id, held.root_id) != (record.query, record.root)):
        path, query = names.BINDING, held.query_id
    else:
        return None
    return MirrorStarted(
        f"belongs to query {query}, not to the query of the source, since a claim or a rewind of this mirror; this run has "
        "changed nothing",
        path=f"{url}/{path}",
        hint=f"stop the scheduled mirror runs to this destination. If query {query} has replaced the query of the source, "
        f"you can mirror this checkpoint to an empty destination: statekeeper mirror {url} DESTINATION",
    )


def _divergence(gathered: MirrorFacts, record: MirrorRecord, *, differs: bool) -> str | None:
    """The difference between the histories of the source and the mirror; None if the source continues the mirror.

    `differs`: the mirror has a snapshot with other bytes than the source.
    """
    facts = gathered.copy
    if facts.query_id != record.query:
        return f"has the query id {facts.query_id}, but the mirror is of query {record.query}"
    if facts.newest < record.batch:
        return f"ends at batch {facts.newest}, but batch {record.batch} is mirrored: the source was rolled back"
    for path, (now, mirrored) in gathered.logs.items():
        if mirrored is None:
            return f"{path} is missing in the mirror: the mirror was rolled back"
        if now is None and (facts.structure is Structure.V2 or not differs):
            # The source's retention has deleted the batch. The window of the plan consists of files of the source only:
            # their names are unique, or they have the marks with which they were copied.
            continue
        if now is None:
            return f"no longer has {path}: Statekeeper cannot verify that source and mirror have the same history"
        if now != mirrored:
            return (
                f"{path} differs from the mirror: the source was restarted from an earlier batch, or its commit was "
                "rewritten by a switchover, an edit, a repair or a rescale of a state root"
            )
    if gathered.structure not in (None, facts.structure):
        return f"was switched to {facts.structure.name} after batch {record.batch}, the newest of the mirror"
    for path, entry in facts.source.items():
        version = _version(path, StoreFileKind.CHANGELOG)
        if version is None or version > record.batch + 1 or mirror_names.is_unique(path):
            continue
        known = (facts.marks or {}).get(path)
        if known is not None and known != mark(entry) and path in facts.existing:
            return f"{path} of a mirrored batch was replaced: the source was restarted from an earlier batch"
    return None


_PIECE_BYTES = 8 * 1024 * 1024


def unchanged(
    source: Storage,
    destination: Storage,
    entries: Mapping[str, Entry],
    existing: Mapping[str, Entry],
    marks: Marks,
) -> Marks:
    """Return the present marks of copied files that were written again with the same bytes, as by an undone rewind.

    Only of files of state whose names do not identify their bytes. Reads these files in both roots. Raises `StorageError`.
    """
    found: dict[str, str] = {}

    def compare(path: str) -> None:
        if _is_same(source, destination, path, entries[path].size_bytes):
            found[path] = mark(entries[path])

    at_once(
        compare,
        [
            path
            for path in _marked_anew(entries, existing, marks)
            if path in marks
            and part_of(path) is Part.STATE
            and not mirror_names.is_final(path)
            and existing[path].size_bytes == entries[path].size_bytes
        ],
    )
    return found


def damaged_metadata(
    source: Storage, entries: Mapping[str, Entry], existing: Mapping[str, Entry], marks: Marks
) -> tuple[CorruptFile, ...]:
    """Return the errors of metadata that was replaced in the source and cannot be parsed: the mirror may have the last good
    copy. Reads the replaced files. Raises `StorageError`."""
    found: list[CorruptFile] = []

    def read(path: str) -> None:
        parse = _parser_of(path)
        try:
            if parse is not None:
                parse(source.read(path), path)
        except (UnknownFormatVersion, UnknownColumnType):
            return  # of a later Spark
        except CorruptFile as error:
            found.append(
                CorruptFile(
                    f"{error.what}; nothing was written, and the mirror keeps its copy of the file",
                    path=f"{source.url}/{path}",
                    hint="compare the two files. If the copy in the mirror is intact, copy it to the source",
                )
            )

    at_once(read, [path for path in _marked_anew(entries, existing, marks) if part_of(path) is Part.METADATA])
    return tuple(sorted(found, key=str))


def _marked_anew(entries: Mapping[str, Entry], existing: Mapping[str, Entry], marks: Marks) -> Iterator[str]:
    """Yield the files of both roots that were written in the source since they were copied."""
    return (path for path, entry in entries.items() if path in existing and marks.get(path) != mark(entry))


def _parser_of(path: str) -> Callable[[bytes, str], object] | None:
    """Return the parser of a file that no other step of a run reads."""
    if names.parse_operator_metadata(path) is not None:
        return parse_operator
    if "/_stateSchema/" in path:
        # Imported on demand: most readers of a mirror's record do not need Arrow.
        from statekeeper.statestore.format.families import parse_families

        return parse_families
    return parse_schema if path.endswith("/_metadata/schema") else None


def _is_same(source: Storage, destination: Storage, path: str, size_bytes: int) -> bool:
    return all(
        source.read_range(path, start, _PIECE_BYTES) == destination.read_range(path, start, _PIECE_BYTES)
        for start in range(0, size_bytes, _PIECE_BYTES)
    )
