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
from statestore.errors import (
    AlreadyExists,
    CorruptFile,
    ObjectMissing,
    RefusedAsUnsafe,
    StatekeeperError,
    UnknownFormatVersion,
)
from statestore.format import names
from statestore.format.names import EMPTY, StorePath, VersionId
from statestore.format.snapshot import (
    Snapshot,
    SnapshotMetadata,
    TableFile,
    encode_snapshot,
    is_small_file,
)
from statestore.format.sparks import Spark
from statestore.format.state_conf import OURS, StateConf
from statestore.format.untrusted import BAD_VALUES
from statestore.lineage import BaseKind, Lineage, LoadPlan, NeedsHeader, NotLoadable, next_step
from statestore.loaded import Restored
from statestore.loader import Loader
from statestore.maintenance import announcements
from statestore.maintenance.history import newest_outcome
from statestore.maintenance.pool import WORKERS, in_pool
from statestore.storage import Entry, Storage, at_once

_FAMILY_BYTES = 2

_SPARKS_BLOCK_BYTES = 4096
"""Spark's own block size: what its readers of a snapshot are used to."""

REPLAY_BYTES_PER_SECOND = 8 * 1024 * 1024
"""Until a snapshot of the checkpoint was made and measured."""

_MEASURED_FROM_BYTES = 1024 * 1024
"""A shorter tail says more about the requests than about the replay."""

LIVE_MARGIN_VERSIONS = 2
"""In structure V1 an attempt that Spark believes dead may still replace the newest changelogs of a running query."""

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
    """One store. `load` says how the version is loaded of which a snapshot may be made, None when it cannot be; `problem`
    what is wrong with it, or with its snapshot. `files` and `size_bytes` are of all that lies in the store's folder."""

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
    when the newest snapshots were made. `conf`: what the query's state is written by. `may_be_of_4_0`: nothing tells
    whether Spark 4.0 runs the query, which reads snapshots of structure V2 with a header of its own.
    """

    batch: int | None
    is_own: bool
    stores: tuple[StoreFacts, ...]
    replay_bytes_per_second: float = REPLAY_BYTES_PER_SECOND
    conf: StateConf = OURS
    may_be_of_4_0: bool = False

    @property
    def replaces_versions(self) -> bool:
        """Whether the query, while it runs, may still replace its newest versions: one of Spark's, in structure V1."""
        return not self.is_own and any(fact.head.id is None for fact in self.stores)

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
    NEAR_HEAD = "has none to come: while a query of structure V1 runs, its newest versions may still be replaced"
    SHORT_TAIL = "its tail is short"
    WHICH_SPARK = "Spark 4.0 reads other snapshots than later ones, and nothing tells which it is: say --for-spark"
    NOT_LOADABLE = "its head cannot be loaded"
    DAMAGED = "its snapshot at the head is damaged, delete it and run this again"

    @property
    def is_finding(self) -> bool:
        """Whether someone must act."""
        return self in (WhyNot.NOT_LOADABLE, WhyNot.DAMAGED, WhyNot.WHICH_SPARK)


@dataclass(frozen=True)
class TakeSnapshot:
    """Make the snapshot of `load`'s target."""

    store: StorePath
    version: VersionId
    load: LoadPlan
    tail_bytes: int
    reason: Why
    conf: StateConf = OURS
    header: str = "v1"

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


def gather(storage: Storage, *, at_head: bool = False) -> Gathered:
    """The facts about all stores at the newest committed batch.

    `at_head`: at that batch also in a checkpoint of Spark's in structure V1, which takes a query that is stopped; else a
    little before it. Two listings of `state/`, one of `commits/` and one of the history, one request an operator, one of
    the offset log of a checkpoint of Spark's, and one for each store: the head of its newest changelog, or the snapshot
    at its head. Raises `NotACheckpoint`, `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    is_own = storage.stat(names.BINDING) is not None
    heads = catalog.heads(storage)
    if heads is None:
        return Gathered(None, is_own, ())
    conf = OURS if is_own else catalog.state_conf(storage, heads.batch)
    files = catalog.files(storage)
    found: dict[StorePath, StoreFacts] = {}

    def look(store: StorePath) -> None:
        of_store = files.get(store, catalog.StoreFiles())
        entries = of_store.entries
        head = heads.heads[store]
        target = head if is_own or at_head or head.id is not None else _settled(head)
        found[store] = replace(
            _facts(storage, store, target, of_store),
            head=head,
            snapshots=len(of_store.snapshots),
            files=len(entries),
            size_bytes=sum(entry.size_bytes for entry in entries),
        )

    at_once(look, list(heads.heads))
    rate = _measured_rate(storage) if is_own else REPLAY_BYTES_PER_SECOND
    # From 4.1 on there are checksums beside changelogs; a snapshot of Spark's own tells it by its header.
    has_checksums = any(names.is_sidecar(_name(entry)) for of_store in files.values() for entry in of_store.others)
    is_v2 = any(head.id is not None for head in heads.heads.values())
    may_be_of_4_0 = is_v2 and conf.began_before_4_2 and not has_checksums
    stores = tuple(found[store] for store in sorted(found))
    return Gathered(heads.batch, is_own, stores, rate, conf, may_be_of_4_0)


def _name(entry: Entry) -> str:
    return entry.path.rpartition("/")[2]


def _settled(head: VersionId) -> VersionId:
    return VersionId(max(0, head.version - LIVE_MARGIN_VERSIONS))


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
    headers: dict[VersionId, Lineage] = {}
    while True:
        step = next_step(head, snapshots=files.snapshots.keys(), local=None, headers=headers)
        match step:
            case LoadPlan(base=base, replay=()):
                damage = None if base == EMPTY else look_at_snapshot(storage, store, base, files).damage
                return StoreFacts(store, head, step, 0, damage)
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


def plan(
    gathered: Gathered, policy: SnapshotPolicy, *, take_all: bool = False, spark: Spark | None = None
) -> SnapshotPlan:
    """Which stores get a snapshot, the longest tail first. `spark`: which one goes on, where that is known. Pure."""
    take: list[TakeSnapshot] = []
    leave: list[LeaveAlone] = []
    for fact in gathered.stores:
        why = _why(gathered, fact, policy, take_all=take_all)
        if isinstance(why, Why) and spark is None and _depends_on_spark(gathered, fact):
            why = WhyNot.WHICH_SPARK
        if isinstance(why, Why):
            assert fact.load is not None
            version = fact.load.replay[-1]
            header = spark.header if spark is not None and version.id is not None else "v1"
            take.append(TakeSnapshot(fact.store, version, fact.load, fact.tail_bytes, why, gathered.conf, header))
        else:
            leave.append(LeaveAlone(fact.store, fact.head, why, _detail(fact, why)))
    take.sort(key=lambda action: (-action.tail_bytes, -len(action.load.replay), action.store))
    return SnapshotPlan(gathered.batch, tuple(take), tuple(leave))


def _depends_on_spark(gathered: Gathered, fact: StoreFacts) -> bool:
    """Whether there is no snapshot of which the header can be taken."""
    return gathered.may_be_of_4_0 and fact.load is not None and fact.load.base_kind is BaseKind.NOTHING


def _why(gathered: Gathered, fact: StoreFacts, policy: SnapshotPolicy, *, take_all: bool) -> Why | WhyNot:
    if fact.load is None:
        return WhyNot.NOT_LOADABLE
    if not fact.load.replay and fact.load.base != fact.head:
        return WhyNot.DAMAGED if fact.problem else WhyNot.NEAR_HEAD
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

    *Guarantee*: nothing is overwritten, nothing is deleted but a snapshot of its own that turned out wrong, and a crash at
    any request leaves a store that loads: tables without a zip are orphans. When another maintainer was first and its
    snapshot is whole, that one stands.

    Raises `VersionNotLoadable`; `RefusedAsUnsafe` when a changelog of structure V1 was replaced meanwhile; `CorruptFile`
    when a damaged zip stands under the snapshot's name; `ObjectMissing` when its tables are deleted as soon as they are
    sent; `LocalDiskFull`, `StorageError`.
    """
    started = clock.monotonic_seconds()
    with translated(scratch):
        scratch.mkdir(parents=True, exist_ok=True)
    with translated(scratch), tempfile.TemporaryDirectory(dir=scratch, prefix="snapshot-") as name:
        folder, captured = Path(name), Path(name) / "captured"
        limits = EngineLimits(block_bytes=_SPARKS_BLOCK_BYTES, replay_bytes=max(0, memory_bytes - _PROCESS_BYTES))
        cache = LocalCopyFolder(folder / "store", limits, ids)
        loader = Loader(action.store, storage, cache, limits, clock=clock, lock_timeout_seconds=0, conf=action.conf)
        sources = _sources(storage, action)
        restored = loader.restore(action.version, folder / "database")
        restore_seconds = clock.monotonic_seconds() - started
        with restored.database as database:
            if database.wants_merge():
                database.merge_tables()
            keys = _keys(action, restored)
            database.capture(captured)
        tables, fresh = _named(captured, restored.base, _doomed(storage, action.store), ids)
        at_once(lambda table: _upload(storage, action.store, table, captured), fresh)
        small = {path.name: path.read_bytes() for path in captured.iterdir() if is_small_file(path.name)}
        snapshot = Snapshot(small, _metadata(action, restored.base, tables, keys))
        body = encode_snapshot(snapshot)
        _require_unchanged(storage, action, sources)
        published = _publish(storage, action, body)
        if published is Published.NEW:
            _require_tables(storage, action, tables, captured)
            _require_still_unchanged(storage, action, sources)
    return Taken(
        action,
        published,
        keys.own,
        len(tables),
        len(fresh),
        sum(table.size_bytes for table in fresh) + (len(body) if published is Published.NEW else 0),
        restored.metrics.replayed_keys,
        restored.metrics.skipped_snapshots,
        restore_seconds,
        clock.monotonic_seconds() - started,
    )


@dataclass(frozen=True)
class _Keys:
    """How many keys there are, and how many that Spark keeps for itself."""

    own: int
    internal: int = 0


def _keys(action: TakeSnapshot, restored: Restored) -> _Keys:
    base = restored.base
    if base is not None and base.column_families and restored.metrics.skipped_snapshots:
        # The one that is damaged may name families that the older one does not know, also such as have no key yet.
        raise CorruptFile(
            f"is damaged, and only it is sure to name all column families: {restored.metrics.skipped_snapshots[0]}",
            path=action.store.snapshot(action.load.base),
            hint="restore it from a backup",
        )
    if base is None or not base.column_families:
        return _Keys(restored.database.count_keys() if restored.keys is None else restored.keys)
    # Each key begins with the number of its family, two bytes, little-endian.
    names_of = {number.to_bytes(_FAMILY_BYTES, "little"): name for name, number in base.column_families.items()}
    counts = {"own": 0, "internal": 0}
    for number, count in restored.database.count_by_beginning(_FAMILY_BYTES).items():
        if number not in names_of:
            raise UnknownFormatVersion(
                f"version {action.version.version} has keys of column family {int.from_bytes(number, 'little')}, which "
                f"the snapshot that it grew from does not name",
                path=action.store.snapshot(action.load.base),
                hint="restore the snapshot that Spark wrote when the family was added",
            )
        counts["internal" if base.internal_families.get(names_of[number], False) else "own"] += count
    return _Keys(**counts)


def _metadata(
    action: TakeSnapshot, base: SnapshotMetadata | None, tables: tuple[TableFile, ...], keys: _Keys
) -> SnapshotMetadata:
    """What the snapshot says of itself: all but tables and counts as its base does. Only snapshots name the families."""
    if base is None:
        return SnapshotMetadata(action.header, tables, keys.own, {})
    return replace(base, tables=tables, key_count=keys.own, internal_key_count=keys.internal)


def _sources(storage: Storage, action: TakeSnapshot) -> dict[str, Entry | None]:
    """The changelogs that are replayed, as they are now, where one may be replaced by another of the same name."""
    paths = [action.store.changelog(version) for version in action.load.replay if version.id is None]
    found: dict[str, Entry | None] = {}

    def look(path: str) -> None:
        found[path] = storage.stat(path)

    at_once(look, paths)
    return found


def _require_unchanged(storage: Storage, action: TakeSnapshot, before: Mapping[str, Entry | None]) -> None:
    # Losing schedule, in structure V1: an attempt that Spark believes dead replaces the changelog of its version while
    # it is replayed here, and what a restart would have replayed is not what the snapshot holds.
    changed = [path for path, entry in _sources(storage, action).items() if entry != before[path]]
    if changed:
        raise RefusedAsUnsafe(
            "was replaced while it was replayed: there is no snapshot of it",
            path=changed[0],
            hint="run this again; in structure V2 it cannot happen",
        )


def _require_still_unchanged(storage: Storage, action: TakeSnapshot, before: Mapping[str, Entry | None]) -> None:
    """The same once more, now that the snapshot is visible: it goes again when it is not right."""
    try:
        _require_unchanged(storage, action, before)
    except RefusedAsUnsafe:
        storage.delete([action.store.snapshot(action.version)])
        raise


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
