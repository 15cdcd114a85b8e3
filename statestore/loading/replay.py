"""The changelogs of a plan, applied to a database: all of them, or none."""

from __future__ import annotations

import itertools

from statestore.engine.rocks import Database
from statestore.errors import CorruptFile, ObjectMissing, UnknownFormatVersion, VersionNotLoadable
from statestore.format.changelog import Changes
from statestore.format.names import EMPTY, VersionId
from statestore.format.snapshot import SnapshotMetadata
from statestore.lineage import LoadPlan, LocalCopy
from statestore.loading.key_count import KeyCount
from statestore.loading.merges import OrderedWindow
from statestore.loading.planning import Attempt


class Replay:
    """What an attempt has planned. `window_bytes`: so much of it is held in memory; `merge_delimiter`: see `merges`."""

    def __init__(self, attempt: Attempt, plan: LoadPlan, *, window_bytes: int, merge_delimiter: bytes) -> None:
        self._attempt = attempt
        self._plan = plan
        self._window_bytes = window_bytes
        self._merge_delimiter = merge_delimiter

    def onto(
        self,
        database: Database,
        *,
        base: SnapshotMetadata | None = None,
        marked: bool = True,
    ) -> int | None:
        """Apply the plan's changelogs and mark the database. Nothing is applied unless all of it can be read.

        Returned is, for an unmarked one, how many keys it has then; None when that takes going over all. Raises
        `VersionNotLoadable` with the oldest file that is broken, `UnknownFormatVersion`, `StorageError`, `LocalDiskFull`.
        """
        holds = LocalCopy(self._attempt.target, self._plan.lineage) if marked else None
        has_families = base is not None and bool(base.column_families)

        def apply() -> int | None:
            if has_families:
                self._apply_in_order(database)
                return None
            return self._apply(database, holds, None if marked else _key_count(base))

        try:
            self._attempt.changelogs.fetch(self._plan.replay)
            if not marked:
                self._require_families(has_families)
                self._require_one_lineage()
            try:
                keys = apply()
            except CorruptFile:
                self._attempt.changelogs.fetch_again(self._plan.replay)
                keys = apply()
        except (ObjectMissing, CorruptFile) as error:
            broken, what = self._oldest_broken(error)
            raise VersionNotLoadable(
                f"{self._attempt.target.in_words} of {self._attempt.store} cannot be loaded: {what}{self._attempt.skipped}",
                path=self._attempt.store.changelog(broken),
                hint=f"restore the file; the newest version that still loads is {VersionId(broken.version - 1).in_words}",
            ) from error
        self._attempt.metrics.replayed_changelogs = len(self._plan.replay)
        return keys

    def _require_families(self, has_families: bool) -> None:
        """What the families of a store are called stands in its snapshots alone: without one they would be lost."""
        for version in self._plan.replay:
            if self._attempt.changelogs.header(version).is_typed != has_families:
                if self._attempt.metrics.skipped_snapshots:
                    raise VersionNotLoadable(
                        f"{self._attempt.target.in_words} of {self._attempt.store} needs a snapshot that names its column "
                        f"families, and the newest cannot be used: {self._attempt.metrics.skipped_snapshots[0]}",
                        path=self._attempt.store.changelog(version),
                        hint="restore what is missing or damaged from a backup",
                    )
                base = "nothing" if self._plan.base == EMPTY else f"the snapshot of version {self._plan.base.version}"
                raise UnknownFormatVersion(
                    f"is of a store with{'out' if has_families else ''} column families, and would be replayed over "
                    f"{base}, which is of one with{'' if has_families else 'out'}",
                    path=self._attempt.store.changelog(version),
                    hint="restore a snapshot that Spark wrote after it changed the families",
                )

    def _require_one_lineage(self) -> None:
        """Each changelog says on top of which one it was written: under an id in the head's lineage there may lie that of
        another store or version."""
        for before, version in itertools.pairwise((self._plan.base, *self._plan.replay)):
            told = self._attempt.changelogs.header(version).lineage
            if told is not None and told[-1:] != (() if before == EMPTY else (before,)):
                base = f"version {told[-1]}" if told else "nothing"
                raise CorruptFile(
                    f"was written on top of {base}, and is replayed over version {before}",
                    path=self._attempt.store.changelog(version),
                )

    def _apply(self, database: Database, holds: LocalCopy | None, held_keys: int | None) -> int | None:
        count = KeyCount(database, held_keys)
        windows = self._attempt.changelogs.windows(self._plan.replay, self._window_bytes)
        # Not a loop of its own: that would hold a window while the next one is read.
        counted = map(Changes.pairs, map(count.count, windows))
        self._attempt.metrics.replayed_keys = database.apply(counted, holds)
        return count.keys

    def _apply_in_order(self, database: Database) -> None:
        # All of it is read before: what was merged into the database must not be merged a second time.
        only_puts = [self._attempt.changelogs.check(version) for version in self._plan.replay]
        if all(only_puts):
            windows = self._attempt.changelogs.windows(self._plan.replay, self._window_bytes)
            self._attempt.metrics.replayed_keys = database.apply(map(Changes.pairs, windows), None)
            return
        window = OrderedWindow(database, self._merge_delimiter, self._window_bytes)
        for version in self._plan.replay:
            for piece in self._attempt.changelogs.pieces(version):
                window.add(piece)
        window.write()
        self._attempt.metrics.replayed_keys = window.written_keys

    def _oldest_broken(self, seen: ObjectMissing | CorruptFile) -> tuple[VersionId, str]:
        """What was noticed first need not be the oldest, and all below the oldest still loads."""
        for version in self._plan.replay:
            try:
                self._attempt.changelogs.fetch([version])
                self._attempt.changelogs.check(version)
            except (ObjectMissing, CorruptFile) as error:
                return version, error.what
        first, store = self._plan.replay[0], self._attempt.store
        return next((v for v in self._plan.replay if store.changelog(v) == seen.path), first), seen.what


def _key_count(base: SnapshotMetadata | None) -> int | None:
    if base is None:
        return 0
    return base.key_count if base.key_count >= 0 else None
