"""Loads versions of one store onto this host: by its local copy, or from storage beside it.

Here belongs the order of steps and what is tried when one fails. From which files a version comes is found out in
`planning`; how the local folder is shared is `engine.local_copy`'s.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from statestore.clock import Clock
from statestore.engine.local_copy import LocalCopyFolder
from statestore.engine.rocks import Database, EngineLimits
from statestore.errors import (
    CorruptFile,
    LocalStateDamaged,
    LocalStateError,
    VersionNotLoadable,
)
from statestore.format.names import StorePath, VersionId
from statestore.format.snapshot import SnapshotMetadata
from statestore.format.state_conf import OURS, StateConf
from statestore.lineage import BaseKind, LoadPlan, LocalCopy
from statestore.loading.base import SnapshotUnusable, open_base
from statestore.loading.changelogs import Changelogs
from statestore.loading.loaded import Loaded, LoadMetrics, Restored
from statestore.loading.planning import Attempt
from statestore.loading.replay import Replay
from statestore.storage import Storage

AHEAD_CHANGELOGS = 32
AHEAD_RECORDS = 75_000
AHEAD_BYTES = 16 * 1024 * 1024
"""So many changelogs, records and plain bytes of them are read into memory over the local copy, at most."""


class Loader:
    """Loads versions of one store. Not safe for use from several threads."""

    def __init__(
        self,
        store: StorePath,
        storage: Storage,
        folder: LocalCopyFolder,
        limits: EngineLimits,
        *,
        clock: Clock,
        lock_timeout_seconds: float,
        conf: StateConf = OURS,
    ) -> None:
        self._store = store
        self._storage = storage
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._lock_timeout_seconds = lock_timeout_seconds
        self._conf = conf

    def load(self, target: VersionId, known_snapshots: Collection[VersionId]) -> tuple[Loaded, LoadMetrics]:
        """The version, open for reading. A copy that is a little behind is served with the missing changes in memory;
        one that is far behind, or on another branch, is moved to the version first.

        Raises `VersionNotLoadable` with what is missing and what still loads, `StorageError`, `LocalDiskFull`.
        """
        started = self._clock.monotonic_seconds()
        before = self._storage.requests.snapshot()
        attempt = self._attempt(target, known_snapshots)
        loaded: Loaded | None = None
        with contextlib.suppress(LocalStateDamaged, VersionNotLoadable):
            # Without the lock neither proves anything: another process may be in the middle of a change.
            loaded = self._serve(attempt)
        if loaded is None:
            with self._folder.locked(self._lock_timeout_seconds) as held:
                loaded = self._move_shared_copy(attempt) if held else self._build_private_copy(attempt)
        spent = self._storage.requests.since(before)
        attempt.metrics.fetched_files += attempt.changelogs.fetched_files
        attempt.metrics.requests = spent.total
        attempt.metrics.fetched_bytes = spent.bytes_read
        attempt.metrics.milliseconds = (self._clock.monotonic_seconds() - started) * 1000
        return loaded, attempt.metrics

    def restore(self, target: VersionId, path: Path) -> Restored:
        """The version from storage alone, in the new directory `path`, unmarked: what a snapshot is made of. Every block of
        the base is read: one that is damaged is passed over for an older base, and named in `metrics.skipped_snapshots`.

        Raises as `load`.
        """
        return self._rebuilt(self._attempt(target, ()), path, marked=False)

    def advance_local_copy(self, target: VersionId) -> bool:
        """Move the local copy forward to a committed version, and merge its tables when many have gathered.

        Off the batch's path: what `load` holds in memory is written down here, several versions in one go. Returns
        whether the copy holds the version then; not when another process is at it, or the copy is on another branch.
        A copy that turns out to be damaged is served no longer. Raises as `load`.
        """
        with self._folder.locked(timeout_seconds=0) as held:
            attempt = self._attempt(target, ())
            try:
                step = self._step_forward(attempt) if held else None
                if step is None:
                    return False
                path, plan = step
                with Database.open_for_writing(path, self._limits) as database:
                    if plan.replay:
                        self._replay(attempt, plan).onto(database)
                    self._folder.forget_changelogs(target.version)
                    if database.wants_merge():
                        database.merge_tables()
            except LocalStateDamaged:
                self._folder.abandon()
                raise
            return True

    def _attempt(self, target: VersionId, known_snapshots: Collection[VersionId]) -> Attempt:
        changelogs = Changelogs(
            self._store, self._storage, self._folder, self._conf, most_record_bytes=self._limits.record_bytes
        )
        return Attempt(self._store, self._storage, target, set(known_snapshots), changelogs)

    def _replay(self, attempt: Attempt, plan: LoadPlan) -> Replay:
        window_bytes, delimiter = self._limits.replay_bytes, self._conf.merge_delimiter
        return Replay(attempt, plan, window_bytes=window_bytes, merge_delimiter=delimiter)

    def _serve(self, attempt: Attempt) -> Loaded | None:
        """The local copy, when it holds what is asked for, or all but a few changes that this host has at hand."""
        database = self._folder.open_current()
        if database is None:
            return None
        try:
            holds = database.holds()
            loaded = None if holds is None else self._with_changes_ahead(attempt, database, holds)
        except BaseException:
            database.close()
            raise
        if loaded is None:
            database.close()
            return None
        self._folder.touch()
        return loaded

    def _with_changes_ahead(self, attempt: Attempt, database: Database, holds: LocalCopy) -> Loaded | None:
        if attempt.target.version - holds.version.version > AHEAD_CHANGELOGS:
            return None
        if not holds.version.is_same(attempt.target) and not attempt.changelogs.are_here([attempt.target]):
            return None
        plan = attempt.plan_from(holds, fetch=False)
        if plan is None:
            return None
        # Losing schedule: another process moves the copy after this one has opened it, and removes the changelogs that
        # are in it then. Whatever cannot be read here is looked at again under the lock.
        with contextlib.suppress(CorruptFile):
            ahead = attempt.changelogs.small(plan.replay, most_records=AHEAD_RECORDS, most_bytes=AHEAD_BYTES)
            if ahead is not None:
                attempt.metrics.replayed_changelogs = len(plan.replay)
                attempt.metrics.replayed_keys = len(ahead)
                return Loaded(database, plan.lineage, ahead)
        return None

    def _move_shared_copy(self, attempt: Attempt) -> Loaded:
        """Called under the lock."""
        try:
            loaded = self._catch_up(attempt)
        except LocalStateDamaged:
            attempt.metrics.replaced_damaged_copy = True
            loaded = None
        except VersionNotLoadable:
            # The copy is older than what retention has left: a newer snapshot may have replaced those changelogs.
            loaded = None
        if loaded is None:
            loaded = self._build(attempt, self._folder.fresh_directory())
            self._folder.serve(loaded.database.path)
        self._folder.forget_changelogs(attempt.target.version)
        self._folder.sweep()
        return loaded

    def _build_private_copy(self, attempt: Attempt) -> Loaded:
        """Somebody keeps the lock: work goes on beside it, at the cost of a load from storage."""
        attempt.metrics.used_private_copy = True
        path = self._folder.fresh_private_directory()
        return replace(self._build(attempt, path), private=path)

    def _catch_up(self, attempt: Attempt) -> Loaded | None:
        """Apply what is missing to the local copy; None when it is not an ancestor of the target."""
        step = self._step_forward(attempt)
        if step is None:
            return None
        path, plan = step
        if plan.replay:
            with Database.open_for_writing(path, self._limits) as database:
                self._replay(attempt, plan).onto(database)
        self._folder.touch()
        return Loaded(Database.open_read_only(path, self._limits), plan.lineage)

    def _step_forward(self, attempt: Attempt) -> tuple[Path, LoadPlan] | None:
        """The local copy's directory and what it lacks; None when it is not an ancestor of the target."""
        path = self._folder.current()
        database = self._folder.open_current()
        if path is None or database is None:
            return None
        with database:
            holds = database.holds()
        if holds is None or holds.version.version > attempt.target.version:
            return None
        plan = attempt.plan_from(holds, fetch=True)
        return None if plan is None else (path, plan)

    def _build(self, attempt: Attempt, path: Path) -> Loaded:
        """Build the version in a directory of its own, which nobody else knows yet."""
        restored = self._rebuilt(attempt, path, marked=True)
        restored.database.close()
        return Loaded(Database.open_read_only(path, self._limits), restored.lineage)

    def _rebuilt(self, attempt: Attempt, path: Path, *, marked: bool) -> Restored:
        while True:
            plan = attempt.plan()
            database: Database | None = None
            try:
                database, base = self._base_database(attempt, plan, path, verified=not marked)
                keys = self._replay(attempt, plan).onto(database, base=base, marked=marked)
                return Restored(database, base, plan.lineage, keys, attempt.metrics)
            except BaseException as error:
                if database is not None:
                    # What a damaged database says when it is closed is less than what was wrong with it before.
                    with contextlib.suppress(LocalStateError):
                        database.close()
                shutil.rmtree(path, ignore_errors=True)
                if not isinstance(error, SnapshotUnusable):
                    raise
                # GC or bit rot took the presumed base: the next older one and a longer replay do as well.
                attempt.snapshots.discard(plan.base)
                attempt.metrics.skipped_snapshots += (f"{self._store.snapshot(plan.base)}: {error}",)

    def _base_database(
        self, attempt: Attempt, plan: LoadPlan, path: Path, *, verified: bool
    ) -> tuple[Database, SnapshotMetadata | None]:
        if plan.base_kind is BaseKind.NOTHING:
            return Database.create(path, self._limits), None
        # Our own jobs write no sidecars; Spark refuses a snapshot that its sidecar does not fit, and so does a load.
        is_sparks = self._conf != OURS
        base = open_base(
            self._storage,
            self._store,
            plan.base,
            path,
            self._limits,
            self._conf,
            compare_sidecar=is_sparks,
            verified=verified,
        )
        attempt.metrics.fetched_files += 1 + len(base.metadata.tables)
        return base.database, base.metadata
