"""Publishes a snapshot while other processes write and delete: tables first, the zip last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path

from statekeeper.statestore import catalog
from statekeeper.statestore.chain import look_at_snapshot
from statekeeper.statestore.clock import Ids
from statekeeper.statestore.engine.rocks import Database, EngineLimits
from statekeeper.statestore.errors import AlreadyExists, CorruptFile, ObjectMissing, RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.snapshot import SnapshotMetadata, TableFile
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.loading.base import SnapshotUnusable, open_base
from statekeeper.statestore.maintenance import announcements
from statekeeper.statestore.maintenance.snapshot.decisions import TakeSnapshot
from statekeeper.statestore.storage import Entry, Storage, at_once


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


def require_tables(storage: Storage, action: TakeSnapshot, tables: tuple[TableFile, ...], captured: Path) -> None:
    # Race: a deleter that saw a table before a zip named it deletes the table after the zip is visible. All tables are
    # still on local disk, so they are uploaded again, and now a zip names them. If the deleter stalls and deletes one
    # again: no retention run uses this snapshot as a base during the lifetime of the deleter.
    gone = _gone(tables, _files(storage, action.store).tables)
    if gone:
        at_once(lambda table: upload(storage, action.store, table, captured), gone)
        gone = _gone(tables, _files(storage, action.store).tables)
    if gone:
        raise ObjectMissing(
            "was deleted twice after its upload; the new snapshot needs this SST file, so no snapshot was written",
            path=action.store.table_file(gone[0].dfs_name),
            hint="stop the process that deletes files in this checkpoint, run: statekeeper repair ROOT --apply "
            "--confirm-stopped, then this command again",
        )


def require_same(
    storage: Storage,
    store: StorePath,
    version: VersionId,
    digest: str,
    path: Path,
    *,
    conf: StateConf,
    at_hand: Mapping[str, Path],
    digest_of: Callable[[Database], str] = Database.digest,
) -> None:
    """Read a published snapshot back into the new directory `path`, and compare its keys and values with `digest`.

    `at_hand`: local copies of its tables, by name in storage. `digest_of`: returns the digest of a
    database; it may close the database, so that another process can open it.
    Raises `CorruptFile` if they differ.
    """
    try:
        limits = EngineLimits(has_filters=False)
        with open_base(storage, store, version, path, limits, conf, at_hand=at_hand).database as database:
            found = digest_of(database)
        problem = f"the digest of its rows is {found}, expected {digest}"
    except SnapshotUnusable as error:
        found, problem = "", str(error)
    if found != digest:
        raise CorruptFile(
            f"does not contain the state of version {version.version}: {problem}",
            path=store.snapshot(version),
            hint="run: statekeeper repair ROOT --deep --apply --confirm-stopped, then this command again",
        )


def _files(storage: Storage, store: StorePath) -> catalog.StoreFiles:
    """List the tables of the store."""
    return catalog.by_store(storage.list(f"{store.folder}/{names.TABLES}".rstrip("/"))).of(store)


def _gone(tables: tuple[TableFile, ...], there: Mapping[str, Entry]) -> list[TableFile]:
    return [table for table in tables if table.dfs_name not in there]
