"""File sources of checkpoints in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.storage import Storage


def read_files(storage: Storage, *folders: str) -> None:
    """Let each batch read one file from each of these file sources: `sources/<folder>/<batch>`."""
    newest = catalog.newest_batch(storage)
    assert newest is not None
    for batch in range(newest + 1):
        read_file(storage, batch, *folders)


def read_file(storage: Storage, batch: int, *folders: str) -> None:
    read_up_to(storage, batch, dict.fromkeys(folders, batch))


def read_up_to(storage: Storage, batch: int, newest: Mapping[str, int | None], *, with_ids: bool = False) -> None:
    """Let a batch read from file sources up to these entries; None if it reads none. `with_ids`: offsets of v2."""
    path = names.offsets(batch)
    log = logs.parse_offsets(storage.read(path), path)
    lines = {source: "-" if entry is None else f'{{"logOffset":{entry}}}' for source, entry in newest.items()}
    positions = tuple(f"{source}:{line}" if with_ids else line for source, line in lines.items())
    metadata = {} if with_ids else None
    storage.replace(
        path, logs.encode_offsets(replace(log, timestamp_ms=batch, sources=positions, source_metadata=metadata))
    )
    for folder, entry in newest.items():
        listed = f"{names.SOURCES}/{folder}/{entry}"
        if entry is not None and storage.stat(listed) is None:
            storage.create(listed, b'v1\n{"path":"file:///gone/%d.json","timestamp":1,"batchId":%d}' % (batch, entry))
