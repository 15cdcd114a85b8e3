"""The replay of a plan: all of its changelogs are applied to a database, or none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, UnknownFormatVersion, VersionNotLoadable
from statekeeper.statestore.checkpoint.lineage import LoadPlan, LocalCopy
from statekeeper.statestore.format.changelog import Changes, Kind
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.format.snapshot import SnapshotMetadata
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from statekeeper.statestore.store.loading.changelogs import Changelogs
from statekeeper.statestore.store.loading.planning import LoadRequest

_RECORD_BYTES = 200
"""The memory for a record, in addition to its bytes."""


@dataclass
class _Left:
    """The result for a key: the pieces of its value, None if deleted. `over`: the pieces follow the existing value."""

    pieces: list[bytes] | None
    over: bool = False


class OrderedWindow:
    """Records of successive changelogs. They are written to the database when they take `memory_bytes`, and so are the keys
    of a deleted range.

    The database must not be in use yet: a window is written before the next one is read.
    """

    def __init__(self, database: Database, delimiter: bytes, memory_bytes: int) -> None:
        self.written_keys = 0
        self._database = database
        self._delimiter = delimiter
        self._memory_bytes = memory_bytes
        self._left: dict[bytes, _Left] = {}
        self._bytes = 0

    def add(self, changes: Changes) -> None:
        """Add records in order. Write all if they exceed the memory."""
        kinds = [None] * len(changes) if changes.kinds is None else changes.kinds.tolist()
        for (key, value), kind in zip(changes.pairs(), kinds, strict=True):
            self._bytes += len(key) + len(value or b"") + _RECORD_BYTES
            if value is None:
                self._left[key] = _Left(None)
            elif kind == Kind.MERGE:
                left = self._left.setdefault(key, _Left([], over=True))
                if left.pieces is None:
                    left.pieces = []
                left.pieces.append(value)
            elif kind == Kind.DELETE_RANGE:
                self._delete_range(key, value)
            else:
                self._left[key] = _Left([value])
        if self._bytes >= self._memory_bytes:
            self.write()

    def write(self) -> None:
        """Write the records in memory."""
        self.written_keys += self._database.apply([list(self._resolved())] if self._left else [], None)
        self._left.clear()
        self._bytes = 0

    def _delete_range(self, begin: bytes, end: bytes) -> None:
        for key in self._left:
            if begin <= key < end:
                self._left[key] = _Left(None)
        for key in self._database.keys_between(begin, end):
            self._left[key] = _Left(None)
            self._bytes += len(key) + _RECORD_BYTES
            if self._bytes >= self._memory_bytes:
                # The iteration continues over the database as it was at its start, without the keys just written.
                self.write()

    def _resolved(self) -> Iterator[tuple[bytes, bytes | None]]:
        ordered = sorted(self._left)
        over = [key for key in ordered if self._left[key].over]
        before = dict(zip(over, self._database.get_many(over), strict=True))
        for key in ordered:
            pieces = self._left[key].pieces
            first = before.get(key)
            if pieces is None:
                yield key, None
            else:
                yield key, self._delimiter.join(pieces if first is None else [first, *pieces])


_LOOKUPS_COST = 5
"""A lookup costs as much as a scan of so many keys (measured: 2.5 and 0.5 microseconds)."""

_KEYS_AT_ONCE = 10_000


class KeyCount:
    """Counts keys, starting from the number in the metadata of the base, `held`; None if it is unknown. As in Spark, that
    number is not verified.

    `keys`: the exact result; None if only `Database.count_keys` can determine it. `at_once`: keys of one lookup.
    """

    def __init__(self, database: Database, held: int | None, *, at_once: int = _KEYS_AT_ONCE) -> None:
        self.keys = held
        self._database = database
        self._held = held
        self._at_once = at_once
        self._windows = 0

    def count(self, window: Changes) -> Changes:
        """Count a window that the database does not contain yet, and return it."""
        self._windows += 1
        if self._windows > 1 or self._held is None:
            # A key of this window may be in an earlier window, which the database does not contain yet.
            self.keys = None
        elif self._held == 0:
            self.keys = int(np.count_nonzero(window.value_length >= 0))
        elif _LOOKUPS_COST * len(window) < self._held:
            self.keys = self._held + self._more(window)
        else:
            self.keys = None
        return window

    def _more(self, window: Changes) -> int:
        more = 0
        pairs = window.pairs()
        while some := list(itertools.islice(pairs, self._at_once)):
            held = self._database.get_many([key for key, _ in some])
            more += sum((new is not None) - (old is not None) for (_, new), old in zip(some, held, strict=True))
        return more


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
                has_families = base is not None and bool(base.column_families)
                for before, version in self._steps():
                    header = changelogs.header(version, base=before)
                    self._require_families(version, header, has_families)
                    self._require_one_lineage(before, version, header)
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

    def _require_families(self, version: VersionId, header: Header, has_families: bool) -> None:
        """Only snapshots contain the names of column families. Changelogs with families need a snapshot with families."""
        if header.is_typed == has_families:
            return
        if self.skipped:
            raise self.request.not_loadable(
                version,
                "needs a snapshot that names the column families of the store",
                skipped=self.skipped[:1],
                action="restore the missing or damaged file from a backup",
                newest="changelogs alone cannot restore a store with column families",
            )
        base = "the empty state" if self.plan.base == EMPTY else f"the snapshot of {self.plan.base.in_words}"
        has, base_has = ("no", "some") if has_families else ("some", "none")
        raise UnknownFormatVersion(
            f"has {has} column families, but its base ({base}) has {base_has}; "
            f"{self.request.target.in_words} of {self.request.store} cannot be loaded",
            path=self.request.store.changelog(version),
            hint="restore a snapshot that Spark wrote after the column families changed",
        )

    def _require_one_lineage(self, before: VersionId, version: VersionId, header: Header) -> None:
        """A changelog names its predecessor. A file of another store or version may have the name of one in the lineage."""
        lineage = header.lineage
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
