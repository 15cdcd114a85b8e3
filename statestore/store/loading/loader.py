"""Loads of one store onto this host: request -> facts -> plan -> replay -> report.

This module orders the steps and chooses the alternative when one fails. `planning` chooses the files;
`store.engine.local_copy` shares the local folder among processes.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import CorruptFile, LocalStateDamaged, LocalStateError, VersionNotLoadable
from statekeeper.statestore.checkpoint.lineage import BaseKind, LoadPlan, LocalCopy, NotLoadable
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.snapshot import SnapshotMetadata
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.kept_tables import KeptStore
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from statekeeper.statestore.store.loading.base import SnapshotUnusable, open_base
from statekeeper.statestore.store.loading.changelogs import Changelogs
from statekeeper.statestore.store.loading.loaded import Loaded, LoadReport, Restored
from statekeeper.statestore.store.loading.open_copies import OpenCopies, OpenCopy
from statekeeper.statestore.store.loading.planning import (
    LoadRequest,
    gather,
    plan_confirmed,
    plan_from_local,
    plan_from_storage,
)
from statekeeper.statestore.store.loading.replay import Replay


@dataclass(frozen=True)
class AheadLimits:
    """The most changelogs, records and uncompressed bytes that a load keeps in memory over the local copy."""

    changelogs: int = 32
    records: int = 75_000
    uncompressed_bytes: int = 16 * 1024 * 1024

    def shared_by(self, stores: int) -> AheadLimits:
        """Return the limits of each of so many stores that are open at once: together they need the memory of four."""
        share = -(-stores // 4)
        return replace(self, records=self.records // share, uncompressed_bytes=self.uncompressed_bytes // share)


AHEAD = AheadLimits()


class Loader:
    """Loads versions of one store. Not thread-safe."""

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
        ahead: AheadLimits = AHEAD,
        open_copies: OpenCopies | None = None,
        kept: KeptStore | None = None,
    ) -> None:
        self._store = store
        self._storage = storage
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._lock_timeout_seconds = lock_timeout_seconds
        self._conf = conf
        self._ahead = ahead
        self._open_copies = open_copies
        self._kept = kept

    def load(self, target: VersionId, known_snapshots: Collection[VersionId]) -> tuple[Loaded, LoadReport]:
        """Open a version for reading.

        A local copy that is a few versions behind stays as it is, with the missing changes in memory. A copy that is far
        behind or on another branch is moved to the version first. Raises `VersionNotLoadable` with the unusable file and
        the newest version that can be loaded, `StorageError`, `LocalDiskFull`.
        """
        started = self._clock.monotonic_seconds()
        before = self._storage.requests.snapshot()
        request = LoadRequest(self._store, target, frozenset(known_snapshots), self._storage.url)
        changelogs = self._changelogs()
        found: tuple[Loaded, LoadReport] | None = None
        # Without the lock this error proves nothing: another process may be changing the copy.
        with contextlib.suppress(LocalStateDamaged):
            found = self._serve_open_copy(request, changelogs) or self._serve(request, changelogs)
        if found is None:
            with self._folder.locked(self._lock_timeout_seconds) as held:
                found = (
                    self._move_shared_copy(request, changelogs)
                    if held
                    else self._build_private_copy(request, changelogs)
                )
        loaded, report = found
        spent = self._storage.requests.since(before)
        return loaded, replace(
            report,
            fetched_files=report.fetched_files + changelogs.fetched_files,
            fetched_bytes=spent.bytes_read,
            requests=spent.total,
            milliseconds=(self._clock.monotonic_seconds() - started) * 1000,
        )

    def restore(self, target: VersionId, path: Path, *, older_than: int | None = None) -> Restored:
        """Restore a version from storage into the new directory `path`, for a snapshot or a drill.

        Tables of its base may be kept copies. The database is not marked with its version. Every block of the base is
        verified: if one is corrupt, an older base is used, and `report.skipped_snapshots` names the snapshot. `older_than`:
        the base has a smaller number than this. Raises as `load`.
        """
        request = LoadRequest(self._store, target, root=self._storage.url)
        return self._rebuild(request, self._changelogs(), path, marked=False, older_than=older_than)

    def advance_local_copy(self, target: VersionId) -> bool:
        """Move the local copy forward to a committed version. Compact its tables if there are many.

        For use between batches: this writes the changes of several versions that `load` keeps in memory. Returns whether
        the copy then contains the version: it does not if another process holds the lock or the copy is on another branch.
        A damaged copy is no longer served. Raises as `load`.
        """
        with self._folder.locked(timeout_seconds=0) as held:
            if not held:
                return False
            request, changelogs = LoadRequest(self._store, target, root=self._storage.url), self._changelogs()
            try:
                local = self._local_copy()
                if local is None:
                    return False
                path, holds = local
                plan = plan_from_local(request, changelogs, holds, fetch=True)
                if isinstance(plan, NotLoadable):
                    # If storage has no base either, this raises.
                    plan_from_storage(request, gather(request, self._storage), changelogs)
                if not isinstance(plan, LoadPlan):
                    return False
                with Database.open_for_writing(path, self._limits) as database:
                    if plan.replay:
                        Replay(
                            request=request, plan=plan, changelogs=changelogs, limits=self._limits, conf=self._conf
                        ).onto(database)
                    self._folder.forget_changelogs(target.version)
                    if database.wants_merge():
                        database.merge_tables()
            except LocalStateDamaged:
                self._folder.abandon()
                raise
            return True

    def _changelogs(self) -> Changelogs:
        most_record_bytes = self._limits.record_bytes(self._storage.limits)
        return Changelogs(self._store, self._storage, self._folder, self._conf, most_record_bytes=most_record_bytes)

    def _serve_open_copy(self, request: LoadRequest, changelogs: Changelogs) -> tuple[Loaded, LoadReport] | None:
        """Serve the copy that this process has open, if it is still the local copy. Otherwise, close it."""
        copy = None if self._open_copies is None else self._open_copies.lend(self._folder.folder)
        if copy is None:
            return None
        found: tuple[Loaded, LoadReport] | None = None
        try:
            # Another process may have replaced the directory, because it is damaged.
            if self._folder.current() == copy.database.path:
                found = self._with_changes_ahead(request, changelogs, copy)
        finally:
            if found is None:
                copy.close()
        return found

    def _serve(self, request: LoadRequest, changelogs: Changelogs) -> tuple[Loaded, LoadReport] | None:
        """Serve the local copy if it contains the target, or all but a few changes that are in changelogs on this host."""
        database = self._folder.open_current()
        if database is None:
            return None
        found: tuple[Loaded, LoadReport] | None = None
        try:
            holds = database.holds()
            if holds is not None:
                copy = OpenCopy(database=database, database_version=holds.version.version, holds=holds)
                found = self._with_changes_ahead(request, changelogs, copy)
        finally:
            if found is None:
                database.close()
        return found

    def _with_changes_ahead(
        self, request: LoadRequest, changelogs: Changelogs, copy: OpenCopy
    ) -> tuple[Loaded, LoadReport] | None:
        target, holds = request.target, copy.holds
        ahead_versions = target.version - copy.database_version
        if ahead_versions > self._ahead.changelogs:
            return None
        if not holds.version.is_same(target) and not changelogs.are_here([target]):
            return None
        plan = plan_from_local(request, changelogs, holds, fetch=False)
        if not isinstance(plan, LoadPlan):
            return None
        # Race: another process moves the copy after this one has opened it, and removes the changelogs that the copy then
        # contains. If a changelog cannot be read here, the load continues under the lock.
        with contextlib.suppress(CorruptFile):
            later = changelogs.small(
                plan.replay,
                most_records=self._ahead.records - len(copy.ahead),
                most_bytes=self._ahead.uncompressed_bytes - copy.ahead_bytes,
            )
            if later is not None:
                self._folder.touch()
                report = LoadReport(base=BaseKind.LOCAL, replayed_changelogs=len(plan.replay), replayed_keys=len(later))
                copy.ahead.update(later)
                loaded = Loaded(
                    database=copy.database, lineage=plan.lineage, ahead=copy.ahead, ahead_versions=ahead_versions
                )
                return loaded, report
        return None

    def _move_shared_copy(self, request: LoadRequest, changelogs: Changelogs) -> tuple[Loaded, LoadReport]:
        """Bring the shared local copy to the target. The caller holds the lock."""
        is_damaged = False
        found: tuple[Loaded, LoadReport] | None = None
        try:
            found = self._catch_up(request, changelogs)
        except LocalStateDamaged:
            is_damaged = True
        except VersionNotLoadable:
            # Retention may have deleted the changelogs after the copy; a newer snapshot replaces them.
            pass
        if found is None:
            path = self._folder.fresh_directory()
            restored = self._rebuild(request, changelogs, path, marked=True)
            restored.database.close()
            loaded = Loaded(database=self._folder.open_database(path), lineage=restored.lineage)
            found = loaded, restored.report
            self._folder.serve(path)
        self._folder.forget_changelogs(request.target.version)
        self._folder.sweep()
        loaded, report = found
        return loaded, replace(report, replaced_damaged_copy=is_damaged)

    def _build_private_copy(self, request: LoadRequest, changelogs: Changelogs) -> tuple[Loaded, LoadReport]:
        """Load from storage into a private directory, because another process holds the lock."""
        path = self._folder.fresh_private_directory()
        restored = self._rebuild(request, changelogs, path, marked=True)
        restored.database.close()
        loaded = Loaded(database=self._folder.open_database(path), lineage=restored.lineage, private=path)
        return loaded, replace(restored.report, used_private_copy=True)

    def _local_copy(self) -> tuple[Path, LocalCopy] | None:
        """The directory of the local copy and its version; None if there is none."""
        path = self._folder.current()
        database = self._folder.open_current()
        if path is None or database is None:
            return None
        with database:
            holds = database.holds()
        return None if holds is None else (path, holds)

    def _catch_up(self, request: LoadRequest, changelogs: Changelogs) -> tuple[Loaded, LoadReport] | None:
        """Replay the missing changelogs onto the local copy; None if it is missing or no ancestor of the target."""
        local = self._local_copy()
        if local is None:
            return None
        path, holds = local
        plan = plan_from_local(request, changelogs, holds, fetch=True)
        if not isinstance(plan, LoadPlan):
            return None
        written_keys = 0
        if plan.replay:
            with Database.open_for_writing(path, self._limits) as database:
                written_keys = (
                    Replay(request=request, plan=plan, changelogs=changelogs, limits=self._limits, conf=self._conf)
                    .onto(database)
                    .written_keys
                )
        self._folder.touch()
        report = LoadReport(base=BaseKind.LOCAL, replayed_changelogs=len(plan.replay), replayed_keys=written_keys)
        return Loaded(database=self._folder.open_database(path), lineage=plan.lineage), report

    def _rebuild(
        self,
        request: LoadRequest,
        changelogs: Changelogs,
        path: Path,
        *,
        marked: bool,
        older_than: int | None = None,
    ) -> Restored:
        """Build the target from storage in a new directory that no other process uses yet."""
        facts = gather(request, self._storage)
        if older_than is not None:
            older = frozenset(one for one in facts.snapshots if one.version < older_than)
            facts = replace(facts, snapshots=older)
        store_of_kept, kept = self._kept, list[str]()

        def link(source: str, target: Path) -> bool:
            listed = facts.files.get(source)
            is_kept = store_of_kept is not None and listed is not None and store_of_kept.link(listed, target)
            if is_kept:
                kept.append(source)
            return is_kept

        while True:
            kept.clear()
            if request.target.digest is None:
                plan = plan_from_storage(request, facts, changelogs)
            else:
                plan, facts = plan_confirmed(request, facts, changelogs, self._storage)
            database: Database | None = None
            base: SnapshotMetadata | None = None
            started = self._clock.monotonic_seconds()
            try:
                if plan.base == EMPTY:
                    database = Database.create(path, self._limits)
                else:
                    opened = open_base(
                        self._storage,
                        self._store,
                        plan.base,
                        path,
                        self._limits,
                        self._conf,
                        link=link,
                        # Jobs of Statekeeper write no sidecars. Spark rejects a snapshot whose sidecar does not fit.
                        compare_sidecar=self._conf != OURS,
                        verified=not marked,
                    )
                    database, base = opened.database, opened.metadata
                opened_after = self._clock.monotonic_seconds() - started
                replayed = Replay(
                    request=request,
                    plan=plan,
                    changelogs=changelogs,
                    skipped=facts.skipped,
                    limits=self._limits,
                    conf=self._conf,
                ).onto(database, base=base, marked=marked)
                report = LoadReport(
                    base=plan.base_kind,
                    replayed_changelogs=len(plan.replay),
                    replayed_keys=replayed.written_keys,
                    fetched_files=1 + len(base.tables) - len(kept) if base else 0,
                    skipped_snapshots=facts.skipped,
                    kept_tables=len(kept),
                    base_version=plan.base,
                    base_milliseconds=opened_after * 1000,
                )
                return Restored(database=database, base=base, lineage=plan.lineage, keys=replayed.keys, report=report)
            except BaseException as error:
                if database is not None:
                    # An error on closing a damaged database would hide the first error.
                    with contextlib.suppress(LocalStateError):
                        database.close()
                shutil.rmtree(path, ignore_errors=True)
                if not isinstance(error, SnapshotUnusable):
                    raise
                if store_of_kept is not None and kept:
                    # Only its files in storage decide whether the base is damaged.
                    store_of_kept.drop()
                    store_of_kept = None
                    continue
                # The base was deleted or is corrupt. An older base and a longer replay give the same version.
                facts = facts.without(self._store, plan.base, str(error))
