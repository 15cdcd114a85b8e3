"""Hosts that alternate on one store, and the model of its rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.format import logs
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId, commits
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from statekeeper.statestore.store.loading.open_copies import OpenCopies
from statekeeper.statestore.store.state_store import StateStore, StoreAddress, StoreLimits, advance_local_copy

STORE = StorePath(0, 3)

State = dict[bytes, bytes]
Changes = Mapping[bytes, bytes | None]


def column(values: Collection[bytes | None]) -> pa.LargeBinaryArray:
    return pa.array(list(values), pa.large_binary())


def changed(state: State, changes: Changes) -> State:
    """Apply changes to a state."""
    after = {**state, **{key: value for key, value in changes.items() if value is not None}}
    return {key: value for key, value in after.items() if changes.get(key, b"") is not None}


@dataclass(frozen=True)
class Host:
    """One machine: a storage client and a scratch folder."""

    storage: Storage
    folder: Path
    clock: Clock = field(default_factory=SystemClock)
    structure: Structure = Structure.V2
    limits: StoreLimits = field(default_factory=lambda: StoreLimits(block_cache_bytes=1024 * 1024))
    open_copies: OpenCopies | None = None
    store: StorePath = STORE

    @property
    def address(self) -> StoreAddress:
        return StoreAddress(self.store, self.folder)

    def load(
        self, version: VersionId, *, snapshots: Collection[VersionId] = (), limits: StoreLimits | None = None
    ) -> StateStore:
        return StateStore.load(
            self.address,
            version,
            storage=self.storage,
            clock=self.clock,
            ids=RandomIds(),
            snapshots=snapshots,
            limits=limits or self.limits,
            structure=self.structure,
            open_copies=self.open_copies,
        )

    def commit(self, base: VersionId, changes: Changes, *, snapshots: Collection[VersionId] = ()) -> VersionId:
        """One batch."""
        with self.load(base, snapshots=snapshots) as store:
            store.put(column(list(changes)), column(list(changes.values())))
            return store.commit()

    def advance_local_copy(self, version: VersionId) -> bool:
        """Advance the local copy, as a task does in the background after a batch."""
        return advance_local_copy(self.address, version, storage=self.storage, clock=self.clock, ids=RandomIds())

    def batch(self, base: VersionId, changes: Changes) -> VersionId:
        """One batch as a task has it: with housekeeping when the store asks for it."""
        with self.load(base) as store:
            store.put(column(list(changes)), column(list(changes.values())))
            version = store.commit()
        if store.needs_compaction:
            self.advance_local_copy(base)
        return version

    def copy(self) -> Database:
        """The database that is served, for reading."""
        database = LocalCopyFolder(self.folder, EngineLimits(), RandomIds()).open_current()
        assert database is not None
        return database

    def holds(self) -> VersionId:
        """The version that the host's copy holds."""
        with self.copy() as database:
            held = database.holds()
        assert held is not None
        return held.version

    def read(self, version: VersionId) -> State:
        """All that a version holds."""
        with self.load(version) as store:
            return dict(store.scan())


@dataclass
class History:
    """Versions committed one after the other, and the rows of each."""

    versions: list[VersionId] = field(default_factory=lambda: [EMPTY])
    states: list[State] = field(default_factory=lambda: [{}])

    @property
    def head(self) -> VersionId:
        return self.versions[-1]

    def commit(self, host: Host, changes: Changes, *, snapshots: Collection[VersionId] = ()) -> VersionId:
        version = host.commit(self.head, changes, snapshots=snapshots)
        if host.structure is Structure.V1:
            # As the driver does: only the commit has the digest of a version that has a snapshot.
            digests = {STORE.operator: ((str(version.digest),),) * (STORE.partition + 1)}
            log = logs.encode_commit(logs.CommitLog(0, None, digests))
            host.storage.create(commits(version.version - 1), log)
        self.versions.append(version)
        self.states.append(changed(self.states[-1], changes))
        return version

    def grow(self, host: Host, batches: int) -> None:
        """Commit batches that put, overwrite and delete keys."""
        for _ in range(batches):
            number = len(self.versions)
            self.commit(
                host,
                {
                    b"key %03d" % number: b"born in %d" % number,
                    b"counter": b"%d" % number,
                    b"key %03d" % (number - 3): None,
                },
            )
