"""The replay of a plan: all of its changelogs are applied to a database, or none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from statekeeper.statestore.engine.rocks import Database, EngineLimits
from statekeeper.statestore.errors import CorruptFile, ObjectMissing, UnknownFormatVersion, VersionNotLoadable
from statekeeper.statestore.format.changelog import Changes
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.format.snapshot import SnapshotMetadata
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.lineage import LoadPlan, LocalCopy
from statekeeper.statestore.loading.changelogs import Changelogs
from statekeeper.statestore.loading.key_count import KeyCount
from statekeeper.statestore.loading.merges import OrderedWindow
from statekeeper.statestore.loading.request import LoadRequest


@dataclass(frozen=True)
class Replayed:
    """`written_keys`: the number of keys that the replay wrote. `keys`: the number of keys in the database after it; None
    if only `Database.count_keys` can determine it."""

    written_keys: int
    keys: int | None = None


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A plan, its request, the changelogs on this host, and the memory and configuration for the replay.

    `skipped`: the snapshots that cannot be a base, each with its problem; for the errors.
    """

    request: LoadRequest
    plan: LoadPlan
    changelogs: Changelogs
    skipped: tuple[str, ...] = ()
    limits: EngineLimits
    conf: StateConf

    def onto(self, database: Database, *, base: SnapshotMetadata | None = None, marked: bool = True) -> Replayed:
        """Apply the changelogs of the plan. Apply none if one of them cannot be read.

        `marked`: write version and lineage into the database; otherwise count its keys. Raises `VersionNotLoadable` with
        the oldest unusable changelog, `UnknownFormatVersion`, `StorageError`, `LocalDiskFull`.
        """
        changelogs, plan = self.changelogs, self.plan
        try:
            changelogs.fetch(plan.base, plan.replay)
            if not marked:
                self._require_families(base is not None and bool(base.column_families))
                self._require_one_lineage()
            try:
                return self._apply(database, base, marked=marked)
            except CorruptFile:
                changelogs.fetch_again(plan.base, plan.replay)
                return self._apply(database, base, marked=marked)
        except (ObjectMissing, CorruptFile) as error:
            raise self._not_loadable(error) from error

    def _apply(self, database: Database, base: SnapshotMetadata | None, *, marked: bool) -> Replayed:
        if base is not None and base.column_families:
            return self._apply_in_order(database)
        count = KeyCount(database, None if marked else _key_count(base))
        windows = self.changelogs.windows(self.plan.replay, self.limits.replay_bytes)
        # A loop would keep a window in memory while the next one is read.
        counted = map(Changes.pairs, map(count.count, windows))
        mark = LocalCopy(self.request.target, self.plan.lineage) if marked else None
        return Replayed(database.apply(counted, mark), count.keys)

    def _apply_in_order(self, database: Database) -> Replayed:
        changelogs = self.changelogs
        # All changelogs are read before: a merge must not be applied twice.
        only_puts = [changelogs.check(version) for version in self.plan.replay]
        if all(only_puts):
            windows = changelogs.windows(self.plan.replay, self.limits.replay_bytes)
            return Replayed(database.apply(map(Changes.pairs, windows), None))
        window = OrderedWindow(database, self.conf.merge_delimiter, self.limits.replay_bytes)
        for version in self.plan.replay:
            for piece in changelogs.pieces(version):
                window.add(piece)
        window.write()
        return Replayed(window.written_keys)

    def _require_families(self, has_families: bool) -> None:
        """Only snapshots contain the names of column families. Changelogs with families need a snapshot with families."""
        for before, version in self._steps():
            if self.changelogs.header(version, base=before).is_typed == has_families:
                continue
            if self.skipped:
                raise self.request.not_loadable(
                    version,
                    "needs a snapshot that names the column families of the store",
                    skipped=self.skipped[:1],
                    action="restore the missing or damaged file from a backup",
                    newest="changelogs alone cannot restore a store with column families",
                )
            base = "version 0" if self.plan.base == EMPTY else f"the snapshot of version {self.plan.base.version}"
            has, base_has = ("no", "some") if has_families else ("some", "none")
            raise UnknownFormatVersion(
                f"has {has} column families, but its base ({base}) has {base_has}; "
                f"{self.request.target.in_words} of {self.request.store} cannot be loaded",
                path=self.request.store.changelog(version),
                hint="restore a snapshot that Spark wrote after the column families changed",
            )

    def _require_one_lineage(self) -> None:
        """A changelog names its predecessor. A file of another store or version may have the name of one in the lineage."""
        for before, version in self._steps():
            lineage = self.changelogs.header(version, base=before).lineage
            if lineage is not None and lineage[-1:] != (() if before == EMPTY else (before,)):
                raise CorruptFile(
                    f"names version {lineage[-1] if lineage else 0} as its predecessor instead of version {before}",
                    path=self.request.store.changelog(version),
                )

    def _steps(self) -> Iterator[tuple[VersionId, VersionId]]:
        return itertools.pairwise((self.plan.base, *self.plan.replay))

    def _not_loadable(self, seen: ObjectMissing | CorruptFile) -> VersionNotLoadable:
        """The error for the oldest unusable changelog, not for the one seen first: versions below it can be loaded."""
        replay, store = self.plan.replay, self.request.store
        for before, version in self._steps():
            try:
                self.changelogs.fetch(before, [version])
                self.changelogs.check(version)
            except (ObjectMissing, CorruptFile) as error:
                return self.request.unreadable(version, error, skipped=self.skipped, of_job=self.conf == OURS)
        culprit = next((version for version in replay if store.changelog(version) == seen.path), replay[0])
        return self.request.unreadable(culprit, seen, skipped=self.skipped, of_job=self.conf == OURS)


def _key_count(base: SnapshotMetadata | None) -> int | None:
    if base is None:
        return 0
    return base.key_count if base.key_count >= 0 else None
