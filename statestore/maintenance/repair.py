"""Rescues of checkpoints from which Spark does not start, or would start wrongly: planned, applied, and taken back.

    gather(storage)  ->  Gathered  ->  plan(gathered, spark)  ->  RepairPlan  ->  execute(storage, plan, run)

What is changed or taken away is put aside first (`aside`), under the path that it had; `undo` puts it back. Two
rescues need nothing of the kind: a query that died at the lineage ceiling, and one whose presumed snapshot is gone, go on
from a snapshot at their head.

All of it is for a query that is stopped: who calls has to make sure of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from statestore import catalog
from statestore.catalog import Heads, StoreFiles
from statestore.errors import CorruptFile, ObjectMissing, UnknownFormatVersion
from statestore.format import names
from statestore.format.names import StorePath
from statestore.format.snapshot import encode_snapshot, read_snapshot
from statestore.format.sparks import Spark
from statestore.maintenance import aside, time_line
from statestore.maintenance.aside import Standing
from statestore.storage import Storage, at_once, read_or_none


class Why(Enum):
    """Why a file is in the way."""

    HEADER = "the header of its metadata is not the one that this Spark reads"
    DEAD_TIME_LINE = "of batches that were taken back: the query would come upon it when it gets there again"
    UNCOMMITTED = "of a batch that was begun and not committed: in structure V1 a start takes a snapshot by its number"
    NO_NUMBER = "no number before .zip: in structure V1 no version of a store is loaded while it lies there"


@dataclass(frozen=True)
class Rewrite:
    """Give a snapshot another header."""

    path: str
    header: str
    why: Why = Why.HEADER


@dataclass(frozen=True)
class PutAside:
    """Take a file out of Spark's way."""

    path: str
    why: Why


@dataclass(frozen=True)
class Gathered:
    """The facts. `headers`: of the snapshots of structure V2 up to the head that can be read, by path; `begun`: the newest
    batch that the offset log knows, -1 for none. `heads`: None before the first commit."""

    heads: Heads | None
    standing: Standing
    files: Mapping[StorePath, StoreFiles]
    headers: Mapping[str, str]
    begun: int = -1


@dataclass(frozen=True)
class RepairPlan:
    """What is to be done, in order. `asks`: what a person has to say before it can be told what else is. `standing`: where
    the query stands for which this is planned; None when nothing is to be done."""

    actions: tuple[Rewrite | PutAside, ...]
    asks: str | None = None
    standing: Standing | None = None


def gather(storage: Storage) -> Gathered:
    """The facts. Listings of `state/` and of the logs, the newest commit and offsets, and one request a snapshot of
    structure V2. Raises `NotACheckpoint`, `CorruptFile`, `UnknownFormatVersion` also for a state store that is not RocksDB,
    `StorageError`.
    """
    # The files before the log. Losing schedule of the other order: the query, which somebody forgot to stop, commits
    # while the files are listed, and what it wrote looks like files of batches that were taken back.
    files = catalog.files(storage)
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
                catalog.state_conf(storage, heads.batch)  # another kind of state store has other files
        of_v2 = (
            store.snapshot(version)
            for store, of_store in files.items()
            for version in of_store.snapshots
            if version.id is not None and version.version <= head
        )
        at_once(look, list(of_v2))
    batches = (names.parse_batch(entry.path.rpartition("/")[2]) for entry in storage.list(names.OFFSETS))
    begun = max((batch for batch in batches if batch is not None), default=-1)
    return Gathered(heads, Standing.of(storage, heads), files, headers, begun)


def plan(gathered: Gathered, spark: Spark | None) -> RepairPlan:
    """What is in the way of the Spark that is going to go on; None when nobody has said which one. Pure."""
    newest = gathered.standing.batch
    if gathered.begun > newest + 1:
        # Spark begins no batch before the one before it is committed: commits were lost, and what they name may live.
        there = "no commits" if gathered.heads is None else f"commits only up to batch {newest}"
        return RepairPlan(
            (),
            f"{names.offsets(gathered.begun)} is there, and {there}: if they were lost, restore them; if the query was "
            f"taken back, delete the offsets from batch {newest + 1} on, too",
        )
    away = sorted(_in_the_way(gathered), key=lambda action: action.path)
    asks = None
    rewritten: list[Rewrite] = []
    if spark is not None:
        wrong = sorted(path for path, header in gathered.headers.items() if header != spark.header)
        rewritten = [Rewrite(path, spark.header) for path in wrong]
    elif "v2" in gathered.headers.values():
        asks = "there are snapshots as Spark 4.0 writes them, which later ones refuse: --for-spark says which goes on"
    actions: tuple[Rewrite | PutAside, ...] = (*away, *rewritten)
    return RepairPlan(actions, asks, gathered.standing if actions else None)


def _in_the_way(gathered: Gathered) -> Iterator[PutAside]:
    """Changelogs and snapshots that a start may come upon."""
    newest = time_line.newest_known(committed=[gathered.standing.batch], begun=[gathered.begun])
    for store, files in gathered.files.items():
        # Of a query that was taken back to its beginning no commit says which stores it has.
        head = names.EMPTY if gathered.heads is None else gathered.heads.heads.get(store)
        if head is None:
            continue
        dead = time_line.given_up(files, newest)
        sidecars = {entry.path for entry in files.others}
        found = [(store.changelog(version), Why.DEAD_TIME_LINE) for version in dead.changelogs]
        found += [(store.snapshot(version), Why.DEAD_TIME_LINE) for version in dead.snapshots]
        if head.id is None:
            uncommitted = [
                v for v in files.snapshots if head.version < v.version <= newest and (gathered.heads or v.id is None)
            ]
            found += [(store.snapshot(version), Why.UNCOMMITTED) for version in uncommitted]
        if head.id is None and head.digest is None:  # our own jobs take no notice of it
            zips = [entry.path for entry in (*files.snapshots.values(), *files.others)]
            found += [
                (path, Why.NO_NUMBER) for path in zips if names.stops_loads(path.removeprefix(f"{store.folder}/"))
            ]
        for path, why in dict(reversed(found)).items():
            yield PutAside(path, why)
            if names.sidecar(path) in sidecars:
                yield PutAside(names.sidecar(path), why)


def execute(storage: Storage, planned: RepairPlan, *, run: str) -> Iterator[Rewrite | PutAside]:
    """Do what the plan says, and tell after each file what was done.

    *Guarantee*: each file is put aside before it is touched, so that a crash at any request loses nothing: what is left is
    in the next plan, and `undo` takes back what was done. Raises `CorruptFile`, `ObjectMissing`, `StorageError`.
    """
    if planned.standing is not None:
        aside.begin(storage, run, planned.standing)
    for action in planned.actions:
        body = storage.read(action.path)
        storage.create(names.aside(run, action.path), body)
        if isinstance(action, Rewrite):
            snapshot = read_snapshot(body, action.path)
            metadata = replace(snapshot.metadata, header=action.header)
            # A checksum beside it would be that of the old bytes; without one Spark reads the file unchecked.
            sidecar = f"{action.path}{names.SIDECAR}"
            if (checksum := read_or_none(storage, sidecar)) is not None:
                storage.create(names.aside(run, sidecar), checksum)
                storage.delete([sidecar])
            storage.replace(action.path, encode_snapshot(replace(snapshot, metadata=metadata)))
        else:
            storage.delete([action.path])
        yield action
