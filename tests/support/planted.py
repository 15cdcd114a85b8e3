"""Damage that no checksum reveals: snapshots and changelogs with other rows, written as their own writer writes them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.records import changes_of
from statekeeper.statestore.format.snapshot import Snapshot, encode_snapshot, is_small_file
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.maintenance.upkeep.snapshot.execute import named, upload
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.rocks import EngineLimits
from statekeeper.statestore.store.loading.base import open_base

Rows = Mapping[bytes, bytes]
Change = Callable[[dict[bytes, bytes]], Rows]


def in_snapshot(
    storage: Storage, store: StorePath, version: VersionId, change: Change, scratch: Path, conf: StateConf = OURS
) -> None:
    """Replace a snapshot by one with other rows: whole tables, right checksums, the right number of keys."""
    path, ids = scratch / RandomIds().fresh(), RandomIds()
    base = open_base(storage, store, version, path / "database", EngineLimits(), conf)
    with base.database as database:
        before = {key: value for keys, values in database.scan() for key, value in zip(keys, values, strict=True)}
        after = dict(change(dict(before)))
        keys = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        assert keys
        database.apply([[(key, after.get(key)) for key in keys]], None)
        database.capture(path / "captured")
    tables, fresh = named(path / "captured", base.metadata, frozenset(), ids)
    for table in fresh:
        upload(storage, store, table, path / "captured")
    small = {one.name: one.read_bytes() for one in (path / "captured").iterdir() if is_small_file(one.name)}
    more = len(after) - len(before)
    metadata = replace(base.metadata, tables=tables, key_count=base.metadata.key_count + more, archived_logs=())
    storage.replace(store.snapshot(version), encode_snapshot(Snapshot(small, metadata, digest=version.digest)))


def in_changelog(
    storage: Storage,
    store: StorePath,
    version: VersionId,
    change: Callable[[dict[bytes, bytes | None]], Mapping[bytes, bytes | None]],
    conf: StateConf = OURS,
) -> None:
    """Replace a changelog by one with other records, and the same header."""
    path = store.changelog(version)
    header, pieces = changes_of(storage.read(path), path, conf)
    records = dict(change({key: value for piece in pieces for key, value in piece.pairs()}))
    body = io.BytesIO()
    writer = ChangelogWriter(body, header)
    writer.append(pa.array(list(records), pa.large_binary()), pa.array(list(records.values()), pa.large_binary()))
    writer.finish()
    storage.replace(path, body.getvalue())
