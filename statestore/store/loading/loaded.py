"""The results of a load: an open version and a report."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from statekeeper.statestore.checkpoint.lineage import BaseKind, Lineage
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.snapshot import SnapshotMetadata
from statekeeper.statestore.store.engine.rocks import Database


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """The work of one load. Bytes, files and requests are those of storage; `base` is the kind of base.

    `skipped_snapshots`: the snapshots that could not be the base, each with its problem. `kept_tables`: tables of the base
    that were kept on local disk. `base_version`, `base_milliseconds`: the base, and the time to fetch and open it; of a
    load from storage.
    """

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
    kept_tables: int = 0
    base_version: VersionId | None = None
    base_milliseconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A version, open for reading: a database, and in `ahead` the changes of later versions that it does not contain yet.

    `lineage`: the lineage of the next version; `ahead_versions`: the number of later versions; `private`: a directory that
    `close` removes.
    """

    database: Database
    lineage: Lineage
    ahead: dict[bytes, bytes | None] = field(default_factory=dict)
    ahead_versions: int = 0
    private: Path | None = None

    def close(self) -> None:
        """Close the database. Remove it if it is private."""
        self.database.close()
        if self.private is not None:
            shutil.rmtree(self.private, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A version in its own directory, open for writing.

    base      the metadata of the snapshot that the replay started from; None if it started from version 0
    lineage   the lineage of the next version
    keys      the number of keys; None if only `Database.count_keys` can determine it
    report    without bytes, requests, time and the files of changelogs
    """

    database: Database
    base: SnapshotMetadata | None
    lineage: Lineage
    keys: int | None
    report: LoadReport
