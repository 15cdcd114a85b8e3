"""Snapshots of Spark's default provider, written by Statekeeper's encoder into a native checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from statekeeper.statestore.contents.rows import contents_at, layout, opened
from statekeeper.statestore.format.hdfs_backed import HdfsBackedWriter
from statekeeper.statestore.format.logs import CODEC, parse_offsets
from statekeeper.statestore.format.names import offsets
from statekeeper.statestore.storage import open_storage
from tests.support.maintainers import MAINTAINER
from tests.support.native import NativeQuery

Change = Callable[[Sequence[bytes], Sequence[bytes]], tuple[Sequence[bytes], Sequence[bytes]]]


def take_snapshots(query: NativeQuery, scratch: Path, *, change: Change = lambda keys, values: (keys, values)) -> None:
    """Write a snapshot of each store's head, and delete all deltas. `change`: of the first rows of each store."""
    storage = open_storage(query.root)
    contents = contents_at(storage)
    assert contents is not None
    conf = parse_offsets(storage.read(offsets(contents.batch)), "offsets").conf
    for store, head in contents.stores.items():
        path = query.checkpoint / store.snapshot(head)
        found = opened(
            contents, store, layout(contents, store), scratch=scratch, clock=MAINTAINER.clock, ids=MAINTAINER.ids
        )
        with found as rows, path.open("wb") as sink:
            writer = HdfsBackedWriter(sink, conf[CODEC], row_checksums=contents.conf.row_checksums)
            for number, pairs in enumerate(rows.pairs()):
                writer.append(*(change(pairs.keys, pairs.values) if number == 0 else (pairs.keys, pairs.values)))
            writer.finish()
        for delta in path.parent.glob("*.delta"):
            delta.unlink()
