"""The guarantees for a simulated checkpoint, verified without the library by names and sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.format import batch_log, logs, names
from statekeeper.statestore.format.batch_log import BatchLog
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.snapshot import SnapshotMetadata, read_snapshot
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPlan
from tests.support.memory import MemoryStorage


class Lost(AssertionError):
    """A guaranteed version cannot be restored, or differs from the committed one."""


class Untidy(AssertionError):
    """No version is lost, but an undisturbed round of maintenance leaves unexpected files."""


class Promises:
    """The versions that must be restorable: from the newest floor of all executed plans up to the head.

    After each deletion, this class checks them by names and sizes in the root, without the library. A version whose files
    were damaged need not be restorable any more. The floor of a plan is then the newest version that all stores load.
    """

    def __init__(self, root: MemoryStorage, stores: Sequence[StorePath], retained_versions: int) -> None:
        self.committed: dict[int, dict[StorePath, VersionId]] = {0: dict.fromkeys(stores, EMPTY)}
        """The committed versions of each store, by version, including deleted commits."""
        self.floor = 1
        self.held_floor: int | None = None
        """An older version that all stores load, where damage leaves none from the floor on."""
        self.rotten: set[tuple[StorePath, int]] = set()
        self._root = root
        self._stores = stores
        self._retained_versions = retained_versions
        self._zips: dict[str, tuple[bytes, SnapshotMetadata | None]] = {}
        self._logs: dict[str, tuple[bytes, BatchLog | None]] = {}

    @property
    def head(self) -> int:
        """The newest committed version."""
        return max(self.committed)

    def learn(self, path: str) -> None:
        """A driver has written this file of the commit log."""
        batch = names.parse_batch(path)
        ids = logs.parse_commit(self._root.objects[path].data, path).ids
        assert batch is not None
        assert ids is not None
        self.committed[batch + 1] = {s: VersionId(batch + 1, ids[0][s.partition][0]) for s in self._stores}

    def promised(self) -> list[tuple[StorePath, VersionId]]:
        """All that must be restorable now."""
        return [
            (store, self.committed[number][store])
            for number in self._numbers()
            for store in self._stores
            if (store, number) not in self.rotten
        ]

    def floor_for(self, wanted: int) -> int | None:
        """The newest version up to `wanted` that all stores load, as the root is now."""
        loads = [self._restorable(store) for store in self._stores]
        return max((n for n in range(1, wanted + 1) if all(n in of_store for of_store in loads)), default=None)

    def make(self, plan: RetentionPlan, floor: int | None, *, is_alone: bool) -> None:
        """Record the execution of a plan. `floor`: the newest version that all stores loaded when it was made. `is_alone`:
        no other run was active since the plan's first request; such a run may not have seen the damage."""
        if plan.floor is None or plan.head is None or floor is None:
            return
        # Another run has a newer head, and has meanwhile deleted more.
        newest = max(1, plan.head - self._retained_versions + 1, self.floor)
        if plan.floor > newest:
            raise Lost(f"a floor of {plan.floor} keeps fewer than {self._retained_versions} versions")
        lower = min(floor, plan.floor)
        self.held_floor = lower if is_alone and lower < self.floor else None
        self.floor = max(self.floor, lower)

    def require(self, why: str) -> None:
        """Raises `Lost` when a promised version has neither a whole snapshot nor a gapless way from an older one."""
        loads = {store: self._restorable(store) for store in self._stores}
        for store, version in self.promised():
            if version.version not in loads[store]:
                raise Lost(f"{store} {version} is not restorable any more after {why}; the floor is {self.floor}")

    def rot(self) -> None:
        """Record damage from outside: versions that do not load now are not lost by the library."""
        for store in self._stores:
            loads = self._restorable(store)
            self.rotten |= {(store, number) for number in self._numbers() if number not in loads}

    def _numbers(self) -> list[int]:
        held = [] if self.held_floor is None else [self.held_floor]
        return [*held, *range(self.floor, self.head + 1)]

    def whole_snapshots(self, store: StorePath) -> list[VersionId]:
        """Versions of the committed chain with a zip whose tables are all there."""
        tables = catalog.files(self._root, store.folder).get(store, StoreFiles()).tables
        found = []
        for number in range(1, len(self.committed)):
            version = self.committed[number][store]
            metadata = self._metadata(store.snapshot(version))
            if metadata is not None and all(
                t.dfs_name in tables and tables[t.dfs_name].size_bytes == t.size_bytes for t in metadata.tables
            ):
                found.append(version)
        return found

    def files(self) -> list[str]:
        """Return the files that may rot: those of committed versions and all tables, except those of running
        attempts."""
        named = {
            path
            for of_version in self.committed.values()
            for store, version in of_version.items()
            for path in (batch_log.object_of(store, version), store.snapshot(version))
        }
        return sorted(path for path in self._root.objects if path in named or f"/{names.TABLES}" in path)

    def named_tables(self, store: StorePath) -> set[str]:
        """Return the tables that the snapshots of committed versions name."""
        found = (self._metadata(store.snapshot(of_version[store])) for of_version in self.committed.values())
        return {table.dfs_name for metadata in found if metadata is not None for table in metadata.tables}

    def heads_load(self) -> bool:
        """Return whether the query can continue."""
        return all(self.head in self._restorable(store) for store in self._stores)

    def _restorable(self, store: StorePath) -> Collection[int]:
        found: set[int] = set()
        snapshots = set(self.whole_snapshots(store))
        reached = True
        for number in range(1, len(self.committed)):
            version = self.committed[number][store]
            reached = version in snapshots or (reached and self._has_changelog(store, version))
            if reached:
                found.add(number)
        return found

    def _has_changelog(self, store: StorePath, version: VersionId) -> bool:
        path = batch_log.path_of(version)
        if path is None:
            return store.changelog(version) in self._root.objects
        found = self._root.objects.get(path)
        if found is None:
            return False
        if self._logs.get(path, (b"",))[0] is not found.data:
            try:
                self._logs[path] = (found.data, batch_log.parse_head(found.data, path))
            except CorruptFile:
                self._logs[path] = (found.data, None)
        head = self._logs[path][1]
        return head is not None and head.size_bytes == len(found.data) and (store, version) in head.members

    def _metadata(self, path: str) -> SnapshotMetadata | None:
        found = self._root.objects.get(path)
        if found is None:
            return None
        if self._zips.get(path, (b"",))[0] is not found.data:
            try:
                self._zips[path] = (found.data, read_snapshot(found.data, path).metadata)
            except CorruptFile:
                self._zips[path] = (found.data, None)
        return self._zips[path][1]
