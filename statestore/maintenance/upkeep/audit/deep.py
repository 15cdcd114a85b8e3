"""The part of a deep audit that reads every byte of a store: changelogs are decoded, snapshots are restored and scanned."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from statekeeper.statestore.base.errors import CorruptFile, LocalStateDamaged, StatekeeperError
from statekeeper.statestore.checkpoint import digests
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.lineage import Lineage
from statekeeper.statestore.checkpoint.sidecars import readable
from statekeeper.statestore.format.batch_log import object_of
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.format.records import changes_of
from statekeeper.statestore.maintenance.upkeep.audit import checksums
from statekeeper.statestore.maintenance.upkeep.audit.facts import Decoded, attempt
from statekeeper.statestore.maintenance.upkeep.audit.rows import RowCheck
from statekeeper.statestore.maintenance.upkeep.audit.store import Look, Way, conflict, refuse_unknown
from statekeeper.statestore.storage import Entry
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits, translated
from statekeeper.statestore.store.engine.scratch import work_folder
from statekeeper.statestore.store.loading.base import SnapshotUnusable, blamed_file, open_base

_ERRORS_OF_ROCKSDB = {"Mismatch in unique ID": Flaw.REPLACED, "file size mismatch": Flaw.MISMATCH}
_MEANINGS_OF_ROCKSDB = {
    Flaw.REPLACED: "is not the SST file that the snapshot was made from",
    Flaw.MISMATCH: "does not have the size that the snapshot expects",
}
"""RocksDB errors for an SST file that does not match the MANIFEST: SPARK-43404, SPARK-46796, SPARK-51717."""

_LIMITS = EngineLimits(block_cache_bytes=8 * 1024 * 1024)
"""Limits of one database; eight are open at once. A scan reads each block once, so a larger cache has no effect."""


def read_changelog(way: Way, entry: Entry) -> FileProblem | None:
    """Read a changelog in full, one window at a time. Return its problem."""

    def read(target: Path) -> None:
        way.storage.download(entry.path, target)
        most_bytes = way.storage.limits.record_bytes
        for _ in changes_of(readable(target), entry.path, way.conf, most_record_bytes=most_bytes)[1]:
            pass

    with work_folder(None, "audit") as folder, translated(folder):
        return attempt(entry.path, lambda: read(folder / "changelog"))


@dataclass
class Decoding:
    """Reads every byte of the files of a chain, one changelog or snapshot at a time."""

    way: Way
    look: Look
    scratch: Path
    decoded: Decoded = field(default_factory=Decoded)

    def _rows(self, version: VersionId) -> RowCheck | None:
        chain = self.look.chain
        layout = self.way.layouts.get((chain.store.operator, chain.store.store))
        return RowCheck.of(layout, chain, version, self.way.conf)

    def run(self) -> Decoded:
        """Read all files. Return the counts; the problems are added to `look`. Raises `LocalStateError`."""
        with work_folder(self.scratch, "audit") as work, translated(self.scratch):
            for version in self.look.chain.versions:
                if version not in self.look.changelogs:
                    self._changelog(version, work / "changelog")
                if version in self.look.chain.snapshots and version not in self.look.snapshots:
                    folder = work / "snapshot"
                    self._snapshot(version, folder)
                    shutil.rmtree(folder, ignore_errors=True)
            whole = [version for version in self.look.chain.snapshots if version not in self.look.snapshots]
            self.look.refused += checksums.of_snapshots(
                self.way.storage, self.look.chain, whole, self.way.hidden, work / "checked"
            )
        return self.decoded

    def _changelog(self, version: VersionId, target: Path) -> None:
        store = self.look.chain.store
        path = object_of(store, version)

        def read() -> tuple[Lineage | None, int]:
            self.way.storage.download(store.changelog(version), target)
            most_bytes = self.way.storage.limits.record_bytes
            header, pieces = changes_of(readable(target), path, self.way.conf, most_record_bytes=most_bytes)
            records, rows = 0, self._rows(version)
            for piece in pieces:
                records += len(piece)
                if rows is not None and len(piece):
                    rows.changes(piece)
            self.look.refused += checksums.of_changelog(self.way.storage, self.look.chain, version, target)
            return header.lineage, records

        found = attempt(path, read)
        replaced = not isinstance(found, FileProblem) and self._is_replaced(version, target)
        target.unlink(missing_ok=True)
        if isinstance(found, FileProblem):
            refuse_unknown(found)
            self.look.changelogs[version] = found
            return
        lineage, records = found
        if replaced:
            what = "does not match the digest in its commit: a late task attempt replaced it"
            self.look.changelogs[version] = FileProblem(path, Flaw.REPLACED, what)
        elif (lineage is None) != (version.id is None):
            what = (
                "has no lineage, which structure V2 requires"
                if lineage is None
                else "has a lineage, which structure V1 does not support"
            )
            self.look.changelogs[version] = FileProblem(path, Flaw.MISMATCH, what)
        elif lineage is not None and (problem := conflict(self.look.chain, version, lineage)):
            self.look.changelogs[version] = FileProblem(path, Flaw.MISMATCH, problem)
        self.decoded = replace(
            self.decoded, changelogs=self.decoded.changelogs + 1, records=self.decoded.records + records
        )

    def _is_replaced(self, version: VersionId, changelog: Path) -> bool:
        """Return whether a changelog contradicts the digests in the commits; False without digests."""
        versions = self.look.chain.versions
        place = version.version - versions[0].version
        before = versions[place - 1] if place else EMPTY
        if version.digest is None or before.version != version.version - 1 or (before != EMPTY and not before.digest):
            return False
        return not digests.following(self.look.chain.store, before, changelog).is_same(version)

    def _snapshot(self, version: VersionId, folder: Path) -> None:
        """Restore a snapshot as a load does, and scan all keys and values, which verifies the checksum of each block."""
        store = self.look.chain.store
        try:
            base = open_base(self.way.storage, store, version, folder, _LIMITS, self.way.conf)
        except SnapshotUnusable as error:
            self.look.snapshots[version] = self._blamed(version, error.__cause__ or error)
            return
        expected = base.metadata.key_count
        if base.metadata.column_families and expected >= 0:
            expected += base.metadata.internal_key_count
        try:
            with base.database as database:
                keys = database.count_keys()
                self._decode(version, database)
            if expected not in (-1, keys):
                what = f"contains {keys:,} keys, but its metadata expects {expected:,}"
                self.look.snapshots[version] = FileProblem(store.snapshot(version), Flaw.MISMATCH, what)
                self.look.unnoticed.add(version)
            self.decoded = replace(self.decoded, snapshots=self.decoded.snapshots + 1, keys=self.decoded.keys + keys)
        except LocalStateDamaged as error:
            self.look.snapshots[version] = self._blamed(version, error)
            self.look.unnoticed.add(version)

    def _decode(self, version: VersionId, database: Database) -> None:
        rows = self._rows(version)
        if rows is None:
            return
        try:
            for keys, values in database.scan():
                rows.rows(keys, values)
        except CorruptFile as error:
            self.look.snapshots[version] = FileProblem(
                self.look.chain.store.snapshot(version), Flaw.MISMATCH, error.what
            )
            self.look.unnoticed.add(version)

    def _blamed(self, version: VersionId, error: BaseException) -> FileProblem:
        """Return the file that an error names: an SST file by its local name, else the zip."""
        store, facts = self.look.chain.store, self.look.chain.snapshots[version]
        what = error.what if isinstance(error, StatekeeperError) else str(error)
        tables = facts.metadata.tables if facts.metadata else ()
        path = blamed_file(what, store, version, tables)
        flaw = next((flaw for text, flaw in _ERRORS_OF_ROCKSDB.items() if text in what), Flaw.CORRUPT)
        if path == store.snapshot(version):
            flaw = Flaw.MISMATCH if flaw is Flaw.MISMATCH else Flaw.CORRUPT
        what = what.replace(f"{self.scratch}/", "")
        if isinstance(error, LocalStateDamaged):
            meaning = _MEANINGS_OF_ROCKSDB.get(flaw, "is corrupt and cannot be read by RocksDB")
            return FileProblem(path, flaw, f"{meaning} ({what})")
        return FileProblem(path, flaw, f"cannot be restored: {what}")
