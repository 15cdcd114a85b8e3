"""Real snapshots in Spark's format from a closed RocksDB, as maintenance or Spark writes them."""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocksdict import AccessType, Checkpoint, DBCompressionType, Options, Rdict

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.snapshot import Snapshot, TableFile, encode_snapshot, read_snapshot
from statekeeper.statestore.maintenance.executors import MEMORY_BYTES
from statekeeper.statestore.maintenance.upkeep.snapshot import (
    SnapshotPlan,
    SnapshotPolicy,
    Taken,
    TakeSnapshot,
    execute,
    gather,
    plan,
)
from statekeeper.statestore.storage import Storage

ROWS_PER_TABLE = 4
_OURS = "rocksdict-config.json"


def snapshot_files(state: Mapping[bytes, bytes], scratch: Path) -> dict[str, bytes]:
    """Return the files of a snapshot by their names in a store's folder, the zip as `zip`. It has several tables if there
    are more rows than `ROWS_PER_TABLE`."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_disable_auto_compactions(True)
    database = Rdict(str(scratch / "database"), options)
    for number, (key, value) in enumerate(sorted(state.items()), start=1):
        database[key] = value
        if number % ROWS_PER_TABLE == 0:
            database.flush(True)
    database.flush(True)
    Checkpoint(database).create_checkpoint(str(scratch / "checkpoint"))
    database.close()
    return _as_spark_stores_it(scratch / "checkpoint", len(state))


def publish_snapshot(
    storage: Storage, store: StorePath, version: VersionId, state: Mapping[bytes, bytes], scratch: Path
) -> dict[str, str]:
    """Put a snapshot into storage, tables first, and say where everything is: paths by local name, the zip as `zip`."""
    scratch = scratch / f"snapshot-{uuid.uuid4()}"
    scratch.mkdir(parents=True)
    paths: dict[str, str] = {}
    for name, body in snapshot_files(state, scratch).items():
        path = store.snapshot(version) if name == "zip" else store.table_file(name)
        storage.create(path, body)
        paths[name if name == "zip" else f"{name.split('-')[0]}.sst"] = path
    return paths


def _as_spark_stores_it(checkpoint: Path, key_count: int) -> dict[str, bytes]:
    suffix = uuid.uuid4()
    tables = sorted(checkpoint.glob("*.sst"))
    stored = {f"{table.stem}-{suffix}.sst": table.read_bytes() for table in tables}
    metadata = {
        "sstFiles": [
            {"localFileName": f"{name.split('-')[0]}.sst", "dfsSstFileName": name, "sizeBytes": len(body)}
            for name, body in stored.items()
        ],
        "numKeys": key_count,
        "numInternalKeys": 0,
        "columnFamilyMapping": {},
        "columnFamilyTypeMap": {},
        "maxColumnFamilyId": 0,
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(checkpoint.iterdir()):
            if file.suffix != ".sst" and file.name != _OURS:
                archive.writestr(file.name, file.read_bytes())
        archive.writestr("metadata", "v1\n" + json.dumps(metadata, separators=(",", ":")))
    return {**stored, "zip": out.getvalue()}


def rows_of(path: Path) -> dict[bytes, bytes]:
    """Return the rows of a database directory, read with RocksDB."""
    database = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        return dict(database.items())
    finally:
        database.close()


def planned(storage: Storage, *, take_all: bool = True, changelogs: int = 50) -> SnapshotPlan:
    return plan(gather(storage), SnapshotPolicy(changelogs=changelogs), take_all=take_all)


def take(storage: Storage, scratch: Path, **how: Any) -> list[Taken]:
    return [one(storage, action, scratch) for action in planned(storage, **how).take]


def one(storage: Storage, action: TakeSnapshot, scratch: Path, memory_bytes: int = MEMORY_BYTES) -> Taken:
    return execute(
        storage, action, scratch=scratch / "scratch", clock=SystemClock(), ids=RandomIds(), memory_bytes=memory_bytes
    )


def with_a_table_of_its_own(storage: Storage, path: str, *, by_spark: bool) -> str:
    """Add a table that only this snapshot names, and return its path. `by_spark`: zip it with times, as Spark does."""
    table = TableFile("009999.sst", f"009999-{RandomIds().fresh()}.sst", 7)
    found = read_snapshot(storage.read(path), path)
    metadata = replace(found.metadata, tables=(*found.metadata.tables, table))
    packed = io.BytesIO(encode_snapshot(Snapshot(found.files, metadata)))
    if by_spark:
        ours, packed = zipfile.ZipFile(packed), io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as theirs:
            for name in ours.namelist():
                theirs.writestr(zipfile.ZipInfo(name, (2026, 3, 1, 0, 0, 0)), ours.read(name))
    storage.replace(path, packed.getvalue())
    place = f"{path.rpartition('/')[0]}/{names.TABLES}{table.dfs_name}"
    storage.create(place, b"a table")
    return place
