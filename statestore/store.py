"""What a streaming task holds: one version of one store, open for reading, and the changes that make the next one.

*Guarantee.* A commit is one object, created if absent under a name that was never used; it never touches the local
database, which moves on only to versions that the driver has confirmed: later loads see the new one over it, and
housekeeping after a batch writes it down. So an abort, a twin or a zombie leaves everything as it was (SPARK-43421,
SPARK-49374).

In structure V1 the object is named by its version alone: an attempt that runs again replaces it, and what the driver
confirms is a digest of it (`statestore.digests`). A zombie that replaces it later is found out by the next load from
storage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from statestore import digests
from statestore.clock import Clock, Ids
from statestore.engine.local_copy import LocalCopyFolder
from statestore.engine.pending_changes import PendingChanges
from statestore.engine.rocks import FIRST_RESERVED_KEY, Database, EngineLimits, translated
from statestore.errors import LineageCeiling, LocalStateDamaged, LocalStateError, UnsupportedType
from statestore.format import names
from statestore.format.changelog import ChangelogWriter, Header, lineage_bytes
from statestore.format.java_io import UTF_LIMIT_BYTES
from statestore.format.names import EMPTY, StorePath, VersionId
from statestore.format.structure import Structure
from statestore.lineage import Lineage
from statestore.loading.loaded import Loaded, LoadReport
from statestore.loading.loader import Loader
from statestore.storage import Storage

LINEAGE_STOP_BYTES = 62_000
"""Spark reads at most 65,535 bytes of lineage. The store stops some 45 versions earlier, in time for one."""

LINEAGE_WARN_BYTES = 50_000
"""From here on a job should say that snapshots are missing."""

_AHEAD_VERSIONS = 4
_AHEAD_KEYS = 20_000
_AHEAD_BYTES = 4 * 1024 * 1024
"""With so much in memory at a load, the host's copy should be moved forward after the batch."""


@dataclass(frozen=True)
class StoreLimits:
    """What a store may use on its host."""

    block_cache_bytes: int = 32 * 1024 * 1024
    lock_timeout_seconds: float = 30.0


@dataclass
class CommitMetrics:
    """What a commit did. Changed bytes are the plain records; uploaded bytes what storage took.

    `lineage_versions`: how many versions the changelog names, none in structure V1. `tail_changelogs`: how many changelogs
    there are since the newest snapshot, this one included.
    """

    changed_keys: int = 0
    changed_bytes: int = 0
    uploaded_bytes: int = 0
    requests: int = 0
    encode_milliseconds: float = 0.0
    upload_milliseconds: float = 0.0
    lineage_versions: int = 0
    tail_changelogs: int = 0


@dataclass(frozen=True)
class StoreAddress:
    """Where a store is: its path in the root, and the host's folder for its scratch copy."""

    path: StorePath
    local_folder: Path


@dataclass
class _Changelog:
    """The file of the next version while it is written."""

    path: Path
    file: BinaryIO
    writer: ChangelogWriter
    finished: bool = field(default=False)


class StateStore:
    """One version of one store. Use it as a context manager: leaving without `commit` aborts.

    Keys and values are `pa.LargeBinaryArray`s of bytes; what is in them is the caller's business.
    Not safe for use from several threads.
    """

    def __init__(
        self,
        address: StoreAddress,
        base: VersionId,
        loaded: Loaded,
        load_report: LoadReport,
        *,
        storage: Storage,
        folder: LocalCopyFolder,
        snapshots: Collection[VersionId],
        clock: Clock,
        ids: Ids,
        structure: Structure = Structure.V2,
    ) -> None:
        self.base = base
        self.next = VersionId(base.version + 1, None if structure is Structure.V1 else ids.fresh())
        self.load_report = load_report
        self.commit_metrics = CommitMetrics(
            lineage_versions=len(loaded.lineage), tail_changelogs=_tail_changelogs(base, loaded.lineage, snapshots)
        )
        self._structure = structure
        self._path = address.path
        self._loaded = loaded
        self._storage = storage
        self._folder = folder
        self._clock = clock
        self._changelog: _Changelog | None = None
        self._failure: LocalStateError | None = None
        self._released = False
        ahead_keys = len(loaded.ahead)
        # Reads see what the local copy lacks as they see the changes of the batch: over the database.
        self._pending = PendingChanges(folder.unfinished_file(), loaded.ahead)
        self.needs_compaction = loaded.database.wants_merge() or (
            ahead_keys > 0
            and (
                load_report.replayed_changelogs >= _AHEAD_VERSIONS
                or ahead_keys >= _AHEAD_KEYS
                or self._pending.held_bytes >= _AHEAD_BYTES
            )
        )

    @classmethod
    def load(
        cls,
        address: StoreAddress,
        base: VersionId,
        *,
        storage: Storage,
        clock: Clock,
        ids: Ids,
        snapshots: Collection[VersionId] = (),
        limits: StoreLimits | None = None,
        structure: Structure = Structure.V2,
    ) -> StateStore:
        """Open version `base` on this host. `snapshots`: versions that the caller knows to have one, from which the
        lineage of the next version may start. `structure`: of the root; in V1 `base` has its digest, unless it is `EMPTY`.

        Raises `VersionNotLoadable`, `LineageCeiling`, `StorageError`, `LocalStateError`.
        """
        if base != EMPTY and (base.digest if structure is Structure.V1 else base.id) is None:
            raise ValueError(f"version {base} has nothing that tells it from others of its number")
        limits = limits or StoreLimits()
        engine = EngineLimits(limits.block_cache_bytes)
        folder = LocalCopyFolder(address.local_folder, engine, ids)
        loader = Loader(
            address.path, storage, folder, engine, clock=clock, lock_timeout_seconds=limits.lock_timeout_seconds
        )
        loaded, metrics = loader.load(base, snapshots)
        try:
            _check_ceiling(address.path, base, loaded.lineage)
        except LineageCeiling:
            loaded.close()
            raise
        return cls(
            address,
            base,
            loaded,
            metrics,
            storage=storage,
            folder=folder,
            snapshots=snapshots,
            clock=clock,
            ids=ids,
            structure=structure,
        )

    @property
    def lineage(self) -> Lineage:
        """The versions that the next changelog names, ascending, `base` included."""
        return self._loaded.lineage

    def get(self, keys: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        """The value of each key, null where there is none; what was put or deleted here is seen. Same length and order
        as `keys`; fastest when they are sorted."""
        wanted: list[bytes] = keys.to_pylist()
        changed, others = self._pending.split(wanted) if self._pending else ({}, wanted)
        with self._reading():
            stored = self._database.get_many(others)
        if not changed:
            return pa.array(stored, pa.large_binary())
        found = dict(zip(others, stored, strict=True))
        found.update(changed)
        return pa.array([found[key] for key in wanted], pa.large_binary())

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """All pairs whose key begins with `prefix`, in key order; what was put or deleted here is seen."""
        changes = self._pending.ordered(prefix)
        change = next(changes, None)
        for keys, values in self._stored(prefix):
            for key, value in zip(keys, values, strict=True):
                while change is not None and change[0] < key:
                    if change[1] is not None:
                        yield change[0], change[1]
                    change = next(changes, None)
                if change is not None and change[0] == key:
                    if change[1] is not None:
                        yield key, change[1]
                    change = next(changes, None)
                else:
                    yield key, value
        while change is not None:
            if change[1] is not None:
                yield change[0], change[1]
            change = next(changes, None)

    def _stored(self, prefix: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
        with self._reading():
            yield from self._database.scan(prefix)

    def put(self, keys: pa.LargeBinaryArray, values: pa.LargeBinaryArray) -> None:
        """Set the value of each key, in order; a null value deletes its key. Same length."""
        started = self._clock.monotonic_seconds()
        changed: list[bytes] = keys.to_pylist()
        if changed and max(changed) >= FIRST_RESERVED_KEY:
            raise UnsupportedType("a key that begins with ff ff ff ff", path=str(self._path), hint="no row begins so")
        with self._writing():
            self._writer().append(keys, values)
            self._pending.put_many(changed, values.to_pylist())
        self.commit_metrics.encode_milliseconds += (self._clock.monotonic_seconds() - started) * 1000

    def delete(self, keys: pa.LargeBinaryArray) -> None:
        """Remove each key."""
        self.put(keys, pa.nulls(len(keys), pa.large_binary()))

    def commit(self) -> VersionId:
        """Make the next version durable and say its name, with its digest in structure V1. Without changes too: each
        version has a changelog.

        After a `StorageError` the changes are still here: call it again and the same object is sent again.
        """
        changelog = self._finished_changelog()
        started = self._clock.monotonic_seconds()
        before = self._storage.requests.snapshot()
        self._send(changelog.path)
        spent = self._storage.requests.since(before)
        metrics = self.commit_metrics
        metrics.changed_keys = changelog.writer.records
        metrics.changed_bytes = changelog.writer.record_bytes
        metrics.uploaded_bytes = changelog.path.stat().st_size
        metrics.requests = spent.total
        metrics.upload_milliseconds = (self._clock.monotonic_seconds() - started) * 1000
        # The next load on this host replays these bytes without asking storage, once the driver has confirmed the id.
        with contextlib.suppress(OSError):
            changelog.path.replace(self._folder.cached_changelog(self.next))
        self._changelog = None
        self._release()
        return self.next

    def _send(self, file: Path) -> None:
        path = self._path.changelog(self.next)
        if self._structure is Structure.V2:
            self._storage.create(path, file)
        # Losing schedule: an attempt that Spark believes dead wakes up when its batch is committed, by another attempt.
        # What stands there is confirmed, and stays. One that falls asleep after this look is found out by the digest.
        elif self._storage.stat(names.commits(self.base.version)) is None:
            self._storage.replace(path, file)

    def abort(self) -> None:
        """Forget the changes. Nothing was written that anyone could see. Safe to call at any time."""
        if self._changelog is not None:
            with contextlib.suppress(OSError):
                self._changelog.file.close()  # on a full disk it fails once more
            self._changelog.path.unlink(missing_ok=True)
            self._changelog = None
        self._release()

    def __enter__(self) -> StateStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    @property
    def _database(self) -> Database:
        return self._loaded.database

    def _release(self) -> None:
        self._released = True
        self._pending.close()
        self._loaded.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """*Guarantee*: a changelog that was half written when the disk filled up is never sent: from then on each call
        fails as the first one did."""
        if self._failure is not None:
            raise self._failure
        try:
            with translated(self._folder.folder):
                yield
        except LocalStateError as error:
            self._failure = error
            raise

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Damage that only a read shows would be met again by every later task: the copy is served no longer."""
        try:
            yield
        except LocalStateDamaged:
            self._folder.condemn(self._database.path)
            raise

    def _writer(self) -> ChangelogWriter:
        if self._released or (self._changelog is not None and self._changelog.finished):
            # What is sent again after a failure is the same object, which may stand there already.
            raise ValueError("no change can be added to a version that was sent or given up")
        if self._changelog is None:
            path = self._folder.unfinished_file()
            file = path.open("wb")
            lineage = None if self._structure is Structure.V1 else self._loaded.lineage
            self._changelog = _Changelog(path, file, ChangelogWriter(file, Header(lineage)))
        return self._changelog.writer

    def _finished_changelog(self) -> _Changelog:
        if self._changelog is None or not self._changelog.finished:
            with self._writing():
                writer = self._writer()
                assert self._changelog is not None
                writer.finish()
                self._changelog.file.close()
                if self._structure is Structure.V1:
                    self.next = digests.following(self._path, self.base, self._changelog.path)
                self._changelog.finished = True
        return self._changelog


def _tail_changelogs(base: VersionId, lineage: Lineage, snapshots: Collection[VersionId]) -> int:
    """How many changelogs there are since the newest snapshot, the one that is written next included."""
    if base.digest is not None:
        return base.version + 1 - max((s.version for s in snapshots if s.version <= base.version), default=0)
    # A lineage begins at a snapshot, or at the first version.
    begins_with_snapshot = bool(lineage) and (lineage[0].version > 1 or lineage[0] in snapshots)
    return len(lineage) + 1 - begins_with_snapshot


def _check_ceiling(store: StorePath, base: VersionId, lineage: Lineage) -> None:
    needed = lineage_bytes(lineage)
    if needed > LINEAGE_STOP_BYTES:
        raise LineageCeiling(
            f"{len(lineage)} versions since the newest snapshot take {needed:,} of the {UTF_LIMIT_BYTES:,} bytes "
            f"that a lineage may have; version {base.version} (batch {base.version - 1}) is the last",
            path=store.folder,
            hint="take a snapshot of each store at the head (statekeeper snapshot --all ROOT), then start the query again",
        )


def advance_local_copy(
    address: StoreAddress,
    base: VersionId,
    *,
    storage: Storage,
    clock: Clock,
    ids: Ids,
    limits: StoreLimits | None = None,
) -> bool:
    """Write down on this host what loads of `base`, a committed version, hold in memory; merge tables that gathered.

    For a time when no batch waits for it. Returns whether the host's copy holds `base` then. Raises as
    `StateStore.load`.
    """
    engine = EngineLimits((limits or StoreLimits()).block_cache_bytes)
    folder = LocalCopyFolder(address.local_folder, engine, ids)
    return Loader(address.path, storage, folder, engine, clock=clock, lock_timeout_seconds=0).advance_local_copy(base)
