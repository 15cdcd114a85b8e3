"""Snapshots of a rewrite for Spark's default provider: one file with all rows of a version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from statekeeper.statestore.errors import AlreadyExists
from statekeeper.statestore.format.hdfs_backed import HdfsBackedWriter
from statekeeper.statestore.format.limits import MOST_RECORD_BYTES
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance import snapshot
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.switch_journal import Begun, Made

_PIECE_ROWS = 10_000


@dataclass(frozen=True, kw_only=True)
class NewFiles:
    """The snapshot files of the new partitions, below `folder`. `codec`, `row_checksums`: of the query;
    `most_record_bytes`: of the root."""

    folder: Path
    codec: str
    row_checksums: bool
    most_record_bytes: int = MOST_RECORD_BYTES

    def write(self, target: StorePath, rows: Iterator[tuple[bytes, bytes]]) -> None:
        """Write the rows into a new file. Raises `TooLarge`."""
        with self.path(target).open("wb") as file:
            writer = HdfsBackedWriter(
                file,
                self.codec,
                row_checksums=self.row_checksums,
                most_record_bytes=self.most_record_bytes,
                path=target.folder,
            )
            while piece := list(islice(rows, _PIECE_ROWS)):
                writer.append([key for key, _ in piece], [value for _, value in piece])
            writer.finish()

    def path(self, target: StorePath) -> Path:
        """The path of a file."""
        return self.folder / f"target-{target.partition}.snapshot"


@dataclass(frozen=True, kw_only=True)
class HdfsSnapshots:
    """Publishes the snapshot files of the new partitions."""

    storage: Storage
    begun: Begun
    conf: StateConf
    new: NewFiles

    def publish(self, target: StorePath, digest: str) -> Made:
        """Publish a file, and compare the published rows with `digest`."""
        version = self.begun.stores[target]
        # An interrupted run may have published it. It is compared below.
        with suppress(AlreadyExists):
            self.storage.create(target.snapshot(version), self.new.path(target))
        back = self.new.folder / f"back-{target.partition}"
        conf = replace(self.conf, provider=target.provider)
        snapshot.require_same(self.storage, target, version, digest, back, conf=conf, at_hand={})
        return Made(digest, ())
