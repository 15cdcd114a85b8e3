"""Plans a clone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from statestore import binding
from statestore.chain import Chain
from statestore.errors import DestinationNotEmpty, RefusedAsUnsafe, StatekeeperError, StorageError, VersionNotLoadable
from statestore.format import file_source, logs, mirror_names, names
from statestore.format.batch_log import object_of
from statestore.format.names import StorePath, VersionId
from statestore.format.operators import parse_operator, with_schema_uris
from statestore.format.structure import Structure
from statestore.maintenance import moved
from statestore.maintenance.copies.facts import CloneFacts
from statestore.maintenance.copies.record import CloneRecord
from statestore.storage import Entry
from statestore.storage.urls import as_spark_writes_it


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
    """On a local disk: a hard link."""
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
    def size_bytes(self) -> int:
        """The size of the file in the clone."""
        return self.entry.size_bytes if self.body is None else len(self.body)


@dataclass(frozen=True)
class FreshIds:
    """Random ids for a clone. `root`: of a Python job's root; `query`: None if the clone keeps the query."""

    root: str
    query: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClonePlan:
    """The files to copy, in the order of their parts, and the reasons not to clone.

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

    def to_copy(self, part: Part) -> list[CopyFile]:
        """The files of a part that are not present yet."""
        return [file for file in self.files if file.part is part and file.way is not Way.PRESENT]


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
    refusals = (*_occupied(gathered, record, command), *obstacles(gathered, files), *refusals)
    committed = {path for path in gathered.existing if path.startswith(f"{names.COMMITS}/")}
    is_complete = not refusals and names.commits(record.batch) in committed
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


# -- the files of the batch --------------------------------------------------------------------------------------------


def files_of(
    gathered: CloneFacts, record: CloneRecord, location: str | None
) -> tuple[list[CopyFile], tuple[StatekeeperError, ...]]:
    """The files of the batches since `gathered.since`, in the order of their parts; the errors of files that cannot be
    rewritten."""
    found: dict[str, CopyFile] = {}
    refusals: list[StatekeeperError] = []
    bodies = _rewritten(gathered, record)
    for path, body in gathered.metadata.items():
        rewritten = _relocated(gathered, path, body, location)
        if isinstance(rewritten, StatekeeperError):
            refusals.append(rewritten)
        elif rewritten != body:
            bodies[path] = rewritten
    for part, path in _needed(gathered):
        entry = gathered.source.get(path)
        if entry is not None:
            found[path] = _copied(gathered, part, entry, bodies.get(path))
    return sorted(found.values(), key=lambda file: (list(Part).index(file.part), file.path)), tuple(refusals)


def _needed(gathered: CloneFacts) -> Iterator[tuple[Part, str]]:
    """Yield the paths that the batch needs. Optional files, such as sidecars, may not exist."""
    for store in gathered.chains:
        for path in state_of(gathered.chains[store], first_version(gathered)):
            yield Part.STATE, path
    batch = gathered.batch
    yield Part.METADATA, names.QUERY_METADATA
    yield Part.METADATA, names.BINDING
    # Spark also reads the offsets of the batch before the newest.
    first = max(0, min(batch - 1, first_loadable(gathered)))
    # The oldest metadata of an operator is valid for older batches, too.
    described = [place for path in gathered.source if (place := names.parse_operator_metadata(path))]
    oldest = {operator: min(since for of, since in described if of == operator) for operator, _ in described}
    for path in gathered.source:
        folder, _, name = path.rpartition("/")
        if folder == names.SCHEMAS:
            since = names.parse_batch(name.removesuffix(".json"))
            if since is not None and since <= batch:
                yield Part.METADATA, path
        elif path.startswith(f"{names.STATE}/") and ("/_metadata/" in path or "/_stateSchema/" in path):
            operator = names.parse_operator_metadata(path)
            if operator is None or operator[1] <= max(batch, oldest[operator[0]]):
                yield Part.METADATA, path
        elif path.startswith(f"{names.SOURCES}/"):
            if _is_read(gathered, path):
                yield Part.SOURCES, path
        elif folder in (names.OFFSETS, names.COMMITS):
            number = names.parse_batch(name)
            if number is not None and first <= number <= batch:
                yield (Part.OFFSETS if folder == names.OFFSETS else Part.COMMITS), path


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


def base_of(chain: Chain, first: int) -> VersionId | None:
    """The base of version `first` of a store, or of its oldest version after it; None if that cannot be loaded."""
    version = next((version for version in chain.versions if version.version >= first), chain.head)
    return chain.bases.get(version)


def state_of(chain: Chain, first: int) -> Iterator[str]:
    """Yield the paths of the base of version `first` of a store, of later snapshots and their tables, and of changelogs."""
    base, store = base_of(chain, first), chain.store
    if base is None:
        return
    for version in chain.versions:
        if version.version < base.version:
            continue
        if version in chain.snapshots and chain.snapshots[version].is_whole:
            snapshot = store.snapshot(version)
            yield from (snapshot, names.sidecar(snapshot))
            metadata = chain.snapshots[version].metadata
            yield from (store.table_file(table.dfs_name) for table in (metadata.named_files if metadata else ()))
        if version in chain.files.changelogs:
            path = chain.files.object_of(version)
            yield from (path, names.sidecar(path))


def first_loadable(gathered: CloneFacts) -> int:
    """The first batch from which on the files of the plan load every store."""
    first = first_version(gathered)
    bases = [base.version - 1 for chain in gathered.chains.values() if (base := base_of(chain, first))]
    return max(0, max(bases, default=gathered.since))


def _is_read(gathered: CloneFacts, path: str) -> bool:
    """Return whether the batch has read this entry of a file source. All files of other sources count as read, and all
    entries of a source if Spark has merged the entry of the batch with later ones."""
    parsed = file_source.parse(path)
    if parsed is None:
        return True
    source, entry = parsed
    newest = gathered.positions.get(source, entry)
    return entry <= newest or not file_source.is_complete(source, newest, gathered.source)


def _copied(gathered: CloneFacts, part: Part, entry: Entry, body: bytes | None) -> CopyFile:
    is_log = part is not Part.STATE
    is_one_service = gathered.destination_place.location.can_copy_from(gathered.source_place.location)
    way = Way.REWRITE if body is not None else Way.STREAM if is_log or not is_one_service else Way.SERVICE
    file = CopyFile(part=part, way=way, entry=entry, body=body)
    there = gathered.existing.get(entry.path)
    if there is not None and there.size_bytes == file.size_bytes and _is_same(gathered, file):
        return replace(file, way=Way.PRESENT)
    return file


def _is_same(gathered: CloneFacts, file: CopyFile) -> bool:
    """Return whether a file of the destination with the same name and size has the same bytes."""
    # In structure V1, a name of state does not identify its bytes: the source may have replaced them since.
    if gathered.marks is None:
        return file.part is Part.STATE and gathered.structure is Structure.V2
    if file.part is Part.STATE:
        return mirror_names.is_unique(file.path) or gathered.marks.get(file.path) == mark(file.entry)
    # The mirror compares the newest logs. Metadata is small: it is written again.
    return file.part is not Part.METADATA


def mark(entry: Entry) -> str:
    """The ETag of a file, or its time on a file system. It changes if the bytes do."""
    return entry.etag or repr(entry.modified_at_seconds)


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


# -- reasons not to clone ----------------------------------------------------------------------------------------------


def obstacles(gathered: CloneFacts, files: Iterable[CopyFile]) -> Iterator[StatekeeperError]:
    """Yield the reasons that block any copy of these files."""
    yield from misplaced(gathered)
    yield from not_loadable(gathered)
    yield from _too_large(gathered, files)


def misplaced(gathered: CloneFacts) -> Iterator[StatekeeperError]:
    """Yield an error if one of both locations contains the other."""
    source, destination = gathered.source_place, gathered.destination_place
    if source.location.contains(destination.location) or destination.location.contains(source.location):
        yield RefusedAsUnsafe(
            f"is inside the source {source.url}, or the source is inside it; nothing was written",
            path=destination.url,
            hint="choose a destination outside the checkpoint",
        )


def _occupied(gathered: CloneFacts, record: CloneRecord, command: str) -> Iterator[StatekeeperError]:
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
    for store, chain in gathered.chains.items():
        if chain.conflicts is not None:
            yield _lost(store, chain.head, chain.conflicts.path, chain.conflicts.text)
        elif chain.head not in chain.bases:
            problem = next((chain.broken[version] for version in chain.versions if version in chain.broken), chain.end)
            path = object_of(store, chain.head) if problem is None else problem.path
            yield _lost(store, chain.head, path, "is missing" if problem is None else problem.text)


def _lost(store: StorePath, version: VersionId, path: str, problem: str) -> VersionNotLoadable:
    return VersionNotLoadable(
        f"{problem}; {version.in_words} of {store} cannot be loaded, and nothing was written",
        path=path,
        hint="to find a batch that can be loaded, run: statekeeper audit SOURCE. Then run this command with --batch",
    )
