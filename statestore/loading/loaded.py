"""What a load gives: a version that is open, and what it took."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from statestore.engine.rocks import Database
from statestore.format.snapshot import SnapshotMetadata
from statestore.lineage import BaseKind, Lineage


@dataclass
class LoadMetrics:
    """What a load did. Bytes, files and requests are those of storage; `base` is where it started."""

    base: BaseKind = BaseKind.NOTHING
    replayed_changelogs: int = 0
    replayed_keys: int = 0
    fetched_bytes: int = 0
    fetched_files: int = 0
    requests: int = 0
    milliseconds: float = 0.0
    used_private_copy: bool = False
    replaced_damaged_copy: bool = False
    skipped_snapshots: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """A version, open for reading: a database, and over it the changes of the versions that are not in it yet.

    `lineage` is what a successor carries; `private` is removed when it is closed.
    """

    database: Database
    lineage: Lineage
    ahead: dict[bytes, bytes | None] = field(default_factory=dict)
    private: Path | None = None

    def close(self) -> None:
        """Close the database, and remove it if nobody else may use it."""
        self.database.close()
        if self.private is not None:
            shutil.rmtree(self.private, ignore_errors=True)


@dataclass(frozen=True)
class Restored:
    """A version in a directory of its own, open for writing.

    `base` is the metadata of the snapshot that it grew from, None when it grew from nothing; `lineage` as in `Loaded`;
    `keys` how many it holds, None when only `Database.count_keys` can say it.
    """

    database: Database
    base: SnapshotMetadata | None
    lineage: Lineage
    keys: int | None
    metrics: LoadMetrics
