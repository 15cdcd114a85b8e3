"""Looking at one store: its chain, the lineage in its head, and, when every byte is asked for, what is in the files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from statestore import catalog, digests
from statestore.catalog import StoreFiles
from statestore.chain import Chain, FileProblem, SnapshotFacts, walk
from statestore.engine.rocks import Database, EngineLimits, translated
from statestore.errors import CorruptFile, LocalStateDamaged, StatekeeperError, StorageError, UnknownFormatVersion
from statestore.format.changelog import read_changelog
from statestore.format.names import EMPTY, StorePath, VersionId
from statestore.format.row_checksum import verified
from statestore.format.state_conf import StateConf
from statestore.lineage import Lineage
from statestore.loading.base import SnapshotUnusable, blamed_file, open_base
from statestore.loading.local_file import readable
from statestore.maintenance import verification
from statestore.maintenance.audit import checksums
from statestore.maintenance.audit.facts import (
    Bad,
    Decoded,
    Flaw,
    Layout,
    NotAudited,
    Refused,
    StoreAuditFacts,
    StoreKind,
    attempt,
)
from statestore.maintenance.audit.rows import RowCheck
from statestore.maintenance.verification import Reads
from statestore.storage import Storage

_TOLD_BY_ROCKSDB = {"Mismatch in unique ID": Flaw.REPLACED, "file size mismatch": Flaw.MISMATCH}
"""How RocksDB says of a table that the MANIFEST speaks of another one: SPARK-43404, SPARK-46796, SPARK-51717."""

_LIMITS = EngineLimits(block_cache_bytes=8 * 1024 * 1024)
"""Of one database; eight are open at once. A scan reads each block once, and nothing is gained by keeping it."""


@dataclass(frozen=True)
class Way:
    """How the stores of a checkpoint are looked at. `scratch`: see `gather`; `hidden`: the files that a plain listing does
    not show; `with_families`: the operators whose stores have column families; `reads`: the record of the files that
    retention has read in full; `layouts`: of the rows of a checkpoint of Spark's."""

    storage: Storage
    scratch: Path | None
    conf: StateConf
    hidden: frozenset[str] = frozenset()
    with_families: frozenset[int] = frozenset()
    reads: Reads = field(default_factory=dict)
    layouts: Mapping[StoreKind, Layout | Bad] = field(default_factory=dict)


def look_at_store(
    way: Way, store: StorePath, committed: Mapping[int, VersionId], files: StoreFiles
) -> StoreAuditFacts | NotAudited:
    """The facts about one store. `committed`: its versions in the commit log.

    Requests: the head of its newest changelog, one for each snapshot on the chain, and one where the commit log and
    that lineage together do not reach back to a base. Raises `LocalStateError`.
    """
    if not committed:
        return NotAudited(store, Bad(store.folder, Flaw.MISMATCH, "no commit that can be read names it"))
    try:
        return _look_at_store(way, store, committed, files)
    except UnknownFormatVersion as error:
        return NotAudited(store, Bad(error.path or store.folder, Flaw.UNKNOWN_FORMAT, error.what))
    except StorageError as error:
        return NotAudited(store, Bad(store.folder, Flaw.CORRUPT, f"the storage failed: {error}"))


def _look_at_store(
    way: Way, store: StorePath, committed: Mapping[int, VersionId], files: StoreFiles
) -> StoreAuditFacts:
    storage = way.storage
    head = committed[max(committed)]
    bad = {
        version: Bad(entry.path, Flaw.CORRUPT, "is empty")
        for version, entry in files.changelogs.items()
        if entry.size_bytes == 0
    }
    lineage: Lineage | None = None
    if head.id is not None and head in files.changelogs and head not in bad:
        read = attempt(store.changelog(head), lambda: catalog.lineage(storage, store, head))
        if isinstance(read, Bad):
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
    )
    if lineage is not None and (problem := _disagreement(chain, head, lineage)):
        bad[head] = Bad(store.changelog(head), Flaw.MISMATCH, problem)
    unnoticed = {v for v, facts in chain.snapshots.items() if facts.fault is not None and not facts.fault.is_noticed}
    look = _Look(chain, _changelogs(chain, bad), _snapshots(chain), unnoticed)
    decoded = None if way.scratch is None else _Decoding(way, look, way.scratch).run()
    refused = [*checksums.of_zips(chain), *(checksums.empty(chain) if decoded is None else look.refused)]
    chain = replace(
        chain,
        broken={version: FileProblem(bad.path, bad.why) for version, bad in look.changelogs.items()},
        snapshots={
            version: SnapshotFacts(facts.metadata, _problem(look.snapshots.get(version)))
            for version, facts in chain.snapshots.items()
        },
    )
    contradicted = {number: version for number, version in committed.items() if believed[number] != version}
    return StoreAuditFacts(
        store,
        committed,
        contradicted,
        chain,
        look.changelogs,
        look.snapshots,
        frozenset(look.unnoticed),
        lineage,
        decoded,
        tuple(refused),
        checksums.strays(storage, chain),
    )


def _refuse_unknown(bad: Bad) -> None:
    if bad.flaw is Flaw.UNKNOWN_FORMAT:
        raise UnknownFormatVersion(bad.why, path=bad.path)


def _believed(committed: Mapping[int, VersionId], lineage: Lineage, files: StoreFiles) -> dict[int, VersionId]:
    """The commit log, continued by the lineage in the head; and corrected by it where the log names what has no files.
    A load follows the lineage. Where the log's version has files, `_disagreement` finds the changelog to be at
    conflicts."""
    believed = {version.version: version for version in lineage}
    for number, version in committed.items():
        told = believed.get(number, version)
        if told == version or version in files.changelogs or version in files.snapshots:
            believed[number] = version
    return believed


def _disagreement(chain: Chain, version: VersionId, lineage: Lineage) -> str | None:
    """What the lineage in the changelog of a version of the chain says otherwise than the chain; None when nothing."""
    numbers = [before.version for before in lineage]
    if numbers != list(range(version.version - len(numbers), version.version)):
        return "its lineage jumps over a version"
    if not lineage and version.version > 1:
        return "its lineage does not name the version before it"
    ours = {known.version: known for known in chain.versions}
    for named in lineage:
        known = ours.get(named.version, named)
        if known != named:
            return f"its lineage names {named.id} as version {named.version}, the commit log {known.id}"
    return None


@dataclass
class _Look:
    """What is known to be wrong with the files of a chain."""

    chain: Chain
    changelogs: dict[VersionId, Bad]
    snapshots: dict[VersionId, Bad]
    unnoticed: set[VersionId] = field(default_factory=set)
    refused: list[Refused] = field(default_factory=list)


def _changelogs(chain: Chain, found: Mapping[VersionId, Bad]) -> dict[VersionId, Bad]:
    bad: dict[VersionId, Bad] = {}
    for version in chain.versions:
        path = chain.store.changelog(version)
        if version in found:
            bad[version] = found[version]
        elif version not in chain.files.changelogs:
            bad[version] = Bad(path, Flaw.MISSING, "is missing")
        elif version in chain.broken:
            bad[version] = Bad(path, Flaw.CORRUPT, chain.broken[version].text)
    return bad


def _snapshots(chain: Chain) -> dict[VersionId, Bad]:
    bad: dict[VersionId, Bad] = {}
    for version, facts in chain.snapshots.items():
        path = chain.store.snapshot(version)
        if facts.is_unknown:
            assert facts.damage is not None
            raise UnknownFormatVersion(facts.damage.text, path=path)
        for table in facts.metadata.named_files if facts.metadata else ():
            held = chain.files.tables.get(table.dfs_name)
            table_path = chain.store.table_file(table.dfs_name)
            if held is None:
                bad[version] = Bad(table_path, Flaw.MISSING, "is missing")
                break
            if held.size_bytes != table.size_bytes:
                sizes = f"has {held.size_bytes:,} bytes, its snapshot says {table.size_bytes:,}"
                bad[version] = Bad(table_path, Flaw.MISMATCH, sizes)
                break
        else:
            if facts.fault is not None:
                bad[version] = Bad(facts.faulty_file or path, Flaw.CORRUPT, f"was read in full: {facts.fault.why}")
            elif facts.damage is not None:
                bad[version] = Bad(path, Flaw.CORRUPT, facts.damage.text)
    return bad


def _problem(bad: Bad | None) -> FileProblem | None:
    return None if bad is None else FileProblem(bad.path, bad.why)


@dataclass
class _Decoding:
    """Reads every byte of a chain's files, one file or snapshot at a time."""

    way: Way
    look: _Look
    scratch: Path
    decoded: Decoded = field(default_factory=Decoded)

    def _rows(self, version: VersionId) -> RowCheck | None:
        chain = self.look.chain
        layout = self.way.layouts.get((chain.store.operator, chain.store.store))
        return RowCheck.of(layout, chain, version, self.way.conf)

    def run(self) -> Decoded:
        with (
            translated(self.scratch),
            tempfile.TemporaryDirectory(dir=self.scratch, prefix="audit-") as name,
        ):
            for version in self.look.chain.versions:
                if version not in self.look.changelogs:
                    self._changelog(version, Path(name) / "changelog")
                if version in self.look.chain.snapshots and version not in self.look.snapshots:
                    folder = Path(name) / "snapshot"
                    self._snapshot(version, folder)
                    shutil.rmtree(folder, ignore_errors=True)
            whole = [version for version in self.look.chain.snapshots if version not in self.look.snapshots]
            self.look.refused += checksums.of_snapshots(
                self.way.storage, self.look.chain, whole, self.way.hidden, Path(name) / "checked"
            )
        return self.decoded

    def _changelog(self, version: VersionId, target: Path) -> None:
        path = self.look.chain.store.changelog(version)

        def read() -> tuple[Lineage | None, int]:
            self.way.storage.download(path, target)
            header, pieces = read_changelog(readable(target), path)
            if self.way.conf.row_checksums:
                pieces = (verified(piece, path) for piece in pieces)
            records, rows = 0, self._rows(version)
            for piece in pieces:
                records += len(piece)
                if rows is not None and len(piece):
                    rows.changes(piece)
            self.look.refused += checksums.of_changelog(self.way.storage, self.look.chain, version, target)
            return header.lineage, records

        found = attempt(path, read)
        replaced = not isinstance(found, Bad) and self._is_replaced(version, target)
        target.unlink(missing_ok=True)
        if isinstance(found, Bad):
            _refuse_unknown(found)
            self.look.changelogs[version] = found
            return
        lineage, records = found
        if replaced:
            what = "is not the changelog that its commit confirms: an attempt that lost has replaced it"
            self.look.changelogs[version] = Bad(path, Flaw.REPLACED, what)
        elif (lineage is None) != (version.id is None):
            self.look.changelogs[version] = Bad(path, Flaw.MISMATCH, "has a lineage in structure V1, or none in V2")
        elif lineage is not None and (problem := _disagreement(self.look.chain, version, lineage)):
            self.look.changelogs[version] = Bad(path, Flaw.MISMATCH, problem)
        self.decoded = replace(
            self.decoded, changelogs=self.decoded.changelogs + 1, records=self.decoded.records + records
        )

    def _is_replaced(self, version: VersionId, changelog: Path) -> bool:
        """Whether a changelog is another one than the digests of the commits say; not when they do not say it."""
        versions = self.look.chain.versions
        place = version.version - versions[0].version
        before = versions[place - 1] if place else EMPTY
        if version.digest is None or before.version != version.version - 1 or (before != EMPTY and not before.digest):
            return False
        return not digests.following(self.look.chain.store, before, changelog).is_same(version)

    def _snapshot(self, version: VersionId, folder: Path) -> None:
        """Restore it as a load would, and go over all keys and values: each block's checksum is compared then."""
        store = self.look.chain.store
        try:
            base = open_base(self.way.storage, store, version, folder, _LIMITS, self.way.conf)
        except SnapshotUnusable as error:
            self.look.snapshots[version] = self._blamed(version, error.__cause__ or error)
            return
        said = base.metadata.key_count
        if base.metadata.column_families and said >= 0:
            said += base.metadata.internal_key_count
        try:
            with base.database as database:
                keys = database.count_keys()
                self._decode(version, database)
            if said not in (-1, keys):
                what = f"holds {keys:,} keys, its metadata says {said:,}"
                self.look.snapshots[version] = Bad(store.snapshot(version), Flaw.MISMATCH, what)
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
            self.look.snapshots[version] = Bad(self.look.chain.store.snapshot(version), Flaw.MISMATCH, error.what)
            self.look.unnoticed.add(version)

    def _blamed(self, version: VersionId, error: BaseException) -> Bad:
        """The file of the snapshot that an error speaks of: a table by its local name, else the zip."""
        store, facts = self.look.chain.store, self.look.chain.snapshots[version]
        what = error.what if isinstance(error, StatekeeperError) else str(error)
        tables = facts.metadata.tables if facts.metadata else ()
        path = blamed_file(what, store, version, tables)
        flaw = next((flaw for text, flaw in _TOLD_BY_ROCKSDB.items() if text in what), Flaw.CORRUPT)
        if path == store.snapshot(version):
            flaw = Flaw.MISMATCH if flaw is Flaw.MISMATCH else Flaw.CORRUPT
        return Bad(path, flaw, f"cannot be restored: {what.replace(f'{self.scratch}/', '')}")
