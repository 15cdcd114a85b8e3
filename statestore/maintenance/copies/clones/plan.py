"""Plans a clone. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from statekeeper.statestore.base.errors import (
    DestinationNotEmpty,
    RefusedAsUnsafe,
    StatekeeperError,
    StorageError,
    VersionNotLoadable,
)
from statekeeper.statestore.checkpoint import moved
from statekeeper.statestore.contents import restart
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.contents.restart import lost_logs
from statekeeper.statestore.format import file_source, logs, mirror_names, names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.operators import parse_operator, with_schema_uris
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
from statekeeper.statestore.root import binding
from statekeeper.statestore.storage import Entry
from statekeeper.statestore.storage.urls import as_spark_writes_it


def files_of(
    gathered: CloneFacts, record: CloneRecord, location: str | None
) -> tuple[list[CopyFile], tuple[StatekeeperError, ...]]:
    """The files of the batches since `gathered.since`, in the order of the copy; the errors of files that cannot be
    rewritten."""
    found: dict[str, CopyFile] = {}
    refusals: list[StatekeeperError] = []
    bodies = {**_rewritten(gathered, record), **gathered.rows}
    for path, body in gathered.metadata.items():
        rewritten = _relocated(gathered, path, body, location)
        if isinstance(rewritten, StatekeeperError):
            refusals.append(rewritten)
        elif rewritten != body:
            bodies[path] = rewritten
    for path in _needed(gathered):
        entry = gathered.source.get(path)
        if entry is not None:
            found[path] = _copied(gathered, entry, bodies.get(path))
    return _in_order(gathered, found), tuple(refusals)


def _in_order(gathered: CloneFacts, files: Mapping[str, CopyFile]) -> list[CopyFile]:
    """Sort files by part, and the logs by batch: the offsets of a batch before its commit.

    A commit comes last if the files do not load its batch, or if the offsets before it are missing, which Spark reads when
    it starts. So the destination is a checkpoint of its newest commit at all times.
    """
    loadable = first_loadable(gathered)

    def place(file: CopyFile) -> tuple[int, bool, int, bool, str]:
        batch = names.parse_batch(file.path) if file.is_log else None
        if batch is None:
            return list(Part).index(file.part), False, 0, False, file.path
        is_commit, before = file.part is Part.COMMITS, names.offsets(batch - 1)
        is_startable = batch == 0 or before in gathered.existing or before in files
        is_late = is_commit and (batch < loadable or not is_startable)
        return len(Part), is_late, batch, is_commit, file.path

    return sorted(files.values(), key=place)


def _needed(gathered: CloneFacts) -> Iterator[str]:
    """Yield the paths that the batch needs. Optional files, such as sidecars, may not exist."""
    for chain in gathered.chains.values():
        yield from state_of(chain, first_version(gathered), gathered.existing)
    yield from (names.QUERY_METADATA, names.BINDING)
    batch, loadable = gathered.batch, first_loadable(gathered)
    first = max(gathered.floor, min(batch - 1, loadable), 0)
    # Spark starts only with the offsets of the batch before, if the destination has no earlier batch.
    begun = first if names.offsets(first) in gathered.existing else max(gathered.floor, loadable, 1) - 1
    present = {*gathered.source, *gathered.existing}
    # The oldest metadata of an operator is valid for older batches, too.
    described = [place for path in gathered.source if (place := names.parse_operator_metadata(path))]
    oldest = {operator: min(since for of, since in described if of == operator) for operator, _ in described}
    for path in gathered.source:
        folder, _, name = path.rpartition("/")
        if folder == names.SCHEMAS:
            since = names.parse_batch(name.removesuffix(".json"))
            if since is not None and since <= batch:
                yield path
        elif folder in (names.OFFSETS, names.COMMITS):
            number = names.parse_batch(name)
            if number is not None and (first if folder == names.COMMITS else min(begun, first)) <= number <= batch:
                yield path
        elif path.startswith(f"{names.STATE}/") and part_of(path) is Part.METADATA:
            operator = names.parse_operator_metadata(path)
            if operator is None or operator[1] <= max(batch, oldest[operator[0]]):
                yield path
        elif path.startswith(f"{names.SOURCES}/") and _is_read(gathered, path, present):
            yield path


def first_version(gathered: CloneFacts) -> int:
    """The oldest version since `gathered.since` from which on all stores can be loaded, or the newest version."""
    first = gathered.since + 1
    for chain in gathered.chains.values():
        for version in reversed(chain.versions):
            if version.version < first:
                break
            if version not in chain.bases:
                first = version.version + 1
    return min(first, gathered.batch + 1)


def oldest_loadable(gathered: CloneFacts) -> int:
    """The oldest batch since `gathered.since` that the source can load. Later batches may be lost."""
    oldest = gathered.since
    for chain in gathered.chains.values():
        first = min((version.version for version in chain.bases), default=gathered.batch + 1)
        if first > chain.begins:
            oldest = max(oldest, first - 1)
    return oldest


def base_of(chain: Chain, first: int, existing: Collection[str] = ()) -> VersionId | None:
    """The base of version `first` of a store, or of its oldest version after it; None if that cannot be loaded.

    `existing`: the files of a mirror. Its own maintenance may have written a newer base, and deleted the older files.
    """
    version = next((version for version in chain.versions if version.version >= first), chain.head)
    base = chain.bases.get(version)
    if base is None:
        return None
    between = (one for one in chain.versions if base.version < one.version <= first)
    held = [one for one in between if chain.store.snapshot(one) in existing]
    return held[-1] if held else base


def state_of(chain: Chain, first: int, existing: Collection[str] = ()) -> Iterator[str]:
    """Yield the paths of the base of version `first` of a store, of later snapshots and their tables, and of changelogs.

    `existing`: as in `base_of`.
    """
    base, store = base_of(chain, first, existing), chain.store
    if base is None:
        return
    # Retention of a job's root deletes the changelog of a base, also while a copy in structure V1 runs, which must not
    # change. Spark falls back on that changelog, so that a copy of a native checkpoint has it.
    is_superseded = base != base_of(chain, first) or chain.head.digest is not None
    for version in chain.versions:
        if version.version < base.version:
            continue
        if version in chain.snapshots and chain.snapshots[version].is_whole:
            snapshot = store.snapshot(version)
            yield from (snapshot, names.sidecar(snapshot))
            metadata = chain.snapshots[version].metadata
            yield from (store.table_file(table.dfs_name) for table in (metadata.named_files if metadata else ()))
        if version in chain.files.changelogs and not (is_superseded and version == base):
            path = chain.files.object_of(version)
            yield from (path, names.sidecar(path))


def first_loadable(gathered: CloneFacts) -> int:
    """The first batch from which on the files of the plan load every store."""
    first = first_version(gathered)
    found = (base_of(chain, first, gathered.existing) for chain in gathered.chains.values())
    return max(0, max((base.version - 1 for base in found if base), default=gathered.since))


def _is_read(gathered: CloneFacts, path: str, present: Collection[str]) -> bool:
    """Return whether the batch has read this entry of a file source. All files of other sources count as read, and all
    entries of a source if Spark has merged the entry of the batch with later ones. `present`: the files of both roots."""
    parsed = file_source.parse(path)
    if parsed is None:
        return True
    folder, entry = parsed
    newest = gathered.positions.entries.get(folder, entry)
    return entry <= newest or not file_source.is_complete(folder, newest, present)


def _copied(gathered: CloneFacts, entry: Entry, body: bytes | None) -> CopyFile:
    part = part_of(entry.path)
    is_one_service = gathered.destination_place.location.can_copy_from(gathered.source_place.location)
    is_served = part is Part.STATE and is_one_service
    way = Way.REWRITE if body is not None else Way.SERVICE if is_served else Way.STREAM
    file = CopyFile(part=part, way=way, entry=entry, body=body)
    return replace(file, way=Way.PRESENT) if _is_present(gathered, file) else file


def _is_present(gathered: CloneFacts, file: CopyFile) -> bool:
    """Return whether the destination has a file."""
    there, marks = gathered.existing.get(file.path), gathered.marks
    if there is None or file.part is Part.METADATA:
        return False  # metadata is small: it is written again
    is_of_size = there.size_bytes == file.size_bytes
    if marks is None:
        # In structure V1, a name of state does not identify its bytes: the source may have replaced them since.
        return is_of_size and file.part is Part.STATE and gathered.structure is Structure.V2
    if file.part is Part.STATE and mirror_names.is_final(file.path):
        return True  # the source may have damaged its file
    # The mirror compares the newest logs. After a rewind, an entry of a source has its name again, and may have its size.
    return is_of_size and (file.is_log or marks.get(file.path) == mark(file.entry))


# -- rewritten files ---------------------------------------------------------------------------------------------------


def _rewritten(gathered: CloneFacts, record: CloneRecord) -> dict[str, bytes]:
    """The files that contain the id of the query or of the root. In the root of a Python job, `metadata` has the root's."""
    if gathered.binding is not None:
        bound = replace(gathered.binding.owned_by(record.query), root_id=record.root)
        return {
            names.QUERY_METADATA: logs.encode_metadata(record.root),
            names.BINDING: binding.encode_binding(bound),
        }
    is_same = record.query == gathered.query_id
    return {} if is_same else {names.QUERY_METADATA: logs.encode_metadata(record.query)}


def _relocated(gathered: CloneFacts, path: str, body: bytes, location: str | None) -> bytes | StatekeeperError:
    """The metadata of an operator with the schema URIs of the destination."""
    former = moved.location_of(path, parse_operator(body, path))
    if former is None:
        return body
    where = location or as_spark_writes_it(gathered.destination_place.url, former)
    if where is None:
        return RefusedAsUnsafe(
            "contains URLs of state schemas, and the URL that Spark will use for the destination is unknown; nothing was "
            "written",
            path=path,
            hint="add --location with the checkpoint location of the query that will use the copy, for example "
            "hdfs://namenode/folder",
        )
    return with_schema_uris(body, path, partial(moved.schema_uri, where.rstrip("/"), path))


def obstacles(gathered: CloneFacts, files: Iterable[CopyFile]) -> Iterator[StatekeeperError]:
    """Yield the reasons that block any copy of these files."""
    yield from misplaced(gathered)
    yield from not_loadable(gathered)
    if gathered.binding is None:
        # A mirror keeps entries of sources that its source has lost since.
        yield from lost_logs(
            gathered.batch,
            gathered.source,
            gathered.positions,
            has_state=bool(gathered.chains),
            copied=gathered.existing,
        )
    yield from _too_large(gathered, files)


def uncertain_sources(facts: CloneFacts) -> Iterator[RefusedAsUnsafe]:
    """Yield an error for each named file source whose entries up to the batch are unknown.

    A clone gets all entries that the batch may have read: its query reads the others in its next batch. A mirror cannot,
    because the source may be rolled back and write these entries again.
    """
    for folder in sorted(facts.positions.uncertain):
        yield RefusedAsUnsafe(
            f"has entries that batch {facts.batch} may or may not have read: offsets/{facts.batch} does not contain the "
            "names of the sources, and more than one source can be this one; nothing was written",
            path=f"{names.SOURCES}/{folder}",
            hint="run this command again after the next batch of the query. To exclude this error, start a new query with "
            "spark.sql.streaming.offsetLog.formatVersion=2",
        )


def misplaced(gathered: CloneFacts) -> Iterator[StatekeeperError]:
    """Yield an error if one of both locations contains the other."""
    source, destination = gathered.source_place, gathered.destination_place
    if source.location.contains(destination.location) or destination.location.contains(source.location):
        yield RefusedAsUnsafe(
            f"overlaps with the source {source.url}: one of them contains the other; nothing was written",
            path=destination.url,
            hint="choose a destination outside the checkpoint",
        )


def occupied(gathered: CloneFacts, record: CloneRecord, command: str) -> Iterator[StatekeeperError]:
    if not gathered.existing:
        return
    earlier, place = gathered.record, gathered.destination_place
    verb, _, options = command.partition(" ")
    if earlier is None:
        yield DestinationNotEmpty(
            f"is not empty: it contains {min(gathered.existing)}; nothing was written",
            path=place.url,
            hint="choose an empty destination",
        )
    elif earlier != record:
        yield DestinationNotEmpty(
            f"contains a clone of {earlier.source} at batch {earlier.batch}; nothing was written",
            path=place.url,
            hint=f"choose an empty destination, or continue that copy: statekeeper {verb} {earlier.source} {place.url} "
            f"--batch {earlier.batch}{f' {options}' if options else ''}",
        )
    elif newer := _newer(gathered.existing, record.batch):
        yield DestinationNotEmpty(
            f"is a clone at batch {record.batch}, and its query has already written {newer}; nothing was written",
            path=place.url,
            hint="choose an empty destination",
        )


def _too_large(gathered: CloneFacts, files: Iterable[CopyFile]) -> Iterator[StatekeeperError]:
    place = gathered.destination_place
    needed = sum(file.size_bytes for file in files if file.way in (Way.STREAM, Way.REWRITE))
    free = place.location.free
    if free is not None and needed > free:
        yield StorageError(
            f"has {free:,} bytes of free space, but the copy needs {needed:,}; nothing was written",
            path=place.url,
            hint="free space, or choose another destination",
        )


def _newer(paths: Iterable[str], batch: int) -> str | None:
    """The offsets or commit of a batch after `batch` among these paths; None if there is none."""
    for path in paths:
        folder, _, name = path.rpartition("/")
        number = names.parse_batch(name)
        if folder in (names.OFFSETS, names.COMMITS) and number is not None and number > batch:
            return path
    return None


def not_loadable(gathered: CloneFacts) -> Iterator[StatekeeperError]:
    """Yield an error for each store that cannot be loaded at the batch."""
    for lost in restart.lost_versions(gathered.chains):
        yield VersionNotLoadable(
            f"{lost.problem.of_batch}; {lost.version.in_words} of {lost.store} cannot be loaded, and nothing was written",
            path=lost.problem.path,
            hint=f"to find a batch that can be loaded, run: statekeeper audit {gathered.source_place.url}. Then give this "
            "batch with --batch",
        )


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


def files_of_stores(gathered: CloneFacts) -> tuple[list[CopyFile], tuple[StatekeeperError, ...]]:
    """The files with which Spark's reader shows the gathered stores at the batch, in the order of the copy, and the reasons
    not to copy them. No query can continue from such a copy: it has no progress of sources, and may lack stores."""
    bound = gathered.binding
    record = CloneRecord(
        source=gathered.source_place.url,
        batch=gathered.batch,
        query=gathered.query_id,
        root="" if bound is None else bound.root_id,
    )
    files, refusals = files_of(gathered, record, None)
    kept = [file for file in files if file.part is not Part.SOURCES]
    return kept, (*not_loadable(gathered), *_too_large(gathered, kept), *refusals)


def _is_continued(gathered: CloneFacts, earlier: CloneRecord, record: CloneRecord, *, is_certain: bool) -> bool:
    """Return whether this run continues the earlier one: the same source and batch, and an id as it is wanted now."""
    if (earlier.source, earlier.batch) != (record.source, record.batch):
        return False
    if is_certain or record.query == gathered.query_id:
        return earlier.query == record.query
    return earlier.query != gathered.query_id
