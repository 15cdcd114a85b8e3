"""The committed lineage of one store, as the commit log, the lineages in changelogs and the files show it.

    commits/N ... commits/M      which id each version has, as far back as the log goes
    head of a changelog          which ids come before it, further back

Facts, and what follows from them: which versions load, and from what. What is to be done is `maintenance`'s business.
Works for structure V2 and for V1, where a version has no id and no lineage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from statestore import catalog
from statestore.catalog import StoreFiles
from statestore.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statestore.format import names
from statestore.format.names import EMPTY, StorePath, VersionId
from statestore.format.snapshot import SnapshotMetadata, read_snapshot
from statestore.loading.base import OF_ANOTHER_PAST
from statestore.loading.sidecars import misfit
from statestore.storage import Storage


@dataclass(frozen=True)
class ReadFault:
    """The damage that a read in full has found in a file. `is_noticed`: RocksDB does not open the snapshot, so that a load
    takes an older one; otherwise only a read of the damaged rows fails."""

    why: str
    is_noticed: bool


@dataclass(frozen=True)
class SnapshotFacts:
    """A snapshot's zip. `metadata` is None when it cannot be read; `damage` says what is wrong with it or its tables.
    `is_ours`: known not to be written by Spark; `is_unknown`: of a format that this release does not know.

    `fault`: what a read in full has found in `faulty_file`, which is the damage then. `sidecar`: in which way the sidecar
    beside the zip does not fit it; Spark refuses the zip."""

    metadata: SnapshotMetadata | None
    damage: str | None
    is_ours: bool = False
    is_unknown: bool = False
    fault: ReadFault | None = None
    faulty_file: str | None = None
    sidecar: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it can be a base: the zip can be read, each of its tables is there in its size, no read in full has
        found damage, and no sidecar speaks against it."""
        return self.damage is None and self.sidecar is None


@dataclass(frozen=True)
class Chain:
    """The committed versions of one store, ascending and gapless, the last one its head.

    snapshots   of these versions, those that have a zip
    broken      versions whose changelog cannot be used, and why: missing, unreadable, at conflicts with the commit log
    end         why the chain goes no further back; None when it reaches the empty version or as far as was asked for
    conflicts        how commit log and lineages contradict each other: then what loads is a matter of whom one believes
    needs_base  whether changelogs alone give no version: only a snapshot says what a store's column families are called
    begins      the store's first version: a partition that came with a repartitioning has none before it
    """

    store: StorePath
    versions: tuple[VersionId, ...]
    files: StoreFiles
    snapshots: Mapping[VersionId, SnapshotFacts]
    broken: Mapping[VersionId, str] = field(default_factory=dict)
    end: str | None = None
    conflicts: str | None = None
    needs_base: bool = False
    begins: int = 1

    @property
    def head(self) -> VersionId:
        """The newest committed version."""
        return self.versions[-1]

    @cached_property
    def bases(self) -> Mapping[VersionId, VersionId]:
        """For each version that loads from storage, what a load starts from: a snapshot, or `EMPTY`. By the commit log."""
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
        """The newest version that loads; None when none does."""
        return max(self.bases, default=None, key=lambda version: version.version)

    def tail(self, version: VersionId) -> tuple[VersionId, ...]:
        """The changelogs that a load of a loadable version replays."""
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
    """The chain of a store from its head back to a base of version `down_to`, or as far as it goes.

    `committed`: its versions in the commit log, by number; only those are asked for that the walk comes to.
    `pending_delete`: paths
    of tables that a run is about to delete; a snapshot that names one counts as damaged. `faults`: files that a read in
    full has found damaged, by path; a snapshot that needs one counts as damaged, too. `is_first`: whether a version is the
    store's first; `needs_base`: see `Chain`.

    One request for the lineage of the head, which must agree with the commit log, one for each snapshot on the way and for
    each sidecar of one, and one for each time that a lineage has to tell what the log no longer does. Raises
    `StorageError`.
    """
    chain = _Walk(storage, store, committed, files, pending_delete, faults or {}).back_to(head, down_to, is_first)
    return replace(chain, needs_base=needs_base)


class _Walk:
    def __init__(
        self,
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
        self._snapshots: dict[VersionId, SnapshotFacts] = {}
        self._broken: dict[VersionId, str] = {}
        self._told: dict[int, VersionId] = {}
        self._odds: str | None = None

    def back_to(self, head: VersionId, down_to: int, is_first: Callable[[int], bool]) -> Chain:
        versions, begins = [head], 1
        self._look_at(versions[0])
        if versions[0].id is not None and versions[0] not in self._broken:
            self._ask(versions[0])
        end: str | None = None
        while not self._suffices(versions[-1], down_to):
            if is_first(versions[-1].version):
                begins = versions[-1].version
                break
            before = self._before(versions[-1])
            if not isinstance(before, VersionId):
                end = before
                break
            versions.append(before)
            self._look_at(before)
        oldest_first = tuple(reversed(versions))
        return Chain(
            self._store, oldest_first, self._files, self._snapshots, self._broken, end, self._odds, begins=begins
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
            self._broken[version] = f"{self._store.changelog(version)} is missing"
        elif self._files.changelogs[version].size_bytes == 0:
            self._broken[version] = f"{self._store.changelog(version)} is empty"

    def _before(self, version: VersionId) -> VersionId | str:
        """The version before, or why it is not known."""
        number = version.version - 1
        if number in self._committed:
            return self._committed[number]
        if version.id is None:
            before = VersionId(number)
            if before in self._files.changelogs or before in self._files.snapshots:
                return before
            return f"{self._store.changelog(before)} is not there, nor a snapshot of its version"
        if number not in self._told:
            problem = self._ask(version)
            if problem is not None:
                return problem
        return self._told[number]

    def _ask(self, version: VersionId) -> str | None:
        """Have a changelog tell what comes before it; what is wrong with it otherwise."""
        path = self._store.changelog(version)
        if version in self._broken:
            return self._broken[version]
        try:
            lineage = catalog.lineage(self._storage, self._store, version)
        except (CorruptFile, ObjectMissing, UnknownFormatVersion) as error:
            self._broken[version] = str(error)
            return str(error)
        told = {before.version: before for before in lineage}
        for number, before in told.items():
            named = self._committed.get(number, before)
            if named != before:
                self._odds = f"{path}: its lineage names {before}, the commit log {named}"
        if version.version == 1:
            return None
        if version.version - 1 not in told:
            problem = f"{path}: its lineage does not name the version before it"
            self._broken[version] = problem
            return problem
        self._told.update(told)
        return None


def look_at_snapshot(
    storage: Storage,
    store: StorePath,
    version: VersionId,
    files: StoreFiles,
    pending_delete: Collection[str] = (),
    faults: Mapping[str, ReadFault] | None = None,
) -> SnapshotFacts:
    """Read a snapshot's zip and compare it with the tables that there are, and with its sidecar. One request, one more for
    a sidecar. Raises `StorageError`."""
    path = store.snapshot(version)
    try:
        body = storage.read(path)
        snapshot = read_snapshot(body, path)
    except (ObjectMissing, NotAFile, CorruptFile, UnknownFormatVersion) as error:
        return SnapshotFacts(None, str(error), is_unknown=isinstance(error, UnknownFormatVersion))
    metadata = snapshot.metadata
    if not snapshot.is_of(version):
        return SnapshotFacts(metadata, f"{path}: {OF_ANOTHER_PAST}", snapshot.is_ours)
    for table in metadata.named_files:
        held = files.tables.get(table.dfs_name)
        if held is None or held.size_bytes != table.size_bytes:
            there = "is not there" if held is None else f"has {held.size_bytes:,} bytes, not {table.size_bytes:,}"
            return SnapshotFacts(metadata, f"{path}: its table {table.dfs_name} {there}", snapshot.is_ours)
        if store.table_file(table.dfs_name) in pending_delete:
            return SnapshotFacts(
                metadata, f"{path}: its table {table.dfs_name} is announced for deletion", snapshot.is_ours
            )
    for file in (path, *(store.table_file(table.dfs_name) for table in metadata.named_files)):
        fault = (faults or {}).get(file)
        if fault is not None:
            shown = "" if file == path else f"{file}: "
            return SnapshotFacts(
                metadata, f"{path}: {shown}{fault.why}", snapshot.is_ours, fault=fault, faulty_file=file
            )
    # Spark compares the sidecars of zips in structure V2 only.
    has_sidecar = version.id is not None and files.has_other(names.sidecar(path))
    refused = misfit(storage, path, body) if has_sidecar else None
    return SnapshotFacts(metadata, None, snapshot.is_ours, sidecar=refused)
