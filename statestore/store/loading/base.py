"""The base of a replay: a snapshot, fetched onto this host and opened."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.errors import (
    CorruptFile,
    LocalStateDamaged,
    LocalStateError,
    NotAFile,
    ObjectMissing,
)
from statekeeper.statestore.checkpoint.sidecars import misfit, readable
from statekeeper.statestore.format import hdfs_backed, names
from statekeeper.statestore.format.changelog import Changes
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.records import windows
from statekeeper.statestore.format.snapshot import (
    OF_ANOTHER_PAST,
    SnapshotMetadata,
    TableFile,
    read_snapshot,
    rocksdb_files,
)
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.format.table import NotVerified, require_whole
from statekeeper.statestore.storage import Storage, at_once
from statekeeper.statestore.storage.content import require_size
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits, translated


class SnapshotUnusable(Exception):
    """A snapshot that was chosen as the base is missing or damaged. The text has the file and its problem."""


_TABLE_NUMBER = re.compile(r"table file (\d+)")


def blamed_file(what: str, store: StorePath, version: VersionId, tables: Collection[TableFile]) -> str:
    """Find the file in storage that an error of RocksDB names: a table by its local name, otherwise the zip."""
    number = _TABLE_NUMBER.search(what)
    local = f"{number[1]:0>6}.sst" if number else None
    named = [table for table in tables if table.local_name in what or table.local_name == local]
    return store.table_file(named[0].dfs_name) if len(named) == 1 else store.snapshot(version)


@dataclass(frozen=True)
class Base:
    """A snapshot, open for writing in a private directory, and its metadata."""

    database: Database
    metadata: SnapshotMetadata


def open_base(
    storage: Storage,
    store: StorePath,
    version: VersionId,
    path: Path,
    limits: EngineLimits,
    conf: StateConf,
    *,
    at_hand: Mapping[str, Path] | None = None,
    link: Callable[[str, Path], bool] = lambda source, target: False,
    compare_sidecar: bool = False,
    verified: bool = False,
) -> Base:
    """Fetch the snapshot of a version into the new directory `path`, and open it. That of Spark's default provider is
    written into a new database.

    at_hand          tables on the same disk that need not be fetched, by their name in storage
    link             links a kept copy of the table with this path in storage to a new path; False if there is none
    compare_sidecar  reject a snapshot whose sidecar does not fit, as Spark does in structure V2; one request
    verified         verify the checksum of every block

    Raises `SnapshotUnusable`; `UnknownFormatVersion` for an unknown format; `StorageError`.
    """
    if store.provider is Provider.HDFS_BACKED:
        return _written(storage, store.snapshot(version), path, limits, conf)
    zip_path = store.snapshot(version)
    tables: tuple[TableFile, ...] = ()
    unverified: list[str] = []
    try:
        body = storage.read(zip_path)
        snapshot = read_snapshot(body, zip_path)
        if compare_sidecar and version.id is not None and (why := misfit(storage, zip_path, body)) is not None:
            raise CorruptFile(why, path=names.sidecar(zip_path))
        if not snapshot.is_of(version):
            raise CorruptFile(OF_ANOTHER_PAST, path=zip_path)
        files = rocksdb_files(snapshot, zip_path)
        tables = snapshot.metadata.tables
        with translated(path):
            path.mkdir(parents=True)
            for name, body in files.items():
                (path / name).write_bytes(body)

        def fetch(table: TableFile) -> None:
            source, target = store.table_file(table.dfs_name), path / table.local_name
            held = (at_hand or {}).get(table.dfs_name)
            if held is not None:
                with translated(path):
                    target.hardlink_to(held)
            if held is not None or link(source, target):
                require_size(source, target.stat().st_size, table.size_bytes)
            else:
                try:
                    storage.download(source, target, expected_bytes=table.size_bytes)
                except CorruptFile as error:
                    raise CorruptFile(error.what, path=source) from error
            if verified:
                try:
                    require_whole(readable(target), source)
                except NotVerified:
                    unverified.append(source)

        at_once(fetch, snapshot.metadata.tables)
        # Merges occur only in stores with column families.
        if snapshot.metadata.column_families:
            database = Database.open_with_merges(path, limits, conf.merge_delimiter)
        else:
            database = Database.open_for_writing(path, limits)
        if unverified:
            _require_readable(database)
        return Base(database, snapshot.metadata)
    except LocalStateDamaged as error:
        # The caller removes the local directory. Name the damaged file in storage instead.
        what = error.what.replace(f"{path}/", "").replace(str(path), "the snapshot")
        raise SnapshotUnusable(f"{blamed_file(error.what, store, version, tables)}: {what}") from error
    except (ObjectMissing, NotAFile, CorruptFile) as error:
        raise SnapshotUnusable(f"{error.path}: {error.what}" if error.path else error.what) from error


_UNCOUNTED = SnapshotMetadata(header="", tables=(), key_count=-1, column_families={})
"""Snapshots of Spark's default provider have no metadata."""


def _written(storage: Storage, snapshot: str, path: Path, limits: EngineLimits, conf: StateConf) -> Base:
    """Write the rows of a snapshot of Spark's default provider into a new database. Raises as `open_base`."""
    fetched = path.with_name(f"{path.name}.snapshot")
    try:
        with translated(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.download(snapshot, fetched)
            pieces = hdfs_backed.read_snapshot(
                readable(fetched),
                snapshot,
                row_checksums=conf.row_checksums,
                most_record_bytes=limits.record_bytes(storage.limits),
            )
            database = Database.create(path, limits)
            try:
                database.apply(map(Changes.pairs, windows(pieces, limits.replay_bytes)), None)
            except BaseException:
                database.close()
                raise
        return Base(database, _UNCOUNTED)
    except (ObjectMissing, NotAFile, CorruptFile) as error:
        raise SnapshotUnusable(f"{snapshot}: {error.what}") from error
    finally:
        fetched.unlink(missing_ok=True)


def _require_readable(database: Database) -> None:
    """Scan all rows, so that RocksDB verifies the checksums of tables whose encoding `require_whole` does not know."""
    try:
        database.count_keys()
    except LocalStateDamaged:
        with contextlib.suppress(LocalStateError):
            database.close()
        raise
