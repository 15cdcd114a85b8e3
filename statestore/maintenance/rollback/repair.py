"""Repair a checkpoint from which Spark does not start, or starts with wrong state.

    gather(storage)  ->  RepairFacts  ->  plan(gathered, spark)  ->  RepairPlan  ->  execute(storage, plan, run)

Each changed or removed file is quarantined first, under its path; `undo` restores it. Two problems need only a snapshot at
the head: a query at the lineage ceiling, and a query whose presumed snapshot is missing.

The query must be stopped. The caller ensures this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, UnknownFormatVersion, UnsupportedProvider
from statekeeper.statestore.checkpoint import catalog, leftovers, moved
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.commit_log import Heads, batches_of
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.contents import restart
from statekeeper.statestore.contents.restart import Way
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format import sparks as names_in_spark
from statekeeper.statestore.format.logs import with_confs
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.operators import OperatorMetadata, parse_operator, with_schema_uris
from statekeeper.statestore.format.provider import PROVIDER, Provider
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.executors import Executor
from statekeeper.statestore.maintenance.records import quarantine
from statekeeper.statestore.maintenance.records.quarantine import QuarantineRecord, QueryPosition
from statekeeper.statestore.maintenance.rollback.bad_snapshots import BadSnapshots, bad_snapshots
from statekeeper.statestore.storage import Storage, at_once, list_members, read_or_none
from statekeeper.statestore.storage.urls import Locality, as_spark_writes_it


class RepairReason(Enum):
    """The reason for a repair action."""

    HEADER = "the Spark release of --for-spark cannot read its metadata, which has another header"
    ROLLED_BACK_FILES = "belongs to a rolled-back batch: in structure V1 the query would load it as the new version"
    UNCOMMITTED = "belongs to an uncommitted batch: in structure V1 a restart could load it by mistake"
    STRAY_SIDECAR = "is a checksum file without a snapshot: Spark rejects a new snapshot of that name"
    REFUSED = "does not match its snapshot, which is intact: Spark rejects the snapshot"
    DAMAGED = "belongs to a corrupt snapshot that the head of the store does not need"
    NO_NUMBER = "has no version number before .zip: in structure V1 Spark cannot load the store"
    LOG_IN_THE_WAY = "is the hidden Hadoop checksum of a deleted log: the query cannot write that log again"
    OFFSETS_LOST = "is lost, and Spark reads it at a start: it gets the offsets of the newest batch, which is complete"
    COMMIT_UNREADABLE = "is a commit that cannot be read, and no start needs it: gc and rewrites reject it"
    MOVED = "refers to state schemas at the former location of the checkpoint"


@dataclass(frozen=True)
class Rewrite:
    """Rewrite a snapshot with another header."""

    path: str
    header: str
    reason: RepairReason = RepairReason.HEADER


@dataclass(frozen=True)
class Quarantine:
    """Move a file to quarantine."""

    path: str
    reason: RepairReason


@dataclass(frozen=True)
class Relocate:
    """Rewrite the schema URIs in operator metadata. `location`: the checkpoint's URL as Spark writes it."""

    path: str
    location: str
    reason: RepairReason = RepairReason.MOVED


@dataclass(frozen=True)
class Rebuild:
    """Write lost offsets again. `body`: their new content; `is_new`: whether the file is missing."""

    path: str
    body: bytes
    is_new: bool
    reason: RepairReason = RepairReason.OFFSETS_LOST


RepairAction = Rewrite | Quarantine | Relocate | Rebuild


@dataclass(frozen=True, kw_only=True)
class RepairFacts:
    """The facts of a repair.

    heads       None before the first commit
    headers     headers of the readable V2 snapshots up to the head, by path
    begun       the newest batch in the offset log; -1 if it is empty
    bad         snapshots that are corrupt or that Spark rejects
    url         the URL of the root
    metadata    metadata of operators with column families, by path
    checksums   hidden Hadoop checksums of deleted logs, which block later logs
    provider    of the state; of Spark's default provider only logs are repaired
    unreadable  older commits that cannot be read
    lost        the offsets of the batch before the newest one, to be rebuilt; None if they are readable
    """

    heads: Heads | None
    position: QueryPosition
    files: Mapping[StorePath, StoreFiles]
    headers: Mapping[str, str]
    begun: int = -1
    bad: BadSnapshots = field(default_factory=BadSnapshots)
    url: str = ""
    metadata: Mapping[str, OperatorMetadata] = field(default_factory=dict)
    checksums: tuple[str, ...] = ()
    provider: Provider = Provider.ROCKSDB
    unreadable: tuple[str, ...] = ()
    lost: Rebuild | None = None


@dataclass(frozen=True)
class RepairPlan:
    """The actions, in order. `asks`: the input that the plan lacks or the command that helps instead, for a person.
    `position`: the query position for which the plan is valid; None without actions."""

    actions: tuple[RepairAction, ...]
    asks: str | None = None
    position: QueryPosition | None = None

    @property
    def record(self) -> QuarantineRecord | None:
        """The record that an undo reads; None without actions."""
        if self.position is None:
            return None
        rebuilt = [action for action in self.actions if isinstance(action, Rebuild)]
        digests = {action.path: hashlib.sha256(action.body).hexdigest() for action in rebuilt}
        return QuarantineRecord(
            position=self.position,
            rewritten={action.path: digests[action.path] for action in rebuilt if not action.is_new},
            created={action.path: digests[action.path] for action in rebuilt if action.is_new},
        )


def gather(storage: Storage, *, deep: Executor | None = None) -> RepairFacts:
    """Gather the facts. `deep`: see `bad_snapshots`.

    Requests: listings of `state/` and of the logs (on a local disk also with hidden files), each commit, the newest offsets
    and those before, one for each V2 snapshot and each metadata file of an operator with column families, and those of
    `bad_snapshots`. Raises `NotACheckpoint`, `CorruptFile` for the newest commit, `UnknownFormatVersion` (also for a state
    store of another library), `StorageError`.
    """
    # Race: if the log is read before files are listed, a query that was not stopped can commit in between. Then its new
    # files look like files of rolled-back batches.
    listed = storage.list(names.STATE)
    files = catalog.with_members(list_members(storage), listed)
    heads = catalog.heads(storage)
    provider = Provider.ROCKSDB
    headers: dict[str, str] = {}

    def look(path: str) -> None:
        # The audit reports unreadable snapshots; a new header does not repair them.
        try:
            headers[path] = read_snapshot(storage.read(path), path).metadata.header
        except (CorruptFile, ObjectMissing, UnknownFormatVersion):
            return

    if heads is not None:
        head = heads.batch + 1
        origin = origin_of(storage)
        with suppress(ObjectMissing, CorruptFile):
            # Raises for a state store provider of another library.
            provider = origin.state_conf(storage, heads, tuple(Provider)).provider
    if provider is Provider.HDFS_BACKED:
        files = catalog.FilesByStore({})
    if heads is not None:
        head = heads.batch + 1
        of_v2 = (
            store.snapshot(version)
            for store, of_store in files.items()
            for version in of_store.snapshots
            if version.id is not None and version.version <= head
        )
        at_once(look, list(of_v2))
    begun = catalog.newest_begun(storage)
    bad = BadSnapshots() if heads is None else bad_snapshots(storage, heads, files, deep=deep)
    metadata = _metadata(storage, [entry.path for entry in listed])
    return RepairFacts(
        heads=heads,
        position=QueryPosition.of(storage, heads),
        files=files,
        headers=headers,
        begun=begun,
        bad=bad,
        url=storage.url,
        metadata=metadata,
        checksums=_blocking_checksums(storage),
        provider=provider,
        unreadable=() if heads is None else _unreadable_commits(storage, heads.batch),
        lost=None if heads is None else _lost_offsets(storage, heads.batch, begun, has_state=bool(heads.heads)),
    )


def _unreadable_commits(storage: Storage, newest: int) -> tuple[str, ...]:
    found: list[str] = []

    def read(path: str) -> None:
        try:
            body = storage.read(path)
        except (ObjectMissing, CorruptFile):
            return  # deleted meanwhile, or larger than the limit of a read: it may be intact
        try:
            logs.parse_commit(body, path)
        except CorruptFile:
            found.append(path)
        except UnknownFormatVersion:
            return

    batches = batches_of(storage.list(names.COMMITS))
    at_once(read, [names.commits(batch) for batch in batches if batch != newest])
    return tuple(sorted(found))


def _lost_offsets(storage: Storage, newest: int, begun: int, *, has_state: bool) -> Rebuild | None:
    """Return how to rebuild the offsets before the newest ones; None if they are readable or cannot be rebuilt."""
    path = names.offsets(newest - 1)
    if newest == 0 or origin_of(storage) is not Origin.NATIVE:
        return None
    found = read_or_none(storage, path)
    if found is None and storage.stat(names.commits(newest - 1)) is None and not has_state:
        return None  # asynchronous progress tracking logs only some batches
    try:
        if found is not None:
            logs.parse_offsets(found, path)
            return None
    except CorruptFile:
        pass
    except UnknownFormatVersion:
        return None
    way = restart.way(newest, newest=newest, begun=begun, lost={newest - 1}, needed_from=(), origin=Origin.NATIVE)
    body = read_or_none(storage, names.offsets(newest))
    if way is not Way.REPAIR or body is None:
        return None
    with suppress(CorruptFile, UnknownFormatVersion):
        newest_path = names.offsets(newest)
        logs.parse_offsets(body, newest_path)
        confs = {restart.REBUILT_FROM: str(newest), **_placing(storage, newest - 2)}
        marked = with_confs(body.decode(), newest_path, confs)
        return Rebuild(path, marked, is_new=found is None)
    return None


def _placing(storage: Storage, batch: int) -> dict[str, str]:
    """Return the provider and the number of partitions of a batch; empty if its offsets cannot be read.

    A rewrite may have appended the newest batch, with others. The rebuilt batch is before it.
    """
    path = names.offsets(batch)
    with suppress(CorruptFile, ObjectMissing, UnknownFormatVersion):
        conf = logs.parse_offsets(storage.read(path), path).conf
        return {key: conf[key] for key in (PROVIDER, logs.SHUFFLE_PARTITIONS) if key in conf}
    return {}


def _blocking_checksums(storage: Storage) -> tuple[str, ...]:
    if not leftovers.are_kept(storage):
        return ()
    folders = (names.COMMITS, names.OFFSETS)
    listed = (storage.list(folder, hidden=True) for folder in folders)
    return tuple(path for entries in listed for path in leftovers.blocking(storage, entries))


def _metadata(storage: Storage, paths: Iterable[str]) -> dict[str, OperatorMetadata]:
    """Return the metadata of operators with column families, of all batches. The audit reports unreadable files."""
    found: dict[str, OperatorMetadata] = {}
    for path in paths:
        place = names.parse_operator_metadata(path)
        if place is not None and place[1] >= 0:
            with suppress(CorruptFile, ObjectMissing, UnknownFormatVersion):
                found[path] = parse_operator(storage.read(path), path)
    return found


def plan(gathered: RepairFacts, spark: Spark | None, location: str | None = None) -> RepairPlan:
    """Plan the repair. `spark`: the release that restarts the query; None if unknown. `location`: the checkpoint's URL as
    Spark writes it; None to derive it from the former URL. Pure."""
    newest = gathered.position.batch
    if gathered.begun > newest + 1:
        # Spark starts a batch only after the previous commit. So commits are lost, and their files may be needed.
        logged = "the commit log is empty" if gathered.heads is None else f"the newest commit is batch {newest}"
        return RepairPlan(
            (),
            f"{names.offsets(gathered.begun)} exists, but {logged}: if commits are lost, restore them from a backup"
            + (f"; or roll back: statekeeper rewind {gathered.url} --to-batch {newest}" if gathered.heads else ""),
        )
    in_the_way = {action.path: action for action in (*_bad(gathered), *_in_the_way(gathered))}
    away = [in_the_way[path] for path in sorted(in_the_way)]
    asks = None
    rewritten: list[Rewrite] = []
    if spark is not None:
        wrong = sorted(
            path for path, header in gathered.headers.items() if header != spark.header and path not in in_the_way
        )
        rewritten = [Rewrite(path, spark.header) for path in wrong]
    elif "v2" in gathered.headers.values():
        asks = (
            "Spark 4.0 wrote snapshots of this checkpoint, and later releases reject them: add --for-spark with the "
            "release that will run the query"
        )
    relocated, asks_where = _relocated(gathered, location)
    rebuilt = [] if gathered.lost is None else [gathered.lost]
    actions: tuple[RepairAction, ...] = (*away, *rewritten, *relocated, *rebuilt)
    if gathered.provider is Provider.HDFS_BACKED and not actions and asks_where is None:
        raise UnsupportedProvider(
            "the query's state store provider is HDFSBackedStateStoreProvider, Spark's default, of which repair corrects "
            "only logs; nothing was changed",
            path=gathered.url,
            hint="stop the query, then run: statekeeper convert ROOT --to rocksdb",
        )
    missing = "; ".join(text for text in (asks, asks_where) if text) or None
    return RepairPlan(actions, missing, gathered.position if actions else None)


def _relocated(gathered: RepairFacts, location: str | None) -> tuple[list[Relocate], str | None]:
    """Return the metadata to rewrite, and the missing input if the location cannot be derived."""
    found: list[Relocate] = []
    asks: str | None = None
    for path, metadata in sorted(gathered.metadata.items()):
        where = "" if location is None else location.rstrip("/")
        one = moved.moved(gathered.url, path, metadata)
        if location is None and one is not None:
            concluded = as_spark_writes_it(gathered.url, one.location or one.uri)
            if one.locality is Locality.UNKNOWN or concluded is None:
                asks = (
                    f"{path} refers to schemas in {one.location or one.uri}, and the new URL is unknown: add --location "
                    "with the URL that Spark uses for this checkpoint"
                )
                continue
            where = concluded
        if where and any(uri != moved.schema_uri(where, path, *of) for of, uri in _uris(metadata)):
            found.append(Relocate(path, where))
    return found, asks


def _uris(metadata: OperatorMetadata) -> Iterator[tuple[tuple[str, str], str]]:
    for store in metadata.stores:
        for file, uri in zip(store.schema_files, store.schema_uris, strict=True):
            yield (store.name, file), uri


def _bad(gathered: RepairFacts) -> Iterator[Quarantine]:
    """Yield corrupt snapshots with their checksum files, and checksum files for which Spark rejects a snapshot or a log."""
    sidecars = {entry.path for files in gathered.files.values() for entry in files.others}
    for path in gathered.bad.damaged:
        yield Quarantine(path, RepairReason.DAMAGED)
        if names.sidecar(path) in sidecars:
            yield Quarantine(names.sidecar(path), RepairReason.DAMAGED)
    for path in gathered.bad.refused:
        yield Quarantine(names.sidecar(path), RepairReason.REFUSED)
    for path in gathered.bad.strays:
        yield Quarantine(path, RepairReason.STRAY_SIDECAR)
    for path in gathered.checksums:
        yield Quarantine(path, RepairReason.LOG_IN_THE_WAY)
    for path in gathered.unreadable:
        yield Quarantine(path, RepairReason.COMMIT_UNREADABLE)


def _in_the_way(gathered: RepairFacts) -> Iterator[Quarantine]:
    """Yield changelogs and snapshots that a restart may load by mistake."""
    newest = leftovers.newest_known(committed=[gathered.position.batch], begun=[gathered.begun])
    for store, files in gathered.files.items():
        # If the query was rolled back to its beginning, no commit names its stores.
        head = names.EMPTY if gathered.heads is None else gathered.heads.heads.get(store)
        if head is None:
            continue
        dead = leftovers.given_up(files, newest)
        sidecars = {entry.path for entry in files.others}
        # All members of a batch log have one version, so the object is rolled back as a whole.
        found = [(files.object_of(version), RepairReason.ROLLED_BACK_FILES) for version in dead.changelogs]
        found += [(store.snapshot(version), RepairReason.ROLLED_BACK_FILES) for version in dead.snapshots]
        if head.id is None:
            uncommitted = [
                v for v in files.snapshots if head.version < v.version <= newest and (gathered.heads or v.id is None)
            ]
            found += [(store.snapshot(version), RepairReason.UNCOMMITTED) for version in uncommitted]
        if head.id is None and head.digest is None:  # Python jobs ignore such files
            zips = [entry.path for entry in (*files.snapshots.values(), *files.others)]
            found += [
                (path, RepairReason.NO_NUMBER)
                for path in zips
                if names_in_spark.stops_loads(path.removeprefix(f"{store.folder}/"))
            ]
        for path, reason in dict(reversed(found)).items():
            yield Quarantine(path, reason)
            if names.sidecar(path) in sidecars:
                yield Quarantine(names.sidecar(path), reason)


def execute(storage: Storage, planned: RepairPlan, *, run: str) -> Iterator[RepairAction]:
    """Execute the plan. Yields each action after it is done.

    *Guarantee*: each file is quarantined before it is changed, so that a crash at any request loses nothing. The next plan
    contains the remaining actions, and `undo` reverses the executed ones. Raises `CorruptFile`, `ObjectMissing`,
    `RefusedAsUnsafe`, `StorageError`.
    """
    if planned.record is not None:
        quarantine.begin(storage, run, planned.record)
    for action in planned.actions:
        if isinstance(action, Rebuild) and action.is_new:
            storage.create(action.path, action.body)
            yield action
            continue
        body = storage.read(action.path)
        storage.create(names.quarantine(run, action.path), body, like=action.path)
        if isinstance(action, Rewrite):
            snapshot = read_snapshot(body, action.path)
            metadata = replace(snapshot.metadata, header=action.header)
            # The checksum file matches only the old bytes; without one, Spark reads the snapshot unverified.
            sidecar = f"{action.path}{names.SIDECAR}"
            if (checksum := read_or_none(storage, sidecar)) is not None:
                storage.create(names.quarantine(run, sidecar), checksum, like=sidecar)
                quarantine.require_deleted(storage, sidecar, checksum)
            storage.replace(action.path, encode_snapshot(replace(snapshot, metadata=metadata)))
        elif isinstance(action, Rebuild):
            storage.replace(action.path, action.body)
        elif isinstance(action, Relocate):
            uri_of = partial(moved.schema_uri, action.location, action.path)
            storage.replace(action.path, with_schema_uris(body, action.path, uri_of))
        else:
            quarantine.require_deleted(storage, action.path, body)
        yield action
