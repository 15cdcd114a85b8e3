"""Bringing a version of a store onto this host: from its local copy, a snapshot, and the changelogs in between.

Here belongs the order of steps and what is tried when one fails. Which files give a version is `lineage`'s decision;
how the local folder is shared is `engine.local_copy`'s.
"""

from __future__ import annotations

import contextlib
import mmap
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from statestore.clock import Clock
from statestore.engine.local_copy import LocalCopyFolder
from statestore.engine.rocks import Database, EngineLimits, translated
from statestore.errors import (
    CorruptFile,
    LocalStateDamaged,
    ObjectMissing,
    UnknownFormatVersion,
    VersionNotLoadable,
)
from statestore.format.changelog import Readable, read_changelog, read_header
from statestore.format.names import EMPTY, StoreFileKind, StorePath, VersionId, parse_store_file
from statestore.format.snapshot import Snapshot, TableFile, read_snapshot
from statestore.lineage import BaseKind, Lineage, LoadPlan, LocalCopy, NeedsHeader, NotLoadable, next_step
from statestore.storage import Storage

_FETCHES_AT_ONCE = 8
_WINDOW_KEYS = 250_000
_WINDOW_BYTES = 64 * 1024 * 1024
_MAP_FROM_BYTES = 16 * 1024 * 1024

Item = TypeVar("Item")


@dataclass
class LoadMetrics:
    """What a load did. Bytes, files and requests are those of storage; `base` is where it started."""

    base: BaseKind = BaseKind.NOTHING
    replayed_changelogs: int = 0
    replayed_keys: int = 0
    fetched_bytes: int = 0
    fetched_files: int = 0
    requests: int = 0
    milliseconds: float = 0.0
    used_private_copy: bool = False
    replaced_damaged_copy: bool = False
    skipped_snapshots: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """A version, open for reading. `lineage` is what a successor carries; `private` is removed when it is closed."""

    database: Database
    lineage: Lineage
    private: Path | None = None

    def close(self) -> None:
        """Close the database, and remove it if nobody else may use it."""
        self.database.close()
        if self.private is not None:
            shutil.rmtree(self.private, ignore_errors=True)


class _SnapshotUnusable(Exception):
    """A snapshot that was to be the base is missing or damaged."""


@dataclass
class _Attempt:
    """The facts gathered during one load."""

    target: VersionId
    snapshots: set[VersionId]
    metrics: LoadMetrics = field(default_factory=LoadMetrics)
    listed: bool = False
    headers: dict[VersionId, Lineage] = field(default_factory=dict)
    fetched: set[VersionId] = field(default_factory=set)

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
    ) -> None:
        self._store = store
        self._storage = storage
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._lock_timeout_seconds = lock_timeout_seconds

    def load(self, target: VersionId, known_snapshots: Collection[VersionId]) -> tuple[Loaded, LoadMetrics]:
        """The version, open for reading; the local copy is moved to it when it holds another one.

        Raises `VersionNotLoadable` with what is missing and what still loads, `StorageError`, `LocalDiskFull`.
        """
        started = self._clock.monotonic_seconds()
        before = self._storage.requests.snapshot()
        attempt = _Attempt(target, set(known_snapshots))
        loaded: Loaded | None = None
        with contextlib.suppress(LocalStateDamaged):
            # Without the lock damage proves nothing: another process may be in the middle of a change.
            loaded = self._serve(attempt)
        if loaded is None:
            with self._folder.locked(self._lock_timeout_seconds) as held:
                loaded = self._move_shared_copy(attempt) if held else self._build_private_copy(attempt)
        spent = self._storage.requests.since(before)
        attempt.metrics.requests = spent.total
        attempt.metrics.fetched_bytes = spent.bytes_read
        attempt.metrics.milliseconds = (self._clock.monotonic_seconds() - started) * 1000
        return loaded, attempt.metrics

    def _serve(self, attempt: _Attempt) -> Loaded | None:
        """The local copy, when it holds just what is asked for."""
        database = self._folder.open_current()
        if database is None:
            return None
        try:
            holds = database.holds()
        except BaseException:
            database.close()
            raise
        if holds is None or holds.version != attempt.target:
            database.close()
            return None
        self._folder.touch()
        return Loaded(database, self._plan(attempt, holds).lineage)

    def _move_shared_copy(self, attempt: _Attempt) -> Loaded:
        """Called under the lock."""
        try:
            loaded = self._serve(attempt) or self._catch_up(attempt)
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
        path = self._folder.current()
        database = self._folder.open_current()
        if path is None or database is None:
            return None
        with database:
            holds = database.holds()
        if holds is None:
            return None
        plan = self._plan(attempt, holds)
        if plan.base_kind is not BaseKind.LOCAL:
            return None
        with Database.open_for_writing(path, self._limits) as database:
            self._replay(attempt, plan, database)
        self._folder.touch()
        return Loaded(Database.open_read_only(path, self._limits), plan.lineage)

    def _build(self, attempt: _Attempt, path: Path) -> Loaded:
        """Build the version in a directory of its own, which nobody else knows yet."""
        while True:
            plan = self._plan(attempt, None)
            try:
                with self._base_database(attempt, plan, path) as database:
                    self._replay(attempt, plan, database)
                return Loaded(Database.open_read_only(path, self._limits), plan.lineage)
            except _SnapshotUnusable as reason:
                # GC or bit rot took the presumed base: the next older one and a longer replay do as well.
                shutil.rmtree(path, ignore_errors=True)
                attempt.snapshots.discard(plan.base)
                attempt.metrics.skipped_snapshots += (f"{self._store.snapshot(plan.base)}: {reason}",)
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise

    def _plan(self, attempt: _Attempt, local: LocalCopy | None) -> LoadPlan:
        """Look up what the decision still needs, until there is one."""
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
            self._fetch(attempt, [version])
            try:
                header = read_header(self._changelog(version), path)
            except CorruptFile:
                self._fetch_again(attempt, [version])
                header = read_header(self._changelog(version), path)
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

    def _base_database(self, attempt: _Attempt, plan: LoadPlan, path: Path) -> Database:
        if plan.base_kind is BaseKind.NOTHING:
            return Database.create(path, self._limits)
        try:
            snapshot = read_snapshot(
                self._storage.read(self._store.snapshot(plan.base)), self._store.snapshot(plan.base)
            )
            if snapshot.metadata.column_families:
                raise UnknownFormatVersion(
                    "a snapshot with column families", path=self._store.snapshot(plan.base), hint="nothing was changed"
                )
            self._unpack(attempt, snapshot, path)
            return Database.open_for_writing(path, self._limits)
        except (ObjectMissing, CorruptFile, LocalStateDamaged) as error:
            raise _SnapshotUnusable(str(error)) from error

    def _unpack(self, attempt: _Attempt, snapshot: Snapshot, path: Path) -> None:
        with translated(path):
            path.mkdir(parents=True)
            for name, body in snapshot.files.items():
                (path / name).write_bytes(body)

        def fetch(table: TableFile) -> None:
            source = self._store.table_file(table.dfs_name)
            size = self._storage.download(source, path / table.local_name)
            if size != table.size_bytes:
                raise CorruptFile(f"has {size:,} bytes, its snapshot says {table.size_bytes:,}", path=source)

        self._at_once(fetch, snapshot.metadata.tables)
        attempt.metrics.fetched_files += 1 + len(snapshot.metadata.tables)

    def _replay(self, attempt: _Attempt, plan: LoadPlan, database: Database) -> None:
        """Apply the plan's changelogs and mark the database. Nothing is applied unless all of it can be read."""
        holds = LocalCopy(attempt.target, plan.lineage)
        try:
            self._fetch(attempt, plan.replay)
            try:
                written = database.apply(self._windows(plan.replay), holds)
            except CorruptFile:
                self._fetch_again(attempt, plan.replay)
                written = database.apply(self._windows(plan.replay), holds)
        except (ObjectMissing, CorruptFile) as error:
            broken, what = self._oldest_broken(attempt, plan.replay, error)
            raise VersionNotLoadable(
                f"{attempt.wanted} of {self._store} cannot be loaded: {what}",
                path=self._store.changelog(broken),
                hint=f"restore the file; the newest version that still loads is {_named(broken, less=1)}",
            ) from error
        attempt.metrics.replayed_changelogs = len(plan.replay)
        attempt.metrics.replayed_keys = written

    def _oldest_broken(
        self, attempt: _Attempt, replay: Lineage, seen: ObjectMissing | CorruptFile
    ) -> tuple[VersionId, str]:
        """What was noticed first need not be the oldest, and all below the oldest still loads."""
        for version in replay:
            try:
                self._fetch(attempt, [version])
                for _ in self._windows((version,)):
                    pass
            except (ObjectMissing, CorruptFile) as error:
                return version, error.what
        return next((v for v in replay if self._store.changelog(v) == seen.path), replay[0]), seen.what

    def _windows(self, replay: Lineage) -> Iterator[dict[bytes, bytes | None]]:
        window: dict[bytes, bytes | None] = {}
        window_bytes = 0
        for version in replay:
            _, pieces = read_changelog(self._changelog(version), self._store.changelog(version))
            for changes in pieces:
                window.update(changes.pairs())
                window_bytes += len(changes.buffer)
                if len(window) >= _WINDOW_KEYS or window_bytes >= _WINDOW_BYTES:
                    yield window
                    window, window_bytes = {}, 0
        if window:
            yield window

    def _changelog(self, version: VersionId) -> Readable:
        path = self._folder.cached_changelog(version)
        try:
            if path.stat().st_size < _MAP_FROM_BYTES:
                return path.read_bytes()
            with path.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            # A private copy is built without the lock, while its holder forgets what is behind it.
            raise CorruptFile("left the host's cache", path=self._store.changelog(version)) from error

    def _fetch(self, attempt: _Attempt, versions: Iterable[VersionId]) -> None:
        """Have these changelogs in the host's cache."""

        def fetch(version: VersionId) -> None:
            unfinished = self._folder.unfinished_file()
            path = self._store.changelog(version)
            try:
                with translated(unfinished):
                    self._storage.download(path, unfinished)
                    unfinished.replace(self._folder.cached_changelog(version))
            except ObjectMissing as error:
                raise ObjectMissing(error.what, path=path) from error
            finally:
                unfinished.unlink(missing_ok=True)

        absent = [version for version in versions if not self._folder.cached_changelog(version).exists()]
        self._at_once(fetch, absent)
        attempt.fetched.update(absent)
        attempt.metrics.fetched_files += len(absent)

    def _fetch_again(self, attempt: _Attempt, versions: Iterable[VersionId]) -> None:
        """A cached changelog cannot be read: storage decides. What was fetched just now is not asked for again."""
        for version in versions:
            if version not in attempt.fetched:
                self._folder.cached_changelog(version).unlink(missing_ok=True)
        self._fetch(attempt, versions)

    def _at_once(self, work: Callable[[Item], None], items: Sequence[Item]) -> None:
        if len(items) < 2:
            for item in items:
                work(item)
            return
        with ThreadPoolExecutor(_FETCHES_AT_ONCE) as pool:
            for _ in pool.map(work, items):
                pass


def _named(version: VersionId, *, less: int = 0) -> str:
    number = version.version - less
    return f"version {number} (batch {number - 1})" if number else "version 0, the empty one"
