"""Rescues of checkpoints from which Spark does not start, or would start wrongly: planned, applied, and taken back.

    gather(storage)  ->  RepairFacts  ->  plan(gathered, spark)  ->  RepairPlan  ->  execute(storage, plan, run)

What is changed or taken away is quarantined first (`aside`), under the path that it had; `undo` puts it back. Two
rescues need nothing of the kind: a query that died at the lineage ceiling, and one whose presumed snapshot is gone, go on
from a snapshot at their head.

All of it is for a query that is stopped: who calls has to make sure of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from statestore import catalog
from statestore.catalog import StoreFiles
from statestore.commit_log import Heads
from statestore.errors import CorruptFile, ObjectMissing, UnknownFormatVersion
from statestore.format import names
from statestore.format.names import StorePath
from statestore.format.operators import OperatorMetadata, parse_operator, with_schema_uris
from statestore.format.snapshot import encode_snapshot, read_snapshot
from statestore.format.sparks import Spark
from statestore.maintenance import moved, quarantine, time_line
from statestore.maintenance.bad_snapshots import BadSnapshots, DeepRead, bad_snapshots
from statestore.maintenance.quarantine import QueryPosition
from statestore.storage import Storage, at_once, read_or_none
from statestore.storage.urls import Locality, as_spark_writes_it


class RepairReason(Enum):
    """Why a file is in the way."""

    HEADER = "the header of its metadata is not the one that this Spark reads"
    ROLLED_BACK_FILES = "of batches that were taken back: the query would come upon it when it gets there again"
    UNCOMMITTED = "of a batch that was begun and not committed: in structure V1 a start takes a snapshot by its number"
    STRAY_SIDECAR = "a sidecar without its snapshot: Spark refuses every snapshot that is written under that name"
    REFUSED = "it does not fit the snapshot beside it, which is whole and which Spark refuses for that"
    DAMAGED = "of a damaged snapshot, without which the head of its store loads"
    NO_NUMBER = "no number before .zip: in structure V1 no version of a store is loaded while it lies there"
    MOVED = "it names the state schemas at the place from which the checkpoint was moved"


@dataclass(frozen=True)
class Rewrite:
    """Give a snapshot another header."""

    path: str
    header: str
    why: RepairReason = RepairReason.HEADER


@dataclass(frozen=True)
class Quarantine:
    """Take a file out of Spark's way."""

    path: str
    why: RepairReason


@dataclass(frozen=True)
class Relocate:
    """Have an operator's metadata name its schemas below `location`, the checkpoint's URL in Spark's words."""

    path: str
    location: str
    why: RepairReason = RepairReason.MOVED


RepairAction = Rewrite | Quarantine | Relocate


@dataclass(frozen=True)
class RepairFacts:
    """The facts. `headers`: of the snapshots of structure V2 up to the head that can be read, by path; `begun`: the newest
    batch that the offset log knows, -1 for none. `heads`: None before the first commit. `bad`: snapshots that Spark refuses
    or that are damaged. `url`: of the root; `metadata`: of operators with column families, by path."""

    heads: Heads | None
    standing: QueryPosition
    files: Mapping[StorePath, StoreFiles]
    headers: Mapping[str, str]
    begun: int = -1
    bad: BadSnapshots = field(default_factory=BadSnapshots)
    url: str = ""
    metadata: Mapping[str, OperatorMetadata] = field(default_factory=dict)


@dataclass(frozen=True)
class RepairPlan:
    """What is to be done, in order. `asks`: what a person has to say before it can be told what else is. `standing`: where
    the query stands for which this is planned; None when nothing is to be done."""

    actions: tuple[RepairAction, ...]
    asks: str | None = None
    standing: QueryPosition | None = None


def gather(storage: Storage, *, deep: DeepRead | None = None) -> RepairFacts:
    """The facts. Listings of `state/` and of the logs, the newest commit and offsets, one request a snapshot of structure
    V2 and a metadata file of an operator with column families, and those of `bad_snapshots`; `deep`: see there. Raises
    `NotACheckpoint`, `CorruptFile`, `UnknownFormatVersion` also for a state store that is not RocksDB, `StorageError`.
    """
    # The files before the log. Losing schedule of the other order: the query, which somebody forgot to stop, commits
    # while the files are listed, and what it wrote looks like files of batches that were taken back.
    listed = storage.list(names.STATE)
    files = catalog.by_store(listed)
    heads = catalog.heads(storage)
    headers: dict[str, str] = {}

    def look(path: str) -> None:
        # What cannot be read is the audit's finding: a new header does not mend it.
        try:
            headers[path] = read_snapshot(storage.read(path), path).metadata.header
        except (CorruptFile, ObjectMissing, UnknownFormatVersion):
            return

    if heads is not None:
        head = heads.batch + 1
        if storage.stat(names.BINDING) is None:
            with suppress(ObjectMissing, CorruptFile):
                catalog.state_conf(storage, heads)  # another kind of state store has other files
        of_v2 = (
            store.snapshot(version)
            for store, of_store in files.items()
            for version in of_store.snapshots
            if version.id is not None and version.version <= head
        )
        at_once(look, list(of_v2))
    batches = (names.parse_batch(entry.path.rpartition("/")[2]) for entry in storage.list(names.OFFSETS))
    begun = max((batch for batch in batches if batch is not None), default=-1)
    bad = BadSnapshots() if heads is None else bad_snapshots(storage, heads, files, deep=deep)
    metadata = _metadata(storage, [entry.path for entry in listed])
    return RepairFacts(heads, QueryPosition.of(storage, heads), files, headers, begun, bad, storage.url, metadata)


def _metadata(storage: Storage, paths: Iterable[str]) -> dict[str, OperatorMetadata]:
    """Of operators with column families, of all batches; what cannot be read is the audit's finding."""
    found: dict[str, OperatorMetadata] = {}
    for path in paths:
        place = names.parse_operator_metadata(path)
        if place is not None and place[1] >= 0:
            with suppress(CorruptFile, ObjectMissing, UnknownFormatVersion):
                found[path] = parse_operator(storage.read(path), path)
    return found


def plan(gathered: RepairFacts, spark: Spark | None, location: str | None = None) -> RepairPlan:
    """What is in the way of the Spark that is going to go on; `spark` None when nobody has said which one. `location`: the
    checkpoint's URL in Spark's words, None to conclude it from the former one. Pure."""
    newest = gathered.standing.batch
    if gathered.begun > newest + 1:
        # Spark begins no batch before the one before it is committed: commits were lost, and what they name may live.
        there = "no commits" if gathered.heads is None else f"commits only up to batch {newest}"
        return RepairPlan(
            (),
            f"{names.offsets(gathered.begun)} is there, and {there}: if they were lost, restore them; if the query was "
            f"taken back, delete the offsets from batch {newest + 1} on, too",
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
        asks = "there are snapshots as Spark 4.0 writes them, which later ones refuse: --for-spark says which goes on"
    relocated, asks_where = _relocated(gathered, location)
    actions: tuple[RepairAction, ...] = (*away, *rewritten, *relocated)
    said = "; ".join(text for text in (asks, asks_where) if text) or None
    return RepairPlan(actions, said, gathered.standing if actions else None)


def _relocated(gathered: RepairFacts, location: str | None) -> tuple[list[Relocate], str | None]:
    """The metadata that names schemas elsewhere, and what a person has to say before it can be told where they are."""
    found: list[Relocate] = []
    asks: str | None = None
    for path, metadata in sorted(gathered.metadata.items()):
        where = "" if location is None else location.rstrip("/")
        one = moved.moved(gathered.url, path, metadata)
        if location is None and one is not None:
            concluded = as_spark_writes_it(gathered.url, one.location or one.uri)
            if one.locality is Locality.UNKNOWN or concluded is None:
                asks = f"{path} names schemas in {one.location or one.uri}: --location says how Spark names this checkpoint"
                continue
            where = concluded
        if where and any(uri != _schema_uri(where, path, *of) for of, uri in _uris(metadata)):
            found.append(Relocate(path, where))
    return found, asks


def _uris(metadata: OperatorMetadata) -> Iterator[tuple[tuple[str, str], str]]:
    for store in metadata.stores:
        for file, uri in zip(store.schema_files, store.schema_uris, strict=True):
            yield (store.name, file), uri


def _schema_uri(location: str, path: str, store: str, file: str) -> str:
    place = names.parse_operator_metadata(path)
    assert place is not None
    return f"{location}/{names.family_schemas(place[0], store, file)}"


def _bad(gathered: RepairFacts) -> Iterator[Quarantine]:
    """Snapshots that are damaged, with their sidecars, and sidecars that spoil a snapshot."""
    sidecars = {entry.path for files in gathered.files.values() for entry in files.others}
    for path in gathered.bad.damaged:
        yield Quarantine(path, RepairReason.DAMAGED)
        if names.sidecar(path) in sidecars:
            yield Quarantine(names.sidecar(path), RepairReason.DAMAGED)
    for path in gathered.bad.refused:
        yield Quarantine(names.sidecar(path), RepairReason.REFUSED)
    for path in gathered.bad.strays:
        yield Quarantine(path, RepairReason.STRAY_SIDECAR)


def _in_the_way(gathered: RepairFacts) -> Iterator[Quarantine]:
    """Changelogs and snapshots that a start may come upon."""
    newest = time_line.newest_known(committed=[gathered.standing.batch], begun=[gathered.begun])
    for store, files in gathered.files.items():
        # Of a query that was taken back to its beginning no commit says which stores it has.
        head = names.EMPTY if gathered.heads is None else gathered.heads.heads.get(store)
        if head is None:
            continue
        dead = time_line.given_up(files, newest)
        sidecars = {entry.path for entry in files.others}
        found = [(store.changelog(version), RepairReason.ROLLED_BACK_FILES) for version in dead.changelogs]
        found += [(store.snapshot(version), RepairReason.ROLLED_BACK_FILES) for version in dead.snapshots]
        if head.id is None:
            uncommitted = [
                v for v in files.snapshots if head.version < v.version <= newest and (gathered.heads or v.id is None)
            ]
            found += [(store.snapshot(version), RepairReason.UNCOMMITTED) for version in uncommitted]
        if head.id is None and head.digest is None:  # our own jobs take no notice of it
            zips = [entry.path for entry in (*files.snapshots.values(), *files.others)]
            found += [
                (path, RepairReason.NO_NUMBER)
                for path in zips
                if names.stops_loads(path.removeprefix(f"{store.folder}/"))
            ]
        for path, why in dict(reversed(found)).items():
            yield Quarantine(path, why)
            if names.sidecar(path) in sidecars:
                yield Quarantine(names.sidecar(path), why)


def execute(storage: Storage, planned: RepairPlan, *, run: str) -> Iterator[RepairAction]:
    """Do what the plan says, and tell after each file what was done.

    *Guarantee*: each file is quarantined before it is touched, so that a crash at any request loses nothing: what is
    left is in the next plan, and `undo` takes back what was done. Raises `CorruptFile`, `ObjectMissing`, `StorageError`.
    """
    if planned.standing is not None:
        quarantine.begin(storage, run, planned.standing)
    for action in planned.actions:
        body = storage.read(action.path)
        storage.create(names.quarantine(run, action.path), body, like=action.path)
        if isinstance(action, Rewrite):
            snapshot = read_snapshot(body, action.path)
            metadata = replace(snapshot.metadata, header=action.header)
            # A checksum beside it would be that of the old bytes; without one Spark reads the file unchecked.
            sidecar = f"{action.path}{names.SIDECAR}"
            if (checksum := read_or_none(storage, sidecar)) is not None:
                storage.create(names.quarantine(run, sidecar), checksum, like=sidecar)
                quarantine.require_deleted(storage, sidecar, checksum)
            storage.replace(action.path, encode_snapshot(replace(snapshot, metadata=metadata)))
        elif isinstance(action, Relocate):
            uri_of = partial(_schema_uri, action.location, action.path)
            storage.replace(action.path, with_schema_uris(body, action.path, uri_of))
        else:
            quarantine.require_deleted(storage, action.path, body)
        yield action
