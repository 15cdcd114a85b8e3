"""File sources of checkpoints in tests."""

from __future__ import annotations

from statestore import catalog
from statestore.format import logs, names
from statestore.storage import Storage


def read_files(storage: Storage, *folders: str) -> None:
    """Let each batch read one file from each of these file sources: `sources/<folder>/<batch>`."""
    newest = catalog.newest_batch(storage)
    assert newest is not None
    for batch in range(newest + 1):
        read_file(storage, batch, *folders)


def read_file(storage: Storage, batch: int, *folders: str) -> None:
    path = names.offsets(batch)
    log = logs.parse_offsets(storage.read(path), path)
    positions = tuple(f'{{"logOffset":{batch}}}' for _ in folders)
    offsets = logs.OffsetLog(watermark_ms=0, timestamp_ms=batch, conf=log.conf, sources=positions)
    storage.replace(path, logs.encode_offsets(offsets))
    for folder in folders:
        entry = b'v1\n{"path":"file:///gone/%d.json","timestamp":1,"batchId":%d}' % (batch, batch)
        storage.create(f"{names.SOURCES}/{folder}/{batch}", entry)
