"""Snapshots of a rewrite for Spark's RocksDB provider: a zip and SST files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from statekeeper.statestore import catalog
from statekeeper.statestore.engine.rocks import Database, EngineLimits
from statekeeper.statestore.format.family_rows import FAMILY_BYTES, family_id
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.snapshot import Snapshot, SnapshotMetadata, TableFile, encode_snapshot, is_small_file
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance import snapshot
from statekeeper.statestore.maintenance.processes import Caller
from statekeeper.statestore.maintenance.rewrites.closed import ClosedDatabase
from statekeeper.statestore.maintenance.rewrites.read import BLOCK_BYTES
from statekeeper.statestore.storage import Storage, at_once
from statekeeper.statestore.switch_journal import Begun, Made

TABLE_BYTES = 64 * 1024 * 1024
"""Keys and values of a table, as many as in Spark's tables."""


@dataclass(frozen=True)
class NewDatabases:
    """The databases of the new partitions, below `folder`.

    `families`: the metadata that names the column families; None for stores without families.
    """

    folder: Path
    families: SnapshotMetadata | None

    def write(self, target: StorePath, rows: Iterator[tuple[bytes, bytes]]) -> None:
        """Write the rows, whose keys ascend, into a new database, and capture its files."""
        with Database.create(self.path(target), EngineLimits(block_bytes=BLOCK_BYTES)) as database:
            database.apply(_tables(rows), None)
            if self.families is None:
                database.capture(self.captured(target))

    def path(self, target: StorePath) -> Path:
        """The folder of a database."""
        return self.folder / f"target-{target.partition}"

    def captured(self, target: StorePath) -> Path:
        """The folder with links to the files of a snapshot. With column families, `RocksDbSnapshots` makes it."""
        return self.folder / f"captured-{target.partition}"


@dataclass(frozen=True, kw_only=True)
class RocksDbSnapshots:
    """Publishes the databases of the new partitions. `call`: runs what needs local files only."""

    storage: Storage
    begun: Begun
    conf: StateConf
    new: NewDatabases
    call: Caller

    def publish(self, target: StorePath, digest: str) -> Made:
        """Publish a database, tables first and the zip last, and compare the published rows with `digest`."""
        version, captured = self.begun.stores[target], self.new.captured(target)
        metadata = self._metadata(target, int(digest.partition(":")[0]))
        files = catalog.files(self.storage, target.folder).of(target)
        tables = tables_of(self.begun, files)
        # An interrupted run may have published the snapshot, or only a part of its tables. A snapshot is compared below.
        if version not in files.snapshots:
            self.storage.delete(target.table_file(name) for name in tables)
            tables = self._upload(target, captured, metadata)
        back = self.new.folder / f"back-{target.partition}"
        conf = replace(self.conf, provider=target.provider)
        snapshot.require_same(
            self.storage, target, version, digest, back, conf=conf, at_hand={}, digest_of=self._digest_of
        )
        return Made(digest, tables)

    def _digest_of(self, database: Database) -> str:
        if self.call.is_here:
            return database.digest()
        database.close()
        return self.call(self._closed(database.path).digest)

    def _closed(self, path: Path) -> ClosedDatabase:
        """A database. With column families, its options name Spark's merge operator: see `rocksdb_files`."""
        delimiter = None if self.new.families is None else self.conf.merge_delimiter
        return ClosedDatabase(path=path, limits=EngineLimits(block_bytes=BLOCK_BYTES), merge_delimiter=delimiter)

    def _upload(self, target: StorePath, captured: Path, metadata: SnapshotMetadata) -> tuple[str, ...]:
        """Upload the tables and then the zip. Return the names of the tables."""
        tables = tuple(
            TableFile(path.name, f"{path.stem}{_ending(self.begun)}", path.stat().st_size)
            for path in sorted(captured.glob("*.sst"))
        )

        def upload(table: TableFile) -> None:
            self.storage.create(target.table_file(table.dfs_name), captured / table.local_name)

        at_once(upload, tables)
        small = {path.name: path.read_bytes() for path in captured.iterdir() if is_small_file(path.name)}
        body = encode_snapshot(Snapshot(small, replace(metadata, tables=tables)))
        self.storage.create(target.snapshot(self.begun.stores[target]), body)
        return tuple(table.dfs_name for table in tables)

    def _metadata(self, target: StorePath, rows: int) -> SnapshotMetadata:
        header, families = self.begun.header, self.new.families
        if families is None:
            return SnapshotMetadata(header=header, tables=(), key_count=rows, column_families={})
        names = {number: name for name, number in families.column_families.items()}
        own = internal = 0
        with self._closed(self.new.path(target)).open() as database:
            database.capture(self.new.captured(target))
            counts = database.count_by_beginning(FAMILY_BYTES)
        for beginning, count in counts.items():
            if families.internal_families.get(names[family_id(beginning)], False):
                internal += count
            else:
                own += count
        return replace(families, header=header, key_count=own, internal_key_count=internal, archived_logs=())


def _tables(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    """Split the rows of a database into tables: RocksDB keeps the filter and the index of a table in memory until its end.
    Each is read before the next."""
    for first in rows:
        yield itertools.chain([first], _until(rows, TABLE_BYTES - len(first[0]) - len(first[1])))


def _until(rows: Iterator[tuple[bytes, bytes]], size_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    while size_bytes > 0 and (row := next(rows, None)) is not None:
        size_bytes -= len(row[0]) + len(row[1])
        yield row


def tables_of(begun: Begun, files: catalog.StoreFiles) -> tuple[str, ...]:
    """Return the names of the tables of a store that a rewrite has uploaded, whether a snapshot names them or not."""
    return tuple(sorted(name for name in files.tables if name.endswith(_ending(begun))))


def _ending(begun: Begun) -> str:
    """The end of the name of each table of a rewrite."""
    return f"-{begun.run}.sst"
