"""Restores stores into scratch folders, times it, and compares the rows. The checkpoint is only read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.base.errors import (
    DAMAGES,
    CorruptFile,
    LocalStateDamaged,
    ObjectMissing,
    StatekeeperError,
    UnknownFormatVersion,
)
from statekeeper.statestore.contents.differences import Change
from statekeeper.statestore.contents.differences import Differences as RowDifferences
from statekeeper.statestore.contents.rows import Contents, Layout, OpenStore, layout_or_bytes
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance.executors import Executor, Place
from statekeeper.statestore.maintenance.upkeep.drill.model import (
    Against,
    Comparison,
    Differences,
    Drilled,
    DrillStore,
    Shown,
    StoreFacts,
)
from statekeeper.statestore.maintenance.upkeep.drill.plan import version_of
from statekeeper.statestore.maintenance.upkeep.drill.sparks import shown_digests
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import EngineLimits
from statekeeper.statestore.store.engine.scratch import work_folder
from statekeeper.statestore.store.loading.loaded import Restored
from statekeeper.statestore.store.loading.loader import Loader

_UNRESTORABLE: tuple[type[StatekeeperError], ...] = (*DAMAGES, ObjectMissing, LocalStateDamaged)
"""Errors of a store whose files do not give its rows."""

_MOST_TRIES = 3
"""Loads of a store whose files are deleted meanwhile because the query commits further batches."""

_DECODED_ROWS = 1


@dataclass(frozen=True, kw_only=True)
class DrillEach:
    """The task of a restore. `contents`, `is_shown`: see `drill_all`."""

    storage: Storage
    conf: StateConf
    contents: Contents | None
    is_shown: bool = False

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.storage,)

    def __call__(self, action: DrillStore, place: Place) -> Drilled:
        # At most two loads of a store are open at once.
        limits = EngineLimits(block_bytes=4096, replay_bytes=place.memory_bytes // (2 * place.at_a_time))
        return _Drill(
            storage=self.storage,
            action=action,
            conf=self.conf,
            contents=self.contents,
            limits=limits,
            place=place,
            is_shown=self.is_shown,
        ).run()


def drill_all(
    task: DrillEach,
    actions: Sequence[DrillStore],
    ended: Callable[[DrillStore, Drilled | StatekeeperError], None],
    *,
    executor: Executor,
    again: Callable[[StoreFacts], StoreFacts | None] = lambda facts: None,
) -> None:
    """Restore stores. A task has at most two loads of a store on disk, each with its changelogs.

    `task.contents`: decodes the first key that differs; `task.is_shown`: digest also the decoded rows; `again`: looks at a
    store again whose load failed. A failure does not stop the others; see `Executor.map` for interruptions and the calls of
    `ended`.
    """
    tries = dict.fromkeys((action.store for action in actions), 1)
    while actions:
        failed: list[DrillStore] = []

        def judged(action: DrillStore, outcome: Drilled | StatekeeperError, failed: list[DrillStore] = failed) -> None:
            is_lost = isinstance(outcome, Drilled) and not outcome.digest
            now = again(action.facts) if is_lost and tries[action.store] < _MOST_TRIES else None
            if now is None:
                ended(action, outcome)
            else:
                tries[action.store] += 1
                failed.append(DrillStore(facts=now, reason=action.reason))

        executor.map(task, actions, judged)
        actions = failed


@dataclass(frozen=True, kw_only=True)
class _Drill:
    """The drill of one store. `contents`, `is_shown`: see `drill_all`."""

    storage: Storage
    action: DrillStore
    conf: StateConf
    contents: Contents | None
    limits: EngineLimits
    place: Place
    is_shown: bool

    def run(self) -> Drilled:
        """Restore the store, and compare it. Raises `LocalDiskFull`, `StorageError`."""
        facts = self.action.facts
        with work_folder(self.place.folder, "drill") as folder:
            started = self.place.clock.monotonic_seconds()
            try:
                restored = self._loader(folder / "newest").restore(facts.version, folder / "newest" / "database")
            except _UNRESTORABLE as error:
                return Drilled(action=self.action, problem=facts.problem or str(error))
            seconds = self.place.clock.monotonic_seconds() - started
            report = restored.report
            with restored.database as database:
                try:
                    digest = database.digest()
                except LocalStateDamaged as error:
                    return Drilled(action=self.action, problem=error.what)
                shown: Shown = self._shown(restored) if self.is_shown else {}
                problem = "; ".join(dict.fromkeys(report.skipped_snapshots))
                comparisons = self._compared(restored, digest, folder, is_finding=bool(problem))
            base_seconds = min(seconds, report.base_milliseconds / 1000)
            return Drilled(
                action=self.action,
                digest=digest,
                rows=_rows_in(digest),
                base=report.base_version or EMPTY,
                base_seconds=base_seconds,
                replay_seconds=seconds - base_seconds,
                comparisons=comparisons,
                problem=problem,
                shown=shown,
            )

    def _loader(self, folder: Path) -> Loader:
        """A loader with a cache of its own: each load reads the storage."""
        cache = LocalCopyFolder(folder / "store", self.limits, self.place.ids)
        store, clock = self.action.store, self.place.clock
        return Loader(store, self.storage, cache, self.limits, clock=clock, lock_timeout_seconds=0, conf=self.conf)

    def _compared(self, restored: Restored, digest: str, folder: Path, *, is_finding: bool) -> tuple[Comparison, ...]:
        """Make the comparisons that are possible. `is_finding`: the load itself is a finding.

        An error of the storage or of the disk in a later one must not hide a finding. Raises it without a finding.
        """
        base = restored.report.base_version or EMPTY
        steps: dict[Against, Callable[[Path], Comparison]] = {}
        if self.action.facts.older is not None and base != EMPTY:
            steps[Against.REPLAY] = lambda place: self._with_replay(restored, digest, base.version, place)
        if self.action.last is not None:
            steps[Against.LAST_DRILL] = lambda place: self._with_last_drill(restored, digest, place)
        found: list[Comparison] = []
        for against, step in steps.items():
            place = folder / code(against)
            try:
                found.append(step(place))
            except StatekeeperError as error:
                if not is_finding:
                    raise
                found.append(Comparison(against=against, what="", is_equal=None, why=str(error)))
            finally:
                shutil.rmtree(place, ignore_errors=True)
            is_finding = is_finding or found[-1].is_equal is False
        return tuple(found)

    def _with_replay(self, restored: Restored, digest: str, base: int, folder: Path) -> Comparison:
        """Compare with a load that does not use the newest snapshot. It finds a snapshot with wrong rows."""
        version = self.action.version
        try:
            other = self._loader(folder).restore(version, folder / "database", older_than=base)
            with other.database as database:
                is_equal = database.digest() == digest
                found = None if is_equal else self._differences(restored, other)
        except _UNRESTORABLE as error:
            why = f"the replay from an older base is not possible: {error.what}"
            return Comparison(against=Against.REPLAY, what="", is_equal=None, why=why)
        begin = other.report.base_version or EMPTY
        since = begin.in_words if begin == EMPTY else f"the snapshot of {begin.in_words}"
        what = f"the replay of {other.report.replayed_changelogs:,} changelogs since {since}"
        return Comparison(against=Against.REPLAY, what=what, is_equal=is_equal, differences=found)

    def _with_last_drill(self, restored: Restored, digest: str, folder: Path) -> Comparison:
        """Compare with the rows of the last drill: of this version, or of an earlier one, which is restored again.

        Equality proves the present rows only if the last drill proved its own. Those of an earlier version must also be a
        step of the present load: from the same base, with only changelogs since.
        """
        last = self.action.last
        assert last is not None
        version = version_of(last, self.action.facts)
        what = f"the last drill, of {version.in_words}"
        why = "" if last.is_proved else f"unchanged since {what}, which proved no rows either"
        if version == self.action.version:
            is_equal = last.digest == digest
        else:
            try:
                earlier = self._loader(folder).restore(version, folder / "database")
                with earlier.database as database:
                    is_equal = database.digest() == last.digest
            except _UNRESTORABLE as error:
                why = f"{version.in_words} of the last drill does not load any more: {error.what}"
                return Comparison(against=Against.LAST_DRILL, what="", is_equal=None, why=why)
            bases = {one.report.base_version or EMPTY for one in (restored, earlier)}
            if not why and (len(bases) > 1 or not self._passes_through(version)):
                why = f"{version.in_words} is unchanged since the last drill, and the present load does not continue it"
        return Comparison(
            against=Against.LAST_DRILL, what=what, is_equal=is_equal, why=why if is_equal else "", proves=not why
        )

    def _passes_through(self, version: VersionId) -> bool:
        """Whether the present load has this version as its base or after one of its changelogs."""
        load = self.action.facts.load
        return load is not None and any(one.is_same(version) for one in (load.base, *load.replay))

    def _shown(self, restored: Restored) -> Shown:
        """Digest the decoded rows, or return why they cannot be compared with Spark's."""
        assert self.contents is not None  # a store was restored
        try:
            layout = layout_or_bytes(self.contents, self.action.store)
            return layout.unreadable or shown_digests(self._opened(self.contents, restored, layout))
        except (CorruptFile, ObjectMissing, UnknownFormatVersion) as error:
            return error

    def _opened(self, contents: Contents, restored: Restored, layout: Layout) -> OpenStore:
        families = {} if restored.base is None else restored.base.column_families
        return OpenStore(
            contents=contents, store=self.action.store, layout=layout, database=restored.database, ids=families
        )

    def _differences(self, restored: Restored, other: Restored) -> Differences | None:
        """Count the rows of the newest snapshot that differ from those of the replay; None if they cannot be read in
        order."""
        if self.contents is None:
            return None
        for decoded_rows in (_DECODED_ROWS, 0):
            try:
                layout = layout_or_bytes(self.contents, self.action.store)
                both = [self._opened(self.contents, one, layout) for one in (other, restored)]
                found = RowDifferences(before=both[0], after=both[1], decoded_rows=decoded_rows)
                keys = [one.key for one in found]
            except StatekeeperError:
                continue  # the schema does not decode the rows: count them
            return Differences(
                found.counts[Change.REMOVED],
                found.counts[Change.ADDED],
                found.counts[Change.CHANGED],
                key=str(keys[0]) if keys else None,
                conditions=tuple(_conditions(keys[0])) if keys else (),
            )
        return None


def _conditions(key: Mapping[str, Any]) -> Iterator[str]:
    """Conditions of `dump --key` that select the key; none for columns that are no scalars."""
    for name, value in key.items():
        if isinstance(value, Mapping):
            yield from _conditions(value)
        elif isinstance(value, str | bool | int | float) or value is None:
            yield f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def _rows_in(digest: str) -> int:
    return int(digest.partition(":")[0])
