"""Which stores deserve a snapshot, and making it: the work that a query without it does in its executors.

    gather(storage)  ->  Gathered  ->  plan(gathered, policy)  ->  SnapshotPlan  ->  execute(storage, action)

Sources: SPARK-43421 (snapshots in the background), SPARK-49374 (each under its own id), FLIP-158 (materialization apart
from commits), FLIP-428 (incremental by file).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from statestore import catalog
from statestore.chain import look_at_snapshot
from statestore.clock import Clock, Ids
from statestore.engine.local_copy import LocalCopyFolder
from statestore.engine.rocks import EngineLimits, translated
from statestore.errors import AlreadyExists, CorruptFile, ObjectMissing, StatekeeperError, UnknownFormatVersion
from statestore.format import names
from statestore.format.names import StorePath, VersionId
from statestore.format.snapshot import (
    Snapshot,
    SnapshotMetadata,
    TableFile,
    encode_snapshot,
    is_small_file,
)
from statestore.format.untrusted import BAD_VALUES
from statestore.lineage import BaseKind, Lineage, LoadPlan, NeedsHeader, NotLoadable, next_step
from statestore.loader import Loader
from statestore.maintenance import announcements
from statestore.maintenance.history import newest_outcome
from statestore.maintenance.pool import WORKERS, in_pool
from statestore.storage import Entry, Storage, at_once

_SPARKS_BLOCK_BYTES = 4096
"""Spark's own block size: what its readers of a snapshot are used to."""

REPLAY_BYTES_PER_SECOND = 8 * 1024 * 1024
"""Until a snapshot of the checkpoint was made and measured."""

_MEASURED_FROM_BYTES = 1024 * 1024
"""A shorter tail says more about the requests than about the replay."""

MEMORY_BYTES = 512 * 1024 * 1024
"""What making snapshots may take, unless more or less is asked for."""

_PROCESS_BYTES = 240 * 1024 * 1024
"""What of that goes to the interpreter, the libraries and the engine; the rest is for changes that are being sorted."""


@dataclass(frozen=True)
class SnapshotPolicy:
    """When a store deserves a snapshot: its tail has `changelogs` files, or takes `restore_seconds` to replay."""

    changelogs: int = 50
    restore_seconds: float = 10.0


@dataclass(frozen=True)
class StoreFacts:
    """One store at its head. `load` says how the head is loaded from storage, None when it cannot be; `problem` what is
    wrong with it, or with the snapshot at its head. `files` and `size_bytes` are of all that lies in its folder."""

    store: StorePath
    head: VersionId
    load: LoadPlan | None
    tail_bytes: int
    problem: str | None = None
    snapshots: int = 0
    files: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class Gathered:
    """The facts about a checkpoint. `batch` is None before the first commit; `is_own`: a root of our own jobs.

    `replay_bytes_per_second`: bytes of changelogs, as they lie in storage, fetched and replayed a second; as measured
    when the newest snapshots were made.
    """

    batch: int | None
    is_own: bool
    stores: tuple[StoreFacts, ...]
    replay_bytes_per_second: float = REPLAY_BYTES_PER_SECOND

    def restore_seconds(self, fact: StoreFacts) -> float:
        """How long a restart of the store waits for its tail, as far as one can tell beforehand."""
        return fact.tail_bytes / self.replay_bytes_per_second


class Why(Enum):
    """Why a store gets a snapshot."""

    COUNT = "many changelogs behind the newest snapshot"
    RESTORE = "its tail takes long to restore"
    ASKED = "asked for"


class WhyNot(Enum):
    """Why a store gets none."""

    AT_HEAD = "has a snapshot at its head"
    SHORT_TAIL = "its tail is short"
    NATIVE = "written by Spark itself: this release makes snapshots in the roots of its own jobs only"
    NOT_LOADABLE = "its head cannot be loaded"
    DAMAGED = "its snapshot at the head is damaged, delete it and run this again"

    @property
    def is_finding(self) -> bool:
        """Whether someone must act."""
        return self in (WhyNot.NOT_LOADABLE, WhyNot.DAMAGED)


@dataclass(frozen=True)
class TakeSnapshot:
    """Make the snapshot of `load`'s target."""

    store: StorePath
    version: VersionId
    load: LoadPlan
    tail_bytes: int
    reason: Why

    @property
    def explained(self) -> str:
        """The reason with its figures."""
        count = len(self.load.replay)
        return f"{self.reason.value}: {count:,} changelogs, {self.tail_bytes:,} bytes since {_base_name(self.load)}"


@dataclass(frozen=True)
class LeaveAlone:
    """Make none."""

    store: StorePath
    version: VersionId
    reason: WhyNot
    detail: str

    @property
    def explained(self) -> str:
        """The reason with its figures."""
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


@dataclass(frozen=True)
class SnapshotPlan:
    """What to do about each store, worst first."""

    batch: int | None
    take: tuple[TakeSnapshot, ...]
    leave: tuple[LeaveAlone, ...]


class Published(Enum):
    """How the making of a snapshot ended."""

    NEW = "made"
    THERE_ALREADY = "another maintainer was first"


@dataclass(frozen=True)
class Taken:
    """What became of one action. `new_tables` are those that this run sent, `uploaded_bytes` what it added to storage;
    `restore_seconds` what fetching the base and replaying the tail took."""

    action: TakeSnapshot
    published: Published
    keys: int
    tables: int
    new_tables: int
    uploaded_bytes: int
    replayed_keys: int
    skipped_snapshots: tuple[str, ...]
    restore_seconds: float
    seconds: float


def gather(storage: Storage) -> Gathered:
    """The facts about all stores at the newest committed batch.

    Two listings of `state/`, one of `commits/` and one of the history, one request an operator, and one for each store:
    the head of its newest changelog, or the snapshot at its head. Raises `NotACheckpoint`, `CorruptFile`, `StorageError`.
    """
    is_own = storage.stat(names.BINDING) is not None
    heads = catalog.heads(storage)
    if heads is None:
        return Gathered(None, is_own, ())
    files = catalog.files(storage)
    found: dict[StorePath, StoreFacts] = {}

    def look(store: StorePath) -> None:
        of_store = files.get(store, catalog.StoreFiles())
        entries = of_store.entries
        found[store] = replace(
            _facts(storage, store, heads.heads[store], of_store),
            snapshots=len(of_store.snapshots),
            files=len(entries),
            size_bytes=sum(entry.size_bytes for entry in entries),
        )

    at_once(look, list(heads.heads))
    rate = _measured_rate(storage) if is_own else REPLAY_BYTES_PER_SECOND
    return Gathered(heads.batch, is_own, tuple(found[store] for store in sorted(found)), rate)


def _measured_rate(storage: Storage) -> float:
    """From the record of the newest snapshots. It is a hint: one that cannot be read is none."""
    try:
        outcome = newest_outcome(storage, "snapshot")
        long = [line for line in outcome if line.get("tail_bytes", 0) >= _MEASURED_FROM_BYTES]
        seconds = sum(float(line["restore_seconds"]) for line in long)
        size = sum(int(line["tail_bytes"]) for line in long)
    except CorruptFile:
        return REPLAY_BYTES_PER_SECOND
    except BAD_VALUES:
        return REPLAY_BYTES_PER_SECOND
    return size / seconds if seconds > 0 else REPLAY_BYTES_PER_SECOND


def _facts(storage: Storage, store: StorePath, head: VersionId, files: catalog.StoreFiles) -> StoreFacts:
    if head.id is None:
        return StoreFacts(store, head, None, 0, "structure V1: this release reads structure V2")
    headers: dict[VersionId, Lineage] = {}
    while True:
        step = next_step(head, snapshots=files.snapshots.keys(), local=None, headers=headers)
        match step:
            case LoadPlan(replay=()):
                return StoreFacts(store, head, step, 0, look_at_snapshot(storage, store, head, files).damage)
            case LoadPlan():
                gone = next((version for version in step.replay if version not in files.changelogs), None)
                if gone is not None:
                    return StoreFacts(store, head, None, 0, f"{store.changelog(gone)} is missing")
                return StoreFacts(store, head, step, sum(files.changelogs[v].size_bytes for v in step.replay))
            case NeedsHeader(version):
                try:
                    headers[version] = catalog.lineage(storage, store, version)
                except (ObjectMissing, CorruptFile, UnknownFormatVersion) as error:
                    return StoreFacts(store, head, None, 0, str(error))
            case NotLoadable(missing, reason):
                return StoreFacts(store, head, None, 0, f"{store.changelog(missing)}: {reason}")


def plan(gathered: Gathered, policy: SnapshotPolicy, *, take_all: bool = False) -> SnapshotPlan:
    """Which stores get a snapshot at their head, the longest tail first. Pure."""
    take: list[TakeSnapshot] = []
    leave: list[LeaveAlone] = []
    for fact in gathered.stores:
        why = _why(gathered, fact, policy, take_all=take_all) if gathered.is_own else WhyNot.NATIVE
        if isinstance(why, Why):
            assert fact.load is not None
            take.append(TakeSnapshot(fact.store, fact.head, fact.load, fact.tail_bytes, why))
        else:
            leave.append(LeaveAlone(fact.store, fact.head, why, _detail(fact, why)))
    take.sort(key=lambda action: (-action.tail_bytes, -len(action.load.replay), action.store))
    return SnapshotPlan(gathered.batch, tuple(take), tuple(leave))


def _why(gathered: Gathered, fact: StoreFacts, policy: SnapshotPolicy, *, take_all: bool) -> Why | WhyNot:
    if fact.load is None:
        return WhyNot.NOT_LOADABLE
    if not fact.load.replay:
        return WhyNot.DAMAGED if fact.problem else WhyNot.AT_HEAD
    if take_all:
        return Why.ASKED
    if len(fact.load.replay) >= policy.changelogs:
        return Why.COUNT
    is_long = gathered.restore_seconds(fact) >= policy.restore_seconds
    return Why.RESTORE if is_long else WhyNot.SHORT_TAIL


def _detail(fact: StoreFacts, why: WhyNot) -> str:
    if why.is_finding:
        return fact.problem or ""
    if why is WhyNot.SHORT_TAIL and fact.load is not None:
        return f"{len(fact.load.replay):,} changelogs, {fact.tail_bytes:,} bytes since {_base_name(fact.load)}"
    return ""


def _base_name(load: LoadPlan) -> str:
    return "the beginning" if load.base_kind is BaseKind.NOTHING else f"version {load.base.version}"


def execute_all(
    storage: Storage,
    actions: Sequence[TakeSnapshot],
    ended: Callable[[TakeSnapshot, Taken | StatekeeperError], None],
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    workers: int = WORKERS,
    memory_bytes: int = MEMORY_BYTES,
) -> None:
    """Make snapshots, `workers` at a time, which share `memory_bytes`. The rest is as with `execute`.

    What becomes of failures and interruptions, and how `ended` is told: `pool.in_pool`.
    """
    at_a_time = max(1, min(workers, len(actions)))

    def work(action: TakeSnapshot) -> Taken:
        share = _PROCESS_BYTES + (memory_bytes - _PROCESS_BYTES) // at_a_time
        return execute(storage, action, scratch=scratch, clock=clock, ids=ids, memory_bytes=share)

    in_pool(work, actions, ended, workers=at_a_time)


def execute(
    storage: Storage,
    action: TakeSnapshot,
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    memory_bytes: int = MEMORY_BYTES,
) -> Taken:
    """Make one snapshot, below `scratch` on local disk, and publish it: tables first, zip last.

    `memory_bytes` bounds what the process has then; the less, the more tables a long tail becomes.

    *Guarantee*: nothing is overwritten or deleted, and a crash at any request leaves a store that loads: tables without
    a zip are orphans. When another maintainer was first and its snapshot is whole, that one stands.

    Raises `VersionNotLoadable`; `CorruptFile` when a damaged zip stands under the snapshot's name; `ObjectMissing` when
    its tables are deleted as soon as they are sent; `LocalDiskFull`, `StorageError`.
    """
    started = clock.monotonic_seconds()
    with translated(scratch):
        scratch.mkdir(parents=True, exist_ok=True)
    with translated(scratch), tempfile.TemporaryDirectory(dir=scratch, prefix="snapshot-") as name:
        folder, captured = Path(name), Path(name) / "captured"
        limits = EngineLimits(block_bytes=_SPARKS_BLOCK_BYTES, replay_bytes=max(0, memory_bytes - _PROCESS_BYTES))
        cache = LocalCopyFolder(folder / "store", limits, ids)
        loader = Loader(action.store, storage, cache, limits, clock=clock, lock_timeout_seconds=0)
        restored = loader.restore(action.version, folder / "database")
        restore_seconds = clock.monotonic_seconds() - started
        with restored.database as database:
            if database.wants_merge():
                database.merge_tables()
            keys = database.count_keys() if restored.keys is None else restored.keys
            database.capture(captured)
        tables, fresh = _named(captured, restored.base, _doomed(storage, action.store), ids)
        at_once(lambda table: _upload(storage, action.store, table, captured), fresh)
        small = {path.name: path.read_bytes() for path in captured.iterdir() if is_small_file(path.name)}
        snapshot = Snapshot(small, SnapshotMetadata("v1", tables, keys, {}))
        body = encode_snapshot(snapshot)
        published = _publish(storage, action, body)
        if published is Published.NEW:
            _require_tables(storage, action, tables, captured)
    return Taken(
        action,
        published,
        keys,
        len(tables),
        len(fresh),
        sum(table.size_bytes for table in fresh) + (len(body) if published is Published.NEW else 0),
        restored.metrics.replayed_keys,
        restored.metrics.skipped_snapshots,
        restore_seconds,
        clock.monotonic_seconds() - started,
    )


def _doomed(storage: Storage, store: StorePath) -> frozenset[str]:
    """Names of the store's tables that a retention run is about to delete."""
    folder = f"{store.folder}/{names.TABLES}"
    return frozenset(p.removeprefix(folder) for p in announcements.doomed(storage) if p.startswith(folder))


def _named(
    captured: Path, base: SnapshotMetadata | None, doomed: frozenset[str], ids: Ids
) -> tuple[tuple[TableFile, ...], list[TableFile]]:
    """The tables of a snapshot under their names in storage, and those of them that are not there yet.

    A table of the base that did not change keeps its name: RocksDB never uses a number again, nor changes a table. One
    that is about to be deleted is sent again under a name that nobody knows yet.
    """
    reusable = (table for table in (base.tables if base else ()) if table.dfs_name not in doomed)
    held = {(table.local_name, table.size_bytes): table for table in reusable}
    suffix = ids.fresh()
    tables: list[TableFile] = []
    fresh: list[TableFile] = []
    for path in sorted(captured.glob("*.sst")):
        size = path.stat().st_size
        table = held.get((path.name, size))
        if table is None:
            table = TableFile(path.name, f"{path.stem}-{suffix}.sst", size)
            fresh.append(table)
        tables.append(table)
    return tuple(tables), fresh


def _upload(storage: Storage, store: StorePath, table: TableFile, captured: Path) -> None:
    storage.create(store.table_file(table.dfs_name), captured / table.local_name)


def _publish(storage: Storage, action: TakeSnapshot, body: bytes) -> Published:
    path = action.store.snapshot(action.version)
    try:
        storage.create(path, body)
    except AlreadyExists as error:
        damage = look_at_snapshot(storage, action.store, action.version, _files(storage, action.store)).damage
        if damage is not None:
            raise CorruptFile(
                f"stands where the snapshot is to be, and is damaged: {damage}",
                path=path,
                hint="delete it and run this again",
            ) from error
        return Published.THERE_ALREADY
    return Published.NEW


def _require_tables(storage: Storage, action: TakeSnapshot, tables: tuple[TableFile, ...], captured: Path) -> None:
    # Losing schedule: a deleter that saw a table before any zip named it deletes it after the zip is visible. All
    # tables still lie here, those of the base too: they are sent again, and from now on a zip names them. Should it
    # sleep and delete one of them again, retention has rested nothing on this snapshot as long as the deleter can live.
    gone = _gone(tables, _files(storage, action.store).tables)
    if gone:
        at_once(lambda table: _upload(storage, action.store, table, captured), gone)
        gone = _gone(tables, _files(storage, action.store).tables)
    if gone:
        raise ObjectMissing(
            "was deleted, sent again, and deleted again, while a snapshot names it",
            path=action.store.table_file(gone[0].dfs_name),
            hint="stop what deletes files in this checkpoint, delete the snapshot and run this again",
        )


def _files(storage: Storage, store: StorePath) -> catalog.StoreFiles:
    """The store's tables, as they are now."""
    return catalog.files(storage, f"{store.folder}/{names.TABLES}".rstrip("/")).get(store, catalog.StoreFiles())


def _gone(tables: tuple[TableFile, ...], there: Mapping[str, Entry]) -> list[TableFile]:
    return [table for table in tables if table.dfs_name not in there]
