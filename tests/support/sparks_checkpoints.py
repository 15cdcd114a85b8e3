"""Checkpoints as Spark leaves them, made without Spark. tests/interop/test_sparks_damages.py asks Spark about real ones."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable

from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.checksum import checksum
from statekeeper.statestore.format.logs import STATE_CONF, CommitLog, OffsetLog
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.storage import Storage
from tests.support.checkpoints import NO_ROWS, ROOT_ID, Checkpoint
from tests.support.hosts import column

STORE = StorePath(0, 0)


def commit(storage: Storage, batch: int, ids: Iterable[str] | None, conf: dict[str, str] = STATE_CONF) -> None:
    storage.replace(
        names.offsets(batch),
        logs.encode_offsets(OffsetLog(watermark_ms=0, timestamp_ms=0, conf=conf, sources=('"a source"',))),
    )
    of_operator = None if ids is None else {0: tuple((one,) for one in ids)}
    storage.replace(names.commits(batch), logs.encode_commit(CommitLog(0, of_operator)))


def add_schema(storage: Storage) -> None:
    storage.create(names.state_schema(0), operators.encode_schema(NO_ROWS.key_json, NO_ROWS.value_json))


def describe(storage: Storage, partitions: int = 1, path: str = names.operator_metadata(0)) -> None:
    storage.create(names.QUERY_METADATA, logs.encode_metadata(ROOT_ID))
    info = operators.StoreInfo(name=names.DEFAULT_STORE, prefix_columns=0, partitions=partitions)
    add_schema(storage)
    storage.create(path, operators.encode_operator(operators.OperatorMetadata(0, "agg", (info,))))


def changelog(number: int, lineage: tuple[VersionId, ...] | None = None) -> bytes:
    body = io.BytesIO()
    writer = ChangelogWriter(body, Header(lineage))
    writer.append(column([b"key %d" % number]), column([b"value %d" % number]))
    writer.finish()
    return body.getvalue()


def add_sidecar(storage: Storage, path: str) -> None:
    said = checksum([storage.read(path)])
    body = {"algorithm": "CRC32C", "value": said.value, "mainFileSize": said.size_bytes, "timestampMs": 1}
    storage.replace(names.sidecar(path), json.dumps(body).encode())


def path_of(checkpoint: Checkpoint, kind: str, version: int, partition: int = 0) -> str:
    store, found = checkpoint.stores[partition], checkpoint.versions[version][partition]
    return store.changelog(found) if kind == "changelog" else store.snapshot(found)
