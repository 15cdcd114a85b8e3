"""Gather the facts of one store: its chain, the lineage of its head, and the content of all files in a deep audit."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from statekeeper.statestore.base.errors import (
    CorruptFile,
    LocalStateDamaged,
    StatekeeperError,
    StorageError,
    UnknownFormatVersion,
)
from statekeeper.statestore.checkpoint import catalog, digests
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.lineage import Lineage
from statekeeper.statestore.contents.chain import Chain, StoredSnapshot, walk
from statekeeper.statestore.format.batch_log import object_of
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.records import changes_of
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.maintenance.upkeep import verification
from statekeeper.statestore.maintenance.upkeep.audit import checksums
from statekeeper.statestore.maintenance.upkeep.audit.facts import (
    Decoded,
    Layout,
    NotAudited,
    Refused,
    StoreAuditFacts,
    StoreKind,
    attempt,
)
from statekeeper.statestore.maintenance.upkeep.audit.rows import RowCheck
from statekeeper.statestore.maintenance.upkeep.verification import Reads
from statekeeper.statestore.storage import Omitted, Storage
from statekeeper.statestore.storage.paths import is_below
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits, translated
from statekeeper.statestore.store.engine.scratch import work_folder
from statekeeper.statestore.store.loading.base import SnapshotUnusable, blamed_file, open_base, readable

_ERRORS_OF_ROCKSDB = {"Mismatch in unique ID": Flaw.REPLACED, "file size mismatch": Flaw.MISMATCH}
_MEANINGS_OF_ROCKSDB = {
    Flaw.REPLACED: "is not the SST file that the snapshot was made from",
    Flaw.MISMATCH: "does not have the size that the snapshot expects",
}
"""RocksDB errors for an SST file that does not match the MANIFEST: SPARK-43404, SPARK-46796, SPARK-51717."""

_LARGE_SHARE = 8
"""Ratio of compression that a large value usually does not exceed. A deep audit also finds values that do."""

_LIMITS = EngineLimits(block_cache_bytes=8 * 1024 * 1024)
"""Limits of one database; eight are open at once. A scan reads each block once, so a larger cache has no effect."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """Shared inputs for all stores of a checkpoint.

    scratch          see `gather`
    hidden           files that a plain listing omits
    omitted          entries that the listing of `state/` has omitted, such as links
    readable         the batches whose commits can be read
    with_families    operators whose stores have column families
    reads            the record of files that were read in full
    layouts          row layouts of a native checkpoint
    """

    storage: Storage
    scratch: Path | None
    conf: StateConf
    hidden: frozenset[str] = frozenset()
    with_families: frozenset[int] = frozenset()
    omitted: tuple[Omitted, ...] = ()
    readable: Collection[int] = frozenset()
    reads: Reads = field(default_factory=dict)
    layouts: Mapping[StoreKind, Layout | FileProblem] = field(default_factory=dict)


def gather_store(
    way: Way, store: StorePath, committed: Mapping[int, VersionId], files: StoreFiles
) -> StoreAuditFacts | NotAudited:
    """Gather the facts of one store. `committed`: its versions in the commit log.

    Requests: the start of its newest changelog, or all of a large one of a job; one for each snapshot on the chain; one if
    the commit log and the lineage do not reach a base. Raises `LocalStateError`.
    """
    linked = [one for one in way.omitted if one.shown == store.folder or is_below(store.folder, one.shown)]
    if linked and not files.entries:
        problem = FileProblem(linked[0].shown, Flaw.MISMATCH, f"is not read: {linked[0].reason}")
        return NotAudited(store, problem, "stop the query, and replace the link by the folder to which it leads")
    if not committed:
        return NotAudited(store, FileProblem(store.folder, Flaw.MISMATCH, "is not named by any readable commit"))
    try:
        return _gather_store(way, store, committed, files)
    except UnknownFormatVersion as error:
        return NotAudited(store, FileProblem(error.path or store.folder, Flaw.UNKNOWN_FORMAT, error.what))
    except StorageError as error:
        return NotAudited(store, FileProblem(store.folder, Flaw.CORRUPT, f"cannot be read from storage: {error}"))


def _gather_store(way: Way, store: StorePath, committed: Mapping[int, VersionId], files: StoreFiles) -> StoreAuditFacts:
    storage = way.storage
    head = committed[max(committed)]
    bad = {
        version: FileProblem(entry.path, Flaw.CORRUPT, "is empty")
        for version, entry in files.changelogs.items()
        if entry.size_bytes == 0
    }
    lineage: Lineage | None = None
    if head.id is not None and head in files.changelogs and head not in bad:
        read = attempt(store.changelog(head), lambda: catalog.lineage(storage, store, head))
        if isinstance(read, FileProblem):
            _refuse_unknown(read)
            bad[head] = read
        else:
            lineage = read
    believed = _believed(committed, lineage or (), files)
    needs_base = store.operator in way.with_families
    faults = verification.faults(way.reads, {entry.path: entry for entry in files.entries})
    chain = walk(
        storage,
        store,
        believed[head.version],
        believed,
        files,
        down_to=min(committed),
        needs_base=needs_base,
        faults=faults,
        is_first=lambda version: _is_first(version, committed, way.readable),
    )
    if lineage is not None and (problem := _conflict(chain, head, lineage)):
        bad[head] = FileProblem(store.changelog(head), Flaw.MISMATCH, problem)
    if way.scratch is None and head not in bad and (unread := _large_head(way, chain)):
        bad[chain.head] = unread
    unnoticed = {v for v, facts in chain.snapshots.items() if facts.fault is not None and not facts.fault.is_noticed}
    look = _Look(chain=chain, changelogs=_changelogs(chain, bad), snapshots=_snapshots(chain), unnoticed=unnoticed)
    decoded = None if way.scratch is None else _Decoding(way, look, way.scratch).run()
    refused = [*checksums.of_zips(chain), *(checksums.empty(chain) if decoded is None else look.refused)]
    chain = replace(
        chain,
        broken=look.changelogs,
        snapshots={
            version: StoredSnapshot(metadata=facts.metadata, damage=look.snapshots.get(version))
            for version, facts in chain.snapshots.items()
        },
    )
    contradicted = {number: version for number, version in committed.items() if believed[number] != version}
    return StoreAuditFacts(
        store=store,
        committed=committed,
        contradicted=contradicted,
        chain=chain,
        changelogs=look.changelogs,
        snapshots=look.snapshots,
        unnoticed=frozenset(look.unnoticed),
        lineage=lineage,
        decoded=decoded,
        refused=tuple(refused),
        strays=checksums.strays(storage, chain),
    )


def _is_first(version: int, committed: Mapping[int, VersionId], readable: Collection[int]) -> bool:
    """Return whether a version is the first of its store, or the first after a rescale added its partition again:
    the commit before it exists and does not have the store."""
    return version <= 1 or (version in committed and version - 1 not in committed and version - 2 in readable)


def _large_head(way: Way, chain: Chain) -> FileProblem | None:
    """Read the newest changelog of a job in full if it can have a value above the limit. Return its problem.

    No batch follows such a value, because no load can read it, so earlier changelogs have none. One download, if the
    changelog has at least `record_bytes` / `_LARGE_SHARE` compressed bytes and its version has no snapshot.
    """
    head, limits = chain.head, way.storage.limits
    entry = chain.files.changelogs.get(head)
    snapshot = chain.snapshots.get(head)
    if way.conf != OURS or entry is None or (snapshot is not None and snapshot.is_whole):
        return None
    if entry.size_bytes < limits.record_bytes // _LARGE_SHARE:
        return None

    def read(target: Path) -> None:
        way.storage.download(entry.path, target)
        for _ in changes_of(readable(target), entry.path, way.conf, most_record_bytes=limits.record_bytes)[1]:
            pass

    with work_folder(None, "audit") as folder, translated(folder):
        found = attempt(entry.path, lambda: read(folder / "changelog"))
    if found is None:
        return None
    _refuse_unknown(found)
    return found


def _refuse_unknown(bad: FileProblem) -> None:
    if bad.flaw is Flaw.UNKNOWN_FORMAT:
        raise UnknownFormatVersion(bad.text, path=bad.path)


def _believed(committed: Mapping[int, VersionId], lineage: Lineage, files: StoreFiles) -> dict[int, VersionId]:
    """Merge the commit log with the lineage of the head. The lineage wins if the version in the log has no files, as in a
    load. If that version has files, `_conflict` reports the changelog."""
    believed = {version.version: version for version in lineage}
    for number, version in committed.items():
        expected = believed.get(number, version)
        if expected == version or version in files.changelogs or version in files.snapshots:
            believed[number] = version
    return believed


def _conflict(chain: Chain, version: VersionId, lineage: Lineage) -> str | None:
    """Return how the lineage in a changelog contradicts the chain; None if it does not."""
    numbers = [before.version for before in lineage]
    if numbers != list(range(version.version - len(numbers), version.version)):
        return "has a lineage that skips a version"
    if not lineage and version.version > 1:
        return "has a lineage without the previous version"
    ours = {known.version: known for known in chain.versions}
    for named in lineage:
        known = ours.get(named.version, named)
        if known != named:
            return f"has {named.id} as version {named.version} in its lineage, but the commit log has {known.id}"
    return None


@dataclass(kw_only=True)
class _Look:
    """The known problems of the files of a chain."""

    chain: Chain
    changelogs: dict[VersionId, FileProblem]
    snapshots: dict[VersionId, FileProblem]
    unnoticed: set[VersionId] = field(default_factory=set)
    refused: list[Refused] = field(default_factory=list)


def _changelogs(chain: Chain, found: Mapping[VersionId, FileProblem]) -> dict[VersionId, FileProblem]:
    bad: dict[VersionId, FileProblem] = {}
    for version in chain.versions:
        path = object_of(chain.store, version)
        if version in found:
            bad[version] = found[version]
        elif version not in chain.files.changelogs and path not in chain.files.damaged:
            bad[version] = FileProblem(path, Flaw.MISSING, "is missing")
        elif version in chain.broken:
            bad[version] = FileProblem(path, Flaw.CORRUPT, chain.broken[version].text)
    return bad


def _snapshots(chain: Chain) -> dict[VersionId, FileProblem]:
    bad: dict[VersionId, FileProblem] = {}
    for version, facts in chain.snapshots.items():
        path = chain.store.snapshot(version)
        if facts.is_unknown:
            assert facts.damage is not None
            raise UnknownFormatVersion(facts.damage.text, path=path)
        for table in facts.metadata.named_files if facts.metadata else ():
            held = chain.files.tables.get(table.dfs_name)
            table_path = chain.store.table_file(table.dfs_name)
            if held is None:
                bad[version] = FileProblem(table_path, Flaw.MISSING, "is missing")
                break
            if held.size_bytes != table.size_bytes:
                sizes = f"has {held.size_bytes:,} bytes, but its snapshot expects {table.size_bytes:,}"
                bad[version] = FileProblem(table_path, Flaw.MISMATCH, sizes)
                break
        else:
            if facts.fault is not None:
                bad[version] = FileProblem(
                    facts.faulty_file or path, Flaw.CORRUPT, f"is corrupt (read in full): {facts.fault.text}"
                )
            elif facts.damage is not None:
                bad[version] = FileProblem(path, Flaw.CORRUPT, facts.damage.text)
    return bad


@dataclass
class _Decoding:
    """Reads every byte of the files of a chain, one changelog or snapshot at a time."""

    way: Way
    look: _Look
    scratch: Path
    decoded: Decoded = field(default_factory=Decoded)

    def _rows(self, version: VersionId) -> RowCheck | None:
        chain = self.look.chain
        layout = self.way.layouts.get((chain.store.operator, chain.store.store))
        return RowCheck.of(layout, chain, version, self.way.conf)

    def run(self) -> Decoded:
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
            _refuse_unknown(found)
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
        elif lineage is not None and (problem := _conflict(self.look.chain, version, lineage)):
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
