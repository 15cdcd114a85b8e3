"""Selects the files that a copy of some batches needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from statestore import binding
from statestore.chain import Chain
from statestore.errors import RefusedAsUnsafe, StatekeeperError
from statestore.format import file_source, logs, mirror_names, names
from statestore.format.names import VersionId
from statestore.format.operators import parse_operator, with_schema_uris
from statestore.format.structure import Structure
from statestore.maintenance import moved
from statestore.maintenance.copies.copy_file import CopyFile, Part, Way, mark
from statestore.maintenance.copies.facts import CloneFacts
from statestore.maintenance.copies.record import CloneRecord
from statestore.storage import Entry
from statestore.storage.urls import as_spark_writes_it


def files_of(
    gathered: CloneFacts, record: CloneRecord, location: str | None
) -> tuple[list[CopyFile], tuple[StatekeeperError, ...]]:
    """The files of the batches since `gathered.since`, in the order of their parts; the errors of files that cannot be
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
    if parsed is None or gathered.positions is None:
        return True
    folder, entry = parsed
    newest = gathered.positions.get(folder, entry)
    return entry <= newest or not file_source.is_complete(folder, newest, gathered.source)


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
