"""Puts a snapshot into storage, where others write and delete at the same time: tables first, the zip last."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from statestore import catalog
from statestore.chain import look_at_snapshot
from statestore.clock import Ids
from statestore.engine.rocks import EngineLimits
from statestore.errors import AlreadyExists, CorruptFile, ObjectMissing, RefusedAsUnsafe
from statestore.format import names
from statestore.format.names import StorePath, VersionId
from statestore.format.snapshot import SnapshotMetadata, TableFile
from statestore.format.state_conf import StateConf
from statestore.loading.base import SnapshotUnusable, open_base
from statestore.maintenance import announcements
from statestore.maintenance.snapshot.decisions import TakeSnapshot
from statestore.storage import Entry, Storage, at_once


class Published(Enum):
    """How the making of a snapshot ended."""

    NEW = "made"
    THERE_ALREADY = "another maintainer was first"


def sources_now(storage: Storage, action: TakeSnapshot) -> dict[str, Entry | None]:
    """The changelogs that are replayed, as they are now, where one may be replaced by another of the same name."""
    paths = [action.store.changelog(version) for version in action.load.replay if version.id is None]
    found: dict[str, Entry | None] = {}

    def look(path: str) -> None:
        found[path] = storage.stat(path)

    at_once(look, paths)
    return found


def require_unchanged(storage: Storage, action: TakeSnapshot, before: Mapping[str, Entry | None]) -> None:
    # Losing schedule, in structure V1: an attempt that Spark believes dead replaces the changelog of its version while
    # it is replayed here, and what a restart would have replayed is not what the snapshot holds.
    changed = [path for path, entry in sources_now(storage, action).items() if entry != before[path]]
    if changed:
        raise RefusedAsUnsafe(
            "was replaced while it was replayed: there is no snapshot of it",
            path=changed[0],
            hint="run this again; in structure V2 it cannot happen",
        )


def require_still_unchanged(
    storage: Storage, action: TakeSnapshot, before: Mapping[str, Entry | None], body: bytes
) -> None:
    """The same once more, now that the snapshot is visible. A wrong one is deleted, unless another maintainer has put its
    own in place of it."""
    try:
        require_unchanged(storage, action, before)
    except RefusedAsUnsafe:
        storage.delete_unchanged(action.path, body)
        raise


def tables_pending_delete(storage: Storage, store: StorePath) -> frozenset[str]:
    """Names of the store's tables that a retention run is about to delete."""
    folder = f"{store.folder}/{names.TABLES}"
    return frozenset(p.removeprefix(folder) for p in announcements.pending_delete(storage) if p.startswith(folder))


def named(
    captured: Path, base: SnapshotMetadata | None, pending_delete: frozenset[str], ids: Ids
) -> tuple[tuple[TableFile, ...], list[TableFile]]:
    """The tables of a snapshot under their names in storage, and those of them that are not there yet.

    A table of the base that did not change keeps its name: RocksDB never uses a number again, nor changes a table. One
    that is about to be deleted is sent again under a name that nobody knows yet.
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
        # One of Spark's may name archived logs, too.
        there = catalog.files(storage, action.store.folder).get(action.store, catalog.StoreFiles())
        found = look_at_snapshot(storage, action.store, version, there)
        if not found.is_whole:
            raise CorruptFile(
                f"is there already and is damaged: {found.damage or f'its sidecar {found.sidecar}'}",
                path=path,
                hint="run: statekeeper repair ROOT --apply --confirm-stopped, then this again",
            ) from error
        return Published.THERE_ALREADY
    return Published.NEW


def _require_no_stray_sidecar(storage: Storage, path: str, version: VersionId) -> None:
    # Failure sequence: an executor writes the sidecar of its snapshot and dies; a snapshot is published under that name;
    # Spark finds that the sidecar does not fit, refuses the snapshot, and retention has deleted what it replaces.
    beside = names.sidecar(path)
    if version.id is not None and storage.stat(beside) is not None and storage.stat(path) is None:
        raise RefusedAsUnsafe(
            "is the sidecar of a snapshot that is not there: Spark would refuse the one that is written now",
            path=beside,
            hint="stop the query and run: statekeeper repair ROOT --apply --confirm-stopped, then this again",
        )


def require_tables(storage: Storage, action: TakeSnapshot, tables: tuple[TableFile, ...], captured: Path) -> None:
    # Losing schedule: a deleter that saw a table before any zip named it deletes it after the zip is visible. All
    # tables still lie here, those of the base too: they are sent again, and from now on a zip names them. Should it
    # sleep and delete one of them again, retention has rested nothing on this snapshot as long as the deleter can live.
    gone = _gone(tables, _files(storage, action.store).tables)
    if gone:
        at_once(lambda table: upload(storage, action.store, table, captured), gone)
        gone = _gone(tables, _files(storage, action.store).tables)
    if gone:
        raise ObjectMissing(
            "was deleted, sent again, and deleted again, while a snapshot names it",
            path=action.store.table_file(gone[0].dfs_name),
            hint="stop what deletes files in this checkpoint; then run: statekeeper repair ROOT --apply --confirm-stopped, "
            "and this again",
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
) -> None:
    """Read the snapshot of a version back into the new directory `path`, and compare the `digest` of its keys and values.
    `at_hand`: tables that were fetched before.

    Raises `CorruptFile` when what is read is not what was to be written.
    """
    try:
        with open_base(storage, store, version, path, EngineLimits(), conf, at_hand=at_hand).database as database:
            found = database.digest()
    except SnapshotUnusable as error:
        found = str(error)
    if found != digest:
        raise CorruptFile(
            f"does not hold what version {version.version} does: {found}, not {digest}",
            path=store.snapshot(version),
            hint="run: statekeeper repair ROOT --deep --apply --confirm-stopped, then this again",
        )


def _files(storage: Storage, store: StorePath) -> catalog.StoreFiles:
    """The store's tables, as they are now."""
    return catalog.files(storage, f"{store.folder}/{names.TABLES}".rstrip("/")).get(store, catalog.StoreFiles())


def _gone(tables: tuple[TableFile, ...], there: Mapping[str, Entry]) -> list[TableFile]:
    return [table for table in tables if table.dfs_name not in there]
