"""A snapshot brought onto this host: the database that a replay starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from statestore.engine.rocks import Database, EngineLimits, translated
from statestore.errors import CorruptFile, LocalStateDamaged, ObjectMissing
from statestore.format.names import StorePath, VersionId
from statestore.format.snapshot import SnapshotMetadata, TableFile, read_snapshot
from statestore.format.state_conf import StateConf
from statestore.storage import Storage, at_once

OF_ANOTHER_PAST = "is of another version of that number, which was given up: the query was taken back since"


class SnapshotUnusable(Exception):
    """A snapshot that was to be the base is missing or damaged; the text says which file, and how."""


@dataclass(frozen=True)
class Base:
    """A snapshot, open for writing in a directory that nobody else knows, and what its metadata says."""

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
) -> Base:
    """Fetch the snapshot of a version into the new directory `path`, and open it. `at_hand`: tables that need not be
    fetched, by their name in storage: files on the same disk.

    Raises `SnapshotUnusable`; `UnknownFormatVersion` for one that this release does not know; `StorageError`.
    """
    zip_path = store.snapshot(version)
    try:
        snapshot = read_snapshot(storage.read(zip_path), zip_path)
        if not snapshot.is_of(version):
            raise CorruptFile(OF_ANOTHER_PAST, path=zip_path)
        with translated(path):
            path.mkdir(parents=True)
            for name, body in snapshot.files.items():
                (path / name).write_bytes(body)

        def fetch(table: TableFile) -> None:
            source, target = store.table_file(table.dfs_name), path / table.local_name
            held = (at_hand or {}).get(table.dfs_name)
            if held is not None:
                with translated(path):
                    target.hardlink_to(held)
                size = target.stat().st_size
            else:
                size = storage.download(source, target)
            if size != table.size_bytes:
                raise CorruptFile(f"has {size:,} bytes, its snapshot says {table.size_bytes:,}", path=source)

        at_once(fetch, snapshot.metadata.tables)
        # Only stores with column families are ever merged into.
        if snapshot.metadata.column_families:
            database = Database.open_with_merges(path, limits, conf.merge_delimiter)
        else:
            database = Database.open_for_writing(path, limits)
        return Base(database, snapshot.metadata)
    except (ObjectMissing, CorruptFile, LocalStateDamaged) as error:
        raise SnapshotUnusable(str(error)) from error
