"""Bringing a version of a store onto this host: from its local copy, a snapshot, and the changelogs in between.

Here belongs the order of steps and what is tried when one fails. Which files give a version is `lineage`'s decision;
how the local folder is shared is `engine.local_copy`'s.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from statestore.base import SnapshotUnusable, open_base
from statestore.changelogs import Changelogs
from statestore.clock import Clock
from statestore.confirmed import plan_confirmed
from statestore.engine.local_copy import LocalCopyFolder
from statestore.engine.rocks import Database, EngineLimits
from statestore.errors import (
    CorruptFile,
    LocalStateDamaged,
    LocalStateError,
    ObjectMissing,
    UnknownFormatVersion,
    VersionNotLoadable,
)
from statestore.format.changelog import Changes
from statestore.format.names import EMPTY, StoreFileKind, StorePath, VersionId, parse_store_file
from statestore.format.snapshot import SnapshotMetadata
from statestore.format.state_conf import OURS, StateConf
from statestore.key_count import KeyCount
from statestore.lineage import BaseKind, Lineage, LoadPlan, LocalCopy, NeedsHeader, NotLoadable, next_step
from statestore.loaded import Loaded, LoadMetrics, Restored
from statestore.merges import OrderedWindow
from statestore.storage import Storage

AHEAD_CHANGELOGS = 32
AHEAD_RECORDS = 75_000
AHEAD_BYTES = 16 * 1024 * 1024
"""So many changelogs, records and plain bytes of them are read into memory over the local copy, at most."""


@dataclass
class _Attempt:
    """The facts gathered during one load."""

    target: VersionId
    snapshots: set[VersionId]
    changelogs: Changelogs
    metrics: LoadMetrics = field(default_factory=LoadMetrics)
    listed: bool = False
    headers: dict[VersionId, Lineage] = field(default_factory=dict)

    @property
    def wanted(self) -> str:
        return _named(self.target)


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
        """The version from storage alone, in the new directory `path`, unmarked: what a snapshot is made of.

        Raises as `load`.
        """
        return self._rebuilt(self._attempt(target, ()), path, marked=False)

    def keep_house(self, target: VersionId) -> bool:
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
                        self._replay(attempt, plan, database)
                    self._folder.forget_changelogs(target.version)
                    if database.wants_merge():
                        database.merge_tables()
            except LocalStateDamaged:
                self._folder.abandon()
                raise
            return True

    def _attempt(self, target: VersionId, known_snapshots: Collection[VersionId]) -> _Attempt:
        return _Attempt(target, set(known_snapshots), Changelogs(self._store, self._storage, self._folder, self._conf))

    def _serve(self, attempt: _Attempt) -> Loaded | None:
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

    def _with_changes_ahead(self, attempt: _Attempt, database: Database, holds: LocalCopy) -> Loaded | None:
        if attempt.target.version - holds.version.version > AHEAD_CHANGELOGS:
            return None
        if not holds.version.is_same(attempt.target) and not attempt.changelogs.are_here([attempt.target]):
            return None
        plan = self._plan_from(attempt, holds, fetch=False)
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

    def _move_shared_copy(self, attempt: _Attempt) -> Loaded:
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

    def _build_private_copy(self, attempt: _Attempt) -> Loaded:
        """Somebody keeps the lock: work goes on beside it, at the cost of a load from storage."""
        attempt.metrics.used_private_copy = True
        path = self._folder.fresh_private_directory()
        return replace(self._build(attempt, path), private=path)

    def _catch_up(self, attempt: _Attempt) -> Loaded | None:
        """Apply what is missing to the local copy; None when it is not an ancestor of the target."""
        step = self._step_forward(attempt)
        if step is None:
            return None
        path, plan = step
        if plan.replay:
            with Database.open_for_writing(path, self._limits) as database:
                self._replay(attempt, plan, database)
        self._folder.touch()
        return Loaded(Database.open_read_only(path, self._limits), plan.lineage)

    def _step_forward(self, attempt: _Attempt) -> tuple[Path, LoadPlan] | None:
        """The local copy's directory and what it lacks; None when it is not an ancestor of the target."""
        path = self._folder.current()
        database = self._folder.open_current()
        if path is None or database is None:
            return None
        with database:
            holds = database.holds()
        if holds is None or holds.version.version > attempt.target.version:
            return None
        plan = self._plan_from(attempt, holds, fetch=True)
        return None if plan is None else (path, plan)

    def _build(self, attempt: _Attempt, path: Path) -> Loaded:
        """Build the version in a directory of its own, which nobody else knows yet."""
        restored = self._rebuilt(attempt, path, marked=True)
        restored.database.close()
        return Loaded(Database.open_read_only(path, self._limits), restored.lineage)

    def _rebuilt(self, attempt: _Attempt, path: Path, *, marked: bool) -> Restored:
        while True:
            plan = self._plan(attempt, None)
            database: Database | None = None
            try:
                database, base = self._base_database(attempt, plan, path)
                keys = self._replay(attempt, plan, database, base=base, marked=marked)
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

    def _plan_from(self, attempt: _Attempt, holds: LocalCopy, *, fetch: bool) -> LoadPlan | None:
        """From the local copy; None when it is no ancestor of the target. Without `fetch`, in structure V1, by what this
        host has at hand."""
        if attempt.target.digest is None:
            plan = self._plan(attempt, holds)
            return plan if plan.base_kind is BaseKind.LOCAL else None
        try:
            replay = attempt.changelogs.chain(holds.version, attempt.target, fetch=fetch)
        except ObjectMissing:
            return None
        if replay is None:
            return None
        attempt.metrics.base = BaseKind.LOCAL
        return LoadPlan(BaseKind.LOCAL, holds.version, replay, ())

    def _plan_confirmed(self, attempt: _Attempt) -> LoadPlan:
        if not attempt.listed:
            self._list_snapshots(attempt)
        found = plan_confirmed(self._storage, self._store, attempt.target, attempt.snapshots, attempt.changelogs)
        attempt.metrics.base = found.plan.base_kind
        attempt.metrics.skipped_snapshots += tuple(
            reason for reason in found.skipped if reason not in attempt.metrics.skipped_snapshots
        )
        return found.plan

    def _plan(self, attempt: _Attempt, local: LocalCopy | None) -> LoadPlan:
        """Look up what the decision still needs, until there is one."""
        if attempt.target.digest is not None:
            return self._plan_confirmed(attempt)
        while True:
            step = next_step(attempt.target, snapshots=attempt.snapshots, local=local, headers=attempt.headers)
            match step:
                case LoadPlan(base_kind=kind) if kind is BaseKind.LOCAL or attempt.listed or attempt.target == EMPTY:
                    attempt.metrics.base = kind
                    return step
                case NeedsHeader(version) if local is not None or attempt.listed:
                    self._read_header(attempt, version)
                case _ if not attempt.listed:
                    # A cold load: one listing finds what maintenance made since the driver last looked.
                    self._list_snapshots(attempt)
                case NotLoadable(missing, reason):
                    raise VersionNotLoadable(
                        f"{attempt.wanted} of {self._store} has no base: {reason}",
                        path=self._store.changelog(missing),
                        hint="restore that file, or a snapshot of its version, or go back to a version with a snapshot",
                    )

    def _list_snapshots(self, attempt: _Attempt) -> None:
        attempt.listed = True
        for entry in self._storage.list(self._store.folder):
            folder, _, name = entry.path.rpartition("/")
            parsed = parse_store_file(name)
            if folder == self._store.folder and parsed is not None and parsed.kind is StoreFileKind.SNAPSHOT:
                attempt.snapshots.add(parsed.version)

    def _read_header(self, attempt: _Attempt, version: VersionId) -> None:
        path = self._store.changelog(version)
        try:
            header = attempt.changelogs.header(version)
        except (ObjectMissing, CorruptFile) as error:
            if not attempt.listed:
                # A snapshot of just this version makes its changelog superfluous: retention may have removed it.
                self._list_snapshots(attempt)
                return
            older = max((s for s in attempt.snapshots if s.version < version.version), default=None)
            back = f"the newest older snapshot is of {_named(older)}" if older else "there is no older snapshot"
            raise VersionNotLoadable(
                f"{attempt.wanted} of {self._store} cannot be loaded: {error.what}",
                path=path,
                hint=f"restore the file, or go back to {_named(version, less=1)}; {back}",
            ) from error
        if header.lineage is None:
            raise UnknownFormatVersion("a changelog without lineage under an id", path=path, hint="nothing was changed")
        attempt.headers[version] = header.lineage

    def _base_database(self, attempt: _Attempt, plan: LoadPlan, path: Path) -> tuple[Database, SnapshotMetadata | None]:
        if plan.base_kind is BaseKind.NOTHING:
            return Database.create(path, self._limits), None
        base = open_base(self._storage, self._store, plan.base, path, self._limits, self._conf)
        attempt.metrics.fetched_files += 1 + len(base.metadata.tables)
        return base.database, base.metadata

    def _replay(
        self,
        attempt: _Attempt,
        plan: LoadPlan,
        database: Database,
        *,
        base: SnapshotMetadata | None = None,
        marked: bool = True,
    ) -> int | None:
        """Apply the plan's changelogs and mark the database. Nothing is applied unless all of it can be read.

        Returned is, for an unmarked one, how many keys it has then; None when that takes going over all.
        """
        holds = LocalCopy(attempt.target, plan.lineage) if marked else None
        has_families = base is not None and bool(base.column_families)

        def apply() -> int | None:
            if has_families:
                self._apply_in_order(attempt, plan, database)
                return None
            return self._apply(attempt, plan, database, holds, None if marked else _key_count(base))

        try:
            attempt.changelogs.fetch(plan.replay)
            if not marked:
                self._require_families(attempt, plan, has_families)
            try:
                keys = apply()
            except CorruptFile:
                attempt.changelogs.fetch_again(plan.replay)
                keys = apply()
        except (ObjectMissing, CorruptFile) as error:
            broken, what = self._oldest_broken(attempt, plan.replay, error)
            raise VersionNotLoadable(
                f"{attempt.wanted} of {self._store} cannot be loaded: {what}",
                path=self._store.changelog(broken),
                hint=f"restore the file; the newest version that still loads is {_named(broken, less=1)}",
            ) from error
        attempt.metrics.replayed_changelogs = len(plan.replay)
        return keys

    def _require_families(self, attempt: _Attempt, plan: LoadPlan, has_families: bool) -> None:
        """What the families of a store are called stands in its snapshots alone: without one they would be lost."""
        for version in plan.replay:
            if attempt.changelogs.header(version).is_typed != has_families:
                base = "nothing" if plan.base == EMPTY else f"the snapshot of version {plan.base.version}"
                raise UnknownFormatVersion(
                    f"is of a store with{'out' if has_families else ''} column families, and would be replayed over "
                    f"{base}, which is of one with{'' if has_families else 'out'}",
                    path=self._store.changelog(version),
                    hint="restore a snapshot that Spark wrote after it changed the families",
                )

    def _apply(
        self, attempt: _Attempt, plan: LoadPlan, database: Database, holds: LocalCopy | None, held_keys: int | None
    ) -> int | None:
        count = KeyCount(database, held_keys)
        windows = attempt.changelogs.windows(plan.replay, self._limits.replay_bytes)
        # Not a loop of its own: that would hold a window while the next one is read.
        counted = map(Changes.pairs, map(count.count, windows))
        attempt.metrics.replayed_keys = database.apply(counted, holds)
        return count.keys

    def _apply_in_order(self, attempt: _Attempt, plan: LoadPlan, database: Database) -> None:
        # All of it is read before: what was merged into the database must not be merged a second time.
        only_puts = [attempt.changelogs.check(version) for version in plan.replay]
        if all(only_puts):
            windows = attempt.changelogs.windows(plan.replay, self._limits.replay_bytes)
            attempt.metrics.replayed_keys = database.apply(map(Changes.pairs, windows), None)
            return
        window = OrderedWindow(database, self._conf.merge_delimiter, self._limits.replay_bytes)
        for version in plan.replay:
            for piece in attempt.changelogs.pieces(version):
                window.add(piece)
        window.write()
        attempt.metrics.replayed_keys = window.written_keys

    def _oldest_broken(
        self, attempt: _Attempt, replay: Lineage, seen: ObjectMissing | CorruptFile
    ) -> tuple[VersionId, str]:
        """What was noticed first need not be the oldest, and all below the oldest still loads."""
        for version in replay:
            try:
                attempt.changelogs.fetch([version])
                attempt.changelogs.check(version)
            except (ObjectMissing, CorruptFile) as error:
                return version, error.what
        return next((v for v in replay if self._store.changelog(v) == seen.path), replay[0]), seen.what


def _key_count(base: SnapshotMetadata | None) -> int | None:
    if base is None:
        return 0
    return base.key_count if base.key_count >= 0 else None


def _named(version: VersionId, *, less: int = 0) -> str:
    number = version.version - less
    return f"version {number} (batch {number - 1})" if number else "version 0, the empty one"
