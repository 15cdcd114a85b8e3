"""Executes a snapshot plan: builds each snapshot on local disk and publishes it.

RocksDB and the loader are imported on demand: most commands need only the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import (
    AlreadyExists,
    CorruptFile,
    LocalDiskFull,
    ObjectMissing,
    RefusedAsUnsafe,
    StatekeeperError,
    UnknownFormatVersion,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.contents.chain import look_at_snapshot
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.snapshot import Snapshot, SnapshotMetadata, TableFile, encode_snapshot, is_small_file
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance.executors import MEMORY_BYTES, Executor, LocalExecutor, Place
from statekeeper.statestore.maintenance.records import announcements
from statekeeper.statestore.maintenance.upkeep.snapshot.model import TakeSnapshot
from statekeeper.statestore.storage import Entry, Storage, at_once

if TYPE_CHECKING:
    from statekeeper.statestore.store.engine.kept_tables import KeptTables
    from statekeeper.statestore.store.engine.rocks import Database
    from statekeeper.statestore.store.loading.loaded import Restored


class Published(Enum):
    """How a snapshot was published."""

    NEW = "made"
    THERE_ALREADY = "already published by another maintainer"


def sources_now(storage: Storage, action: TakeSnapshot) -> dict[str, Entry | None]:
    """Return the current entries of the replayed changelogs that can be replaced under the same name (structure V1)."""
    paths = [action.store.changelog(version) for version in action.load.replay if version.id is None]
    found: dict[str, Entry | None] = {}

    def look(path: str) -> None:
        found[path] = storage.stat(path)

    at_once(look, paths)
    return found


def require_unchanged(storage: Storage, action: TakeSnapshot, before: Mapping[str, Entry | None]) -> None:
    # Race in structure V1: an attempt that Spark considers dead replaces a changelog during the replay, so a restart would
    # replay other changes than the snapshot contains.
    changed = [path for path, entry in sources_now(storage, action).items() if entry != before[path]]
    if changed:
        raise RefusedAsUnsafe(
            "was replaced while it was replayed; no snapshot was written",
            path=changed[0],
            hint="run this command again",
        )


def require_still_unchanged(
    storage: Storage, action: TakeSnapshot, before: Mapping[str, Entry | None], body: bytes
) -> None:
    """Compare the changelogs again after the snapshot is visible. A wrong snapshot is deleted, unless another maintainer
    has replaced it."""
    try:
        require_unchanged(storage, action, before)
    except RefusedAsUnsafe:
        storage.delete_unchanged(action.path, body)
        raise


def tables_pending_delete(storage: Storage, store: StorePath) -> frozenset[str]:
    """Return the names of the store's tables that a retention run is about to delete."""
    folder = f"{store.folder}/{names.TABLES}"
    return frozenset(p.removeprefix(folder) for p in announcements.pending_delete(storage) if p.startswith(folder))


def named(
    captured: Path, base: SnapshotMetadata | None, pending_delete: frozenset[str], ids: Ids
) -> tuple[tuple[TableFile, ...], list[TableFile]]:
    """Return the tables of a snapshot with their names in storage, and the tables to upload.

    An unchanged table of the base keeps its name: RocksDB never reuses a file number or changes a table. A table that is
    about to be deleted is uploaded again under a new name.
    """
    reusable = (table for table in (base.tables if base else ()) if table.dfs_name not in pending_delete)
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


def upload(storage: Storage, store: StorePath, table: TableFile, captured: Path) -> None:
    storage.create(store.table_file(table.dfs_name), captured / table.local_name)


def publish(storage: Storage, action: TakeSnapshot, body: bytes) -> Published:
    path, version = action.path, action.name or action.version
    _require_no_stray_sidecar(storage, path, version)
    try:
        storage.create(path, body)
    except AlreadyExists as error:
        there = catalog.files(storage, action.store.folder).of(action.store)
        found = look_at_snapshot(storage, action.store, version, there)
        if not found.is_whole:
            raise CorruptFile(
                f"exists and is damaged: {found.damage or f'its sidecar {found.sidecar}'}",
                path=path,
                hint="run: statekeeper repair ROOT --apply --confirm-stopped, then this command again",
            ) from error
        return Published.THERE_ALREADY
    return Published.NEW


def _require_no_stray_sidecar(storage: Storage, path: str, version: VersionId) -> None:
    # Failure sequence: an executor writes the sidecar of its snapshot and dies; a snapshot with that name is published;
    # Spark finds a wrong checksum and rejects the snapshot, after retention has deleted the files that it replaces.
    beside = names.sidecar(path)
    if version.id is not None and storage.stat(beside) is not None and storage.stat(path) is None:
        raise RefusedAsUnsafe(
            "is a checksum file without its snapshot; Spark would reject the new snapshot, so none was written",
            path=beside,
            hint="stop the query and run: statekeeper repair ROOT --apply --confirm-stopped, then this command again",
        )


def require_tables(
    storage: Storage, action: TakeSnapshot, tables: tuple[TableFile, ...], captured: Path
) -> Mapping[str, Entry]:
    """Require that storage has all tables of a published snapshot. Returns its tables by name."""
    # Race: a deleter that saw a table before a zip named it deletes the table after the zip is visible. All tables are
    # still on local disk, so they are uploaded again, and now a zip names them. If the deleter stalls and deletes one
    # again: no retention run uses this snapshot as a base during the lifetime of the deleter.
    there = _files(storage, action.store).tables
    gone = _gone(tables, there)
    if gone:
        at_once(lambda table: upload(storage, action.store, table, captured), gone)
        there = _files(storage, action.store).tables
        gone = _gone(tables, there)
    if gone:
        raise ObjectMissing(
            "was deleted twice after its upload; the new snapshot needs this SST file, so no snapshot was written",
            path=action.store.table_file(gone[0].dfs_name),
            hint="stop the process that deletes files in this checkpoint, run: statekeeper repair ROOT --apply "
            "--confirm-stopped, then this command again",
        )
    return there


def require_same(
    storage: Storage,
    store: StorePath,
    version: VersionId,
    digest: str,
    path: Path,
    *,
    conf: StateConf,
    at_hand: Mapping[str, Path],
    digest_of: Callable[[Database], str] | None = None,
) -> None:
    """Read a published snapshot back into the new directory `path`, and compare its keys and values with `digest`.

    `at_hand`: name of a table in storage -> its local copy, which is not fetched. `digest_of`: returns the digest of a
    database, in place of `Database.digest`; it may close the database, so that another process can open it.
    Raises `CorruptFile` if they differ.
    """
    from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
    from statekeeper.statestore.store.loading.base import SnapshotUnusable, open_base

    try:
        limits = EngineLimits(has_filters=False)
        with open_base(storage, store, version, path, limits, conf, at_hand=at_hand).database as database:
            found = (digest_of or Database.digest)(database)
        problem = f"the digest of its rows is {found}, expected {digest}"
    except SnapshotUnusable as error:
        found, problem = "", str(error)
    if found != digest:
        raise CorruptFile(
            f"does not contain the state of {version.in_words}: {problem}",
            path=store.snapshot(version),
            hint="run: statekeeper repair ROOT --deep --apply --confirm-stopped, then this command again",
        )


def _files(storage: Storage, store: StorePath) -> catalog.StoreFiles:
    """List the tables of the store."""
    return catalog.by_store(storage.list(f"{store.folder}/{names.TABLES}".rstrip("/"))).of(store)


def _gone(tables: tuple[TableFile, ...], there: Mapping[str, Entry]) -> list[TableFile]:
    return [table for table in tables if table.dfs_name not in there]


_SPARKS_BLOCK_BYTES = 4096
"""Spark's block size."""

KEPT_BYTES = 4 * 1024**3
"""Default bound of the tables that stay on local disk: the newest snapshots of a thousand stores of 4 MiB."""

_PROCESS_BYTES = 240 * 1024 * 1024
"""The part of the memory for the interpreter, the libraries and the engine. The rest is for sorting changes."""


Change: TypeAlias = "Callable[[Restored], str]"
"""Changes the rows of a restored version, and returns the digest that all its rows must have then."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The result of one action.

    new_tables, sent_tables   number and storage names of the tables that this run uploaded
    uploaded_bytes            bytes that this run added to storage
    restore_seconds           time to fetch the base and to replay the tail
    digest                    digest of keys and values, if the snapshot was read back
    kept_tables               number of tables of the base that were kept on local disk, and were not fetched
    """

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
    digest: str | None = None
    sent_tables: tuple[str, ...] = ()
    kept_tables: int = 0


@dataclass(frozen=True, kw_only=True)
class TakeEach:
    """The task of a snapshot. `kept`: tables on local disk, of an executor in this process."""

    storage: Storage
    kept: KeptTables | None = None

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.storage,)

    def __call__(self, action: TakeSnapshot, place: Place) -> Taken:
        share = share_of(place.memory_bytes, place.at_a_time)
        one = partial(
            execute, self.storage, action, scratch=place.folder, clock=place.clock, ids=place.ids, memory_bytes=share
        )
        try:
            return one(kept=self.kept)
        except LocalDiskFull:
            if self.kept is None or not self.kept.clear():
                raise
        return one()


def execute_all(
    storage: Storage,
    actions: Sequence[TakeSnapshot],
    ended: Callable[[TakeSnapshot, Taken | StatekeeperError], None],
    *,
    executor: Executor,
    kept_bytes: int = 0,
) -> None:
    """Make snapshots. See `execute`, and `Executor.map` for failures, interruptions and the calls of `ended`.

    `kept_bytes`: bound of the tables that stay on local disk for the next snapshots, see `kept_tables`; 0 for none. Tables
    of a root on a file system are not kept: a copy is read no faster. Those on other hosts are not kept either.
    """
    from statekeeper.statestore.store.engine.kept_tables import kept_tables_of

    kept = None
    if isinstance(executor, LocalExecutor):
        kept = kept_tables_of(storage.url, executor.folder, kept_bytes, executor.clock)
    executor.map(TakeEach(storage=storage, kept=kept), actions, ended)


def share_of(memory_bytes: int, at_a_time: int) -> int:
    """Return the memory of each of `at_a_time` snapshots. Every share includes the memory of the process itself."""
    return _PROCESS_BYTES + (memory_bytes - _PROCESS_BYTES) // at_a_time


def execute(
    storage: Storage,
    action: TakeSnapshot,
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    memory_bytes: int = MEMORY_BYTES,
    change: Change | None = None,
    kept: KeptTables | None = None,
) -> Taken:
    """Make one snapshot on local disk below `scratch`, and publish it: tables first, zip last.

    `memory_bytes` bounds the memory of the process; with less memory, a long tail becomes more tables. `change` changes the
    rows of the restored version first. `kept`: has tables of the base, and gets those of the snapshot. A snapshot that is
    read back does not use it: a check of the storage reads the storage.

    *Guarantee*: it overwrites no file, and deletes only its own snapshot if that is wrong. A crash at any request leaves a
    store that loads: tables without a zip are orphans. If another maintainer has published an intact snapshot, that
    snapshot is kept.

    Raises `VersionNotLoadable`; `RefusedAsUnsafe` if a changelog of structure V1 was replaced during the replay;
    `CorruptFile` if a damaged zip has the name of the snapshot; `ObjectMissing` if its tables are deleted after each
    upload; `LocalDiskFull`, `StorageError`.
    """
    from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
    from statekeeper.statestore.store.engine.rocks import EngineLimits, translated
    from statekeeper.statestore.store.engine.scratch import work_folder
    from statekeeper.statestore.store.loading.loader import Loader

    started = clock.monotonic_seconds()
    with work_folder(scratch, "snapshot") as folder, translated(scratch):
        captured = folder / "captured"
        limits = EngineLimits(block_bytes=_SPARKS_BLOCK_BYTES, replay_bytes=max(0, memory_bytes - _PROCESS_BYTES))
        cache = LocalCopyFolder(folder / "store", limits, ids)
        of_store = None if kept is None or action.name else kept.of(storage.url, action.store.folder)
        loader = Loader(
            action.store,
            storage,
            cache,
            limits,
            clock=clock,
            lock_timeout_seconds=0,
            conf=action.conf,
            kept=of_store,
        )
        sources = sources_now(storage, action)
        restored = loader.restore(action.version, folder / "database")
        restore_seconds = clock.monotonic_seconds() - started
        with restored.database as database:
            expected = None if change is None else change(restored)
            if database.wants_merge():
                database.merge_tables()
            keys = _keys(action, restored if change is None else replace(restored, keys=None))
            digest = database.digest() if action.name else None
            _require_expected(action, digest, expected)
            database.capture(captured)
        tables, fresh = named(captured, restored.base, tables_pending_delete(storage, action.store), ids)
        at_once(lambda table: upload(storage, action.store, table, captured), fresh)
        small = {path.name: path.read_bytes() for path in captured.iterdir() if is_small_file(path.name)}
        of_digest = (action.name or action.version).digest
        snapshot = Snapshot(small, _metadata(action, restored.base, tables, keys), digest=of_digest)
        body = encode_snapshot(snapshot)
        require_unchanged(storage, action, sources)
        published = publish(storage, action, body)
        if published is Published.NEW:
            there = require_tables(storage, action, tables, captured)
            require_still_unchanged(storage, action, sources, body)
            if of_store is not None:
                of_store.keep((there[table.dfs_name], captured / table.local_name) for table in tables)
        if digest is not None:
            at_hand = {table.dfs_name: captured / table.local_name for table in tables if table not in fresh}
            made = action.name or action.version
            require_same(storage, action.store, made, digest, folder / "back", conf=action.conf, at_hand=at_hand)
    return Taken(
        action=action,
        published=published,
        keys=keys.own,
        tables=len(tables),
        new_tables=len(fresh),
        uploaded_bytes=sum(table.size_bytes for table in fresh) + (len(body) if published is Published.NEW else 0),
        replayed_keys=restored.report.replayed_keys,
        skipped_snapshots=restored.report.skipped_snapshots,
        restore_seconds=restore_seconds,
        seconds=clock.monotonic_seconds() - started,
        digest=digest,
        sent_tables=tuple(table.dfs_name for table in fresh),
        kept_tables=restored.report.kept_tables,
    )


def _require_expected(action: TakeSnapshot, digest: str | None, expected: str | None) -> None:
    if expected is not None and digest != expected:
        raise CorruptFile(
            f"does not have the rows that were planned: digest {digest}, expected {expected}; it was not written",
            path=action.path,
            hint="report this error",
        )


@dataclass(frozen=True)
class _Keys:
    """The number of keys, and of Spark's internal keys."""

    own: int
    internal: int = 0


def _keys(action: TakeSnapshot, restored: Restored) -> _Keys:
    base = restored.base
    if base is not None and base.column_families and restored.report.skipped_snapshots:
        # The damaged snapshot may name families that the older one does not, even families without a key.
        raise CorruptFile(
            f"is damaged ({restored.report.skipped_snapshots[0]}); an older snapshot cannot replace it, because it may "
            "lack column families",
            path=action.store.snapshot(action.load.base),
            hint="restore it from a backup",
        )
    if base is None or not base.column_families:
        return _Keys(restored.database.count_keys() if restored.keys is None else restored.keys)
    from statekeeper.statestore.format.family_rows import FAMILY_BYTES

    # Each key starts with the number of its family: two bytes, little-endian.
    names_of = {number.to_bytes(FAMILY_BYTES, "little"): name for name, number in base.column_families.items()}
    counts = {"own": 0, "internal": 0}
    for number, count in restored.database.count_by_beginning(FAMILY_BYTES).items():
        if number not in names_of:
            raise UnknownFormatVersion(
                f"the state of {action.version.in_words} has keys of column family {int.from_bytes(number, 'little')}, and "
                "its base does not name that family; no snapshot was written",
                path=action.store.snapshot(action.load.base),
                hint="restore the snapshot that Spark wrote when the family was added",
            )
        counts["internal" if base.internal_families.get(names_of[number], False) else "own"] += count
    return _Keys(**counts)


def _metadata(
    action: TakeSnapshot, base: SnapshotMetadata | None, tables: tuple[TableFile, ...], keys: _Keys
) -> SnapshotMetadata:
    """Return the metadata of the snapshot: the metadata of its base with new tables, counts, and maybe a new header. The
    base names the column families; changelogs do not."""
    if base is None:
        return SnapshotMetadata(header=action.header or "v1", tables=tables, key_count=keys.own, column_families={})
    counted = replace(base, key_count=keys.own, internal_key_count=keys.internal)
    return replace(counted, header=action.header or base.header, tables=tables, archived_logs=())
