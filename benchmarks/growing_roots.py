"""Checkpoints after any number of batches, written without running Spark: files of the retained versions, and logs."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.snapshot import Snapshot, SnapshotMetadata, encode_snapshot

VERSIONS = 9
"""Versions of each store with files: a snapshot and newer changelogs."""

_LINKS = 20_000
"""File systems limit the number of hard links to a file."""


@dataclass(frozen=True)
class Shape:
    """Size of a native checkpoint. `logged`: number of newest batches in its logs."""

    partitions: int
    batches: int
    logged: int


def make(folder: Path, shape: Shape) -> None:
    """Write the checkpoint. Old log entries are hard links to a few files: maintenance does not compare their contents."""
    ids = RandomIds()
    stores = [StorePath(0, partition) for partition in range(shape.partitions)]
    info = operators.StoreInfo(name=names.DEFAULT_STORE, prefix_columns=1, partitions=shape.partitions)
    _write(folder / names.QUERY_METADATA, logs.encode_metadata(ids.fresh()))
    operator = operators.OperatorMetadata(0, "stateStoreSave", (info,))
    _write(folder / names.operator_metadata(0), operators.encode_operator(operator))
    conf = {**logs.STATE_CONF, "spark.sql.shuffle.partitions": str(shape.partitions)}
    offsets = logs.encode_offsets(logs.OffsetLog(watermark_ms=0, timestamp_ms=0, conf=conf, sources=("{}",)))
    first = max(0, shape.batches - VERSIONS)
    lineages: list[tuple[VersionId, ...]] = [() for _ in stores]
    for batch in range(first, shape.batches):
        new = [VersionId(batch + 1, ids.fresh()) for _ in stores]
        for store, version, lineage in zip(stores, new, lineages, strict=True):
            sink = io.BytesIO()
            ChangelogWriter(sink, Header(lineage)).finish()
            _write(folder / store.changelog(version), sink.getvalue())
            if batch == first and batch:
                empty = SnapshotMetadata(header="v1", tables=(), key_count=0, column_families={})
                files = {"CURRENT": b"MANIFEST-000001\n", "MANIFEST-000001": b"x"}
                _write(folder / store.snapshot(version), encode_snapshot(Snapshot(files, empty)))
        lineages = [(*lineage, version) for lineage, version in zip(lineages, new, strict=True)]
        _log(folder, batch, new)
        _write(folder / names.offsets(batch), offsets)
    old = range(max(0, shape.batches - shape.logged), first)
    for number, batch in enumerate(old):
        if number % _LINKS == 0:
            fresh = [VersionId(batch + 1, ids.fresh()) for _ in stores]
            _log(folder, batch, fresh)
            _write(folder / names.offsets(batch), offsets)
            sources = folder / names.commits(batch), folder / names.offsets(batch)
        else:
            os.link(sources[0], folder / names.commits(batch))
            os.link(sources[1], folder / names.offsets(batch))


def _log(folder: Path, batch: int, versions: list[VersionId]) -> None:
    ids: logs.ByStore = {0: tuple((str(version.id),) for version in versions)}
    _write(folder / names.commits(batch), logs.encode_commit(logs.CommitLog(0, ids)))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
