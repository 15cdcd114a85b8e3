"""The committed lineage of one store, according to the commit log, the lineages in changelogs and the files.

    commits/N ... commits/M      the id of each version, as far back as the log reaches
    header of a changelog        the ids of earlier versions

This module gives facts: which versions can be loaded, and from which base. `maintenance` decides on actions.
It supports structure V2 and structure V1, where a version has no id and no lineage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from statekeeper.statestore.base.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.sidecars import misfit
from statekeeper.statestore.format import names
from statekeeper.statestore.format.batch_log import object_of
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.snapshot import OF_ANOTHER_PAST, SnapshotMetadata, TableFile, read_snapshot
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True)
class LineageConflict:
    """A changelog whose lineage contradicts the commit log: the two versions have one number and different ids."""

    path: str
    in_lineage: VersionId
    in_commit_log: VersionId

    @property
    def text(self) -> str:
        """The conflict in words, without the path."""
        return f"its lineage names {self.in_lineage}, but the commit log names {self.in_commit_log}"

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


@dataclass(frozen=True)
class ReadFault:
    """Damage that a full read found in a file. `is_noticed`: RocksDB cannot open the snapshot, so that a load uses an older
    one; otherwise only a read of the damaged rows fails."""

    text: str
    is_noticed: bool


@dataclass(frozen=True, kw_only=True)
class StoredSnapshot:
    """Facts about the zip of a snapshot and its tables.

    metadata     None if the zip cannot be read, and for Spark's default provider
    damage       the problem of the zip or of its tables; None if they are whole
    is_ours      known not to be written by Spark
    fault        the damage that a full read found in `faulty_file`; `damage` names it, too
    sidecar      how the sidecar beside the zip contradicts it; Spark then rejects the zip
    """

    metadata: SnapshotMetadata | None
    damage: FileProblem | None
    is_ours: bool = False
    fault: ReadFault | None = None
    faulty_file: str | None = None
    sidecar: str | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether the zip has a format that this release does not know."""
        return self.damage is not None and self.damage.flaw is Flaw.UNKNOWN_FORMAT

    @property
    def is_whole(self) -> bool:
        """Whether the snapshot can be a base: the zip is readable, each table exists with the expected size, no full read
        found damage and no sidecar contradicts the zip."""
        return self.damage is None and self.sidecar is None


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The committed versions of one store, ascending and without a gap; the last one is the head.

    snapshots   of these versions, those with a zip
    broken      versions whose changelog is missing, unreadable or in conflict with the commit log
    end         the problem at which the chain ends; None if it reaches version 0 or the requested version
    conflicts   a changelog whose lineage contradicts the commit log; the loadable versions are then ambiguous
    needs_base  whether changelogs alone restore no version: only a snapshot names the column families of a store
    begins      the first version of the store: a partition that a repartitioning added has no earlier ones
    """

    store: StorePath
    versions: tuple[VersionId, ...]
    files: StoreFiles
    snapshots: Mapping[VersionId, StoredSnapshot]
    broken: Mapping[VersionId, FileProblem] = field(default_factory=dict)
    end: FileProblem | None = None
    conflicts: LineageConflict | None = None
    needs_base: bool = False
    begins: int = 1

    @property
    def head(self) -> VersionId:
        """The newest committed version."""
        return self.versions[-1]

    @cached_property
    def bases(self) -> Mapping[VersionId, VersionId]:
        """The base of each version that can be loaded from storage: a snapshot, or `EMPTY`. The commit log decides."""
        found: dict[VersionId, VersionId] = {}
        base: VersionId | None = EMPTY if self.versions[0].version == 1 and not self.needs_base else None
        for version in self.versions:
            if version in self.snapshots and self.snapshots[version].is_whole:
                base = version
            elif version in self.broken:
                base = None
            if base is not None:
                found[version] = base
        return found

    @property
    def newest_loadable(self) -> VersionId | None:
        """The newest version that can be loaded; None if there is none."""
        return max(self.bases, default=None, key=lambda version: version.version)

    def tail(self, version: VersionId) -> tuple[VersionId, ...]:
        """The changelogs that a load of `version` replays. Raises `KeyError` if the version cannot be loaded."""
        base = self.bases[version]
        return tuple(v for v in self.versions if base.version < v.version <= version.version)


def _is_from_the_start(version: int) -> bool:
    return version <= 1


def walk(
    storage: Storage,
    store: StorePath,
    head: VersionId,
    committed: Mapping[int, VersionId],
    files: StoreFiles,
    *,
    down_to: int = 1,
    pending_delete: Collection[str] = (),
    faults: Mapping[str, ReadFault] | None = None,
    is_first: Callable[[int], bool] = _is_from_the_start,
    needs_base: bool = False,
) -> Chain:
    """Walk the chain of a store from its head back to a base of version `down_to`, or as far as possible.

    committed       its versions in the commit log, by number; the walk looks up only the numbers that it reaches
    pending_delete  paths of tables that a run is about to delete; a snapshot that names one counts as damaged
    faults          files that a full read found damaged, by path; a snapshot that needs one counts as damaged
    is_first        whether a version is the first of the store
    needs_base      see `Chain`

    Requests: one for the lineage of the head, which must agree with the commit log; one for each snapshot and each sidecar
    of one; one for each lineage that replaces deleted entries of the commit log. Raises `StorageError`.
    """
    chain = _Walk(
        storage=storage,
        store=store,
        committed=committed,
        files=files,
        pending_delete=pending_delete,
        faults=faults or {},
    ).back_to(head, down_to, is_first)
    return replace(chain, needs_base=needs_base)


class _Walk:
    def __init__(
        self,
        *,
        storage: Storage,
        store: StorePath,
        committed: Mapping[int, VersionId],
        files: StoreFiles,
        pending_delete: Collection[str],
        faults: Mapping[str, ReadFault],
    ) -> None:
        self._storage = storage
        self._store = store
        self._committed = committed
        self._files = files
        self._pending_delete = pending_delete
        self._faults = faults
        self._snapshots: dict[VersionId, StoredSnapshot] = {}
        self._broken: dict[VersionId, FileProblem] = {}
        self._in_lineages: dict[int, VersionId] = {}
        self._conflict: LineageConflict | None = None

    def back_to(self, head: VersionId, down_to: int, is_first: Callable[[int], bool]) -> Chain:
        versions, begins = [head], 1
        self._look_at(versions[0])
        if versions[0].id is not None and versions[0] not in self._broken:
            self._read_lineage(versions[0])
        end: FileProblem | None = None
        while not self._suffices(versions[-1], down_to):
            if is_first(versions[-1].version):
                begins = versions[-1].version
                break
            before = self._before(versions[-1])
            if isinstance(before, FileProblem):
                end = before
                break
            versions.append(before)
            self._look_at(before)
        return Chain(
            store=self._store,
            versions=tuple(reversed(versions)),
            files=self._files,
            snapshots=self._snapshots,
            broken=self._broken,
            end=end,
            conflicts=self._conflict,
            begins=begins,
        )

    def _suffices(self, version: VersionId, down_to: int) -> bool:
        facts = self._snapshots.get(version)
        return version.version <= down_to and facts is not None and facts.is_whole

    def _look_at(self, version: VersionId) -> None:
        if version in self._files.snapshots:
            self._snapshots[version] = look_at_snapshot(
                self._storage, self._store, version, self._files, self._pending_delete, self._faults
            )
        if version not in self._files.changelogs:
            self._broken[version] = self._files.unlisted(self._store, version)
        elif self._files.changelogs[version].size_bytes == 0:
            path = object_of(self._store, version)
            self._broken[version] = FileProblem(path, Flaw.CORRUPT, "is empty")

    def _before(self, version: VersionId) -> VersionId | FileProblem:
        """The previous version, or the problem that hides it."""
        number = version.version - 1
        if number in self._committed:
            return self._committed[number]
        if version.id is None:
            before = VersionId(number)
            if before in self._files.changelogs or before in self._files.snapshots:
                return before
            text = "is missing, and its batch has no snapshot"
            return FileProblem(self._store.changelog(before), Flaw.MISSING, text)
        if number not in self._in_lineages:
            problem = self._read_lineage(version)
            if problem is not None:
                return problem
        return self._in_lineages[number]

    def _read_lineage(self, version: VersionId) -> FileProblem | None:
        """Add the earlier versions that a changelog names; return its problem if it names none."""
        if version in self._broken:
            return self._broken[version]
        path = self._files.object_of(version)
        try:
            lineage = catalog.lineage(self._storage, self._store, version)
        except (CorruptFile, ObjectMissing, UnknownFormatVersion) as error:
            self._broken[version] = FileProblem(path, Flaw.of(error), error.what)
            return self._broken[version]
        named = {before.version: before for before in lineage}
        for number, before in named.items():
            committed = self._committed.get(number, before)
            if committed != before:
                self._conflict = LineageConflict(path, in_lineage=before, in_commit_log=committed)
        if version.version == 1:
            return None
        if version.version - 1 not in named:
            text = "its lineage does not name the version of the batch before"
            self._broken[version] = FileProblem(path, Flaw.MISMATCH, text)
            return self._broken[version]
        self._in_lineages.update(named)
        return None


def look_at_snapshot(
    storage: Storage,
    store: StorePath,
    version: VersionId,
    files: StoreFiles,
    pending_delete: Collection[str] = (),
    faults: Mapping[str, ReadFault] | None = None,
) -> StoredSnapshot:
    """Read the zip of a snapshot and compare it with the existing tables and with its sidecar. Of a snapshot of Spark's
    default provider, only the size is compared.

    One request, and one more for a sidecar. Raises `StorageError`.
    """
    path = store.snapshot(version)
    if store.provider is Provider.HDFS_BACKED:
        is_empty = files.snapshots[version].size_bytes == 0
        return StoredSnapshot(metadata=None, damage=FileProblem(path, Flaw.CORRUPT, "is empty") if is_empty else None)
    try:
        body = storage.read(path)
        snapshot = read_snapshot(body, path)
    except (ObjectMissing, NotAFile, CorruptFile, UnknownFormatVersion) as error:
        return StoredSnapshot(metadata=None, damage=FileProblem(path, Flaw.of(error), error.what))
    facts = StoredSnapshot(metadata=snapshot.metadata, damage=None, is_ours=snapshot.is_ours)
    if not snapshot.is_of(version):
        return replace(facts, damage=FileProblem(path, Flaw.MISMATCH, OF_ANOTHER_PAST))
    for table in snapshot.metadata.named_files:
        if (problem := _table_problem(store, table, files, pending_delete)) is not None:
            text = f"its table {table.dfs_name} {problem}"
            return replace(facts, damage=FileProblem(path, Flaw.MISMATCH, text))
    for file in (path, *(store.table_file(table.dfs_name) for table in snapshot.metadata.named_files)):
        fault = (faults or {}).get(file)
        if fault is not None:
            text = fault.text if file == path else f"{file}: {fault.text}"
            return replace(facts, damage=FileProblem(path, Flaw.CORRUPT, text), fault=fault, faulty_file=file)
    # Spark compares the sidecars of zips in structure V2 only.
    has_sidecar = version.id is not None and files.has_other(names.sidecar(path))
    return replace(facts, sidecar=misfit(storage, path, body) if has_sidecar else None)


def _table_problem(
    store: StorePath, table: TableFile, files: StoreFiles, pending_delete: Collection[str]
) -> str | None:
    held = files.tables.get(table.dfs_name)
    if held is None:
        return "is missing"
    if held.size_bytes != table.size_bytes:
        return f"has {held.size_bytes:,} bytes instead of {table.size_bytes:,}"
    return "is pending delete" if store.table_file(table.dfs_name) in pending_delete else None
