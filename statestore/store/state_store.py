"""The state store of a streaming task: one version, open for reading, and the changes of the next version.

*Guarantee.* A commit creates one object under a new, unique name. It does not change the local database, which contains
only versions that the driver has confirmed. The next load keeps the new changes in memory over it, and `advance_local_copy`
writes them after a batch. An aborted, duplicate or zombie attempt therefore changes nothing (SPARK-43421, SPARK-49374).

In structure V1 the name of the object is only its version. A new attempt replaces it, and the driver confirms its digest
(`checkpoint.digests`). If a zombie attempt replaces it later, the next load from storage detects this.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import LineageCeiling, LocalStateDamaged, LocalStateError, UnsupportedType
from statekeeper.statestore.checkpoint import digests
from statekeeper.statestore.checkpoint.lineage import (
    LINEAGE_STOP_BYTES,
    Lineage,
    LocalCopy,
    check_ceiling,
    tail_changelogs,
)
from statekeeper.statestore.format import batch_log, names
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.storage.parts import PART_BYTES, EarlyUpload
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.pending_changes import Columns, PendingChanges
from statekeeper.statestore.store.engine.rocks import (
    FIRST_RESERVED_KEY,
    Database,
    EngineLimits,
    KeyRange,
    range_of,
    translated,
)
from statekeeper.statestore.store.loading.loaded import Loaded, LoadReport
from statekeeper.statestore.store.loading.loader import AHEAD, AheadLimits, Loader
from statekeeper.statestore.store.loading.open_copies import OpenCopies, OpenCopy


@dataclass(frozen=True, kw_only=True)
class StoreLimits:
    """The limits of a store on its host.

    block_cache_bytes     RocksDB's block cache, unless stores share one
    lock_timeout_seconds  longest wait for another process that moves the same local copy
    part_bytes            size of the parts in which a changelog is uploaded
    lineage_bytes         a version with a longer lineage is not loaded: Spark could soon not read the next changelogs
    ahead                 changes that a load keeps in memory over the local copy
    """

    block_cache_bytes: int = 32 * 1024 * 1024
    lock_timeout_seconds: float = 30.0
    part_bytes: int = PART_BYTES
    lineage_bytes: int = LINEAGE_STOP_BYTES
    ahead: AheadLimits = AHEAD


@dataclass(kw_only=True)
class CommitMetrics:
    """The work of a commit. `changed_bytes` is uncompressed; `uploaded_bytes` is compressed.

    lineage_versions       the number of versions that the changelog names, 0 in structure V1
    tail_changelogs        the number of changelogs since the newest snapshot, including this one
    early_bytes            the part of `uploaded_bytes` that was in storage before `commit` was called
    back_pressure_seconds  time that the changes waited for their upload before `commit` was called
    """

    changed_keys: int = 0
    changed_bytes: int = 0
    uploaded_bytes: int = 0
    requests: int = 0
    encode_milliseconds: float = 0.0
    upload_milliseconds: float = 0.0
    lineage_versions: int = 0
    tail_changelogs: int = 0
    early_bytes: int = 0
    back_pressure_seconds: float = 0.0


_AHEAD_VERSIONS = 16
_AHEAD_KEYS = 20_000
_AHEAD_BYTES = 4 * 1024 * 1024
"""If a load keeps that much in memory, or half of its limit, the local copy should be advanced after the batch."""


@dataclass(frozen=True)
class BatchLogPart:
    """The part of a batch log that one store may fill.

    tag         of the attempt's batch log
    most_bytes  maximum size of a changelog in it; a larger one is uploaded as its own file
    """

    tag: str
    most_bytes: int

    def placed(self, version: VersionId, size_bytes: int) -> VersionId:
        """Return the version with an id that tells where its changelog is."""
        if size_bytes > self.most_bytes or version.id is None:
            return version
        return VersionId(version.version, batch_log.id_with(self.tag, version.id))


@dataclass(frozen=True)
class StoreAddress:
    """The path of a store in its root, and the host's folder for its local copy."""

    path: StorePath
    local_folder: Path


@dataclass(kw_only=True)
class _Changelog:
    """The changelog of the next version while it is written."""

    path: Path
    file: BinaryIO
    writer: ChangelogWriter
    upload: EarlyUpload
    finished: bool = field(default=False)


class StateStore:
    """One version of one store. Use it as a context manager: an exit without `commit` aborts.

    Keys and values are `pa.LargeBinaryArray`s of arbitrary bytes. Not thread-safe.
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
        batch_log: BatchLogPart | None = None,
        part_bytes: int = PART_BYTES,
        ahead: AheadLimits = AHEAD,
        open_copies: OpenCopies | None = None,
    ) -> None:
        self.base = base
        self.next = VersionId(base.version + 1, None if structure is Structure.V1 else ids.fresh())
        self.member: bytes | None = None
        self.load_report = load_report
        self.commit_metrics = CommitMetrics(
            lineage_versions=len(loaded.lineage), tail_changelogs=tail_changelogs(base, loaded.lineage, snapshots)
        )
        self._structure = structure
        self._batch_log = batch_log
        self._path = address.path
        self._loaded = loaded
        self._storage = storage
        self._folder = folder
        self._clock = clock
        self._changelog: _Changelog | None = None
        self._part_bytes = part_bytes
        self._ahead = ahead
        self._open_copies = open_copies
        self._failure: LocalStateError | None = None
        self._released = False
        # Changes that the local copy lacks are kept over the database, like the changes of the batch.
        self._pending = PendingChanges(folder.unfinished_file(), loaded.ahead)
        self.needs_compaction = loaded.database.wants_merge() or (
            loaded.ahead_versions > 0
            and (
                # The stores of a host take turns. All at once would slow down one batch.
                (base.version + address.path.partition) % _AHEAD_VERSIONS == 0
                or loaded.ahead_versions > _AHEAD_VERSIONS
                or self._ahead_is_large()
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
        batch_log: BatchLogPart | None = None,
        open_copies: OpenCopies | None = None,
    ) -> StateStore:
        """Open version `base` on this host.

        snapshots    versions known to have a snapshot; the lineage of the next version may start at one of them
        structure    that of the root; in V1 `base` has its digest, unless it is `EMPTY`
        batch_log    if given, `commit` keeps a small changelog for the driver's batch log; structure V2 only
        open_copies  if given, `commit` keeps the next version open there for the next load in this process

        Raises `VersionNotLoadable`, `LineageCeiling`, `StorageError`, `LocalStateError`.
        """
        if base != EMPTY and (base.digest if structure is Structure.V1 else base.id) is None:
            raise ValueError(
                f"version {base} has neither a checkpoint id nor a digest, which structure {structure.name} needs"
            )
        if batch_log is not None and structure is Structure.V1:
            raise ValueError("structure V1 has no ids, so that its changelogs cannot be in a batch log")
        limits = limits or StoreLimits()
        engine = EngineLimits(block_cache_bytes=limits.block_cache_bytes)
        cache = None if open_copies is None else open_copies.block_cache
        folder = LocalCopyFolder(address.local_folder, engine, ids, cache)
        loader = Loader(
            address.path,
            storage,
            folder,
            engine,
            clock=clock,
            lock_timeout_seconds=limits.lock_timeout_seconds,
            ahead=limits.ahead,
            open_copies=open_copies,
        )
        loaded, metrics = loader.load(base, snapshots)
        try:
            check_ceiling(address.path, base, loaded.lineage, limits.lineage_bytes, snapshots)
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
            batch_log=batch_log,
            part_bytes=limits.part_bytes,
            ahead=limits.ahead,
            open_copies=open_copies,
        )

    @property
    def lineage(self) -> Lineage:
        """The lineage in the next changelog: ascending versions, including `base`."""
        return self._loaded.lineage

    def get(self, keys: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        """Read the value of each key, including uncommitted changes; null if there is none.

        The result has the length and order of `keys`. Sorted keys are fastest.
        """
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
        """Iterate over all pairs whose key starts with `prefix`, in key order, including uncommitted changes."""
        for keys, values in self.scan_ranges([range_of(prefix)]):
            yield from zip(keys, values, strict=True)

    def scan_ranges(self, ranges: Sequence[KeyRange]) -> Iterator[Columns]:
        """Iterate over all pairs with a key in one of the ranges, as `scan`, in pieces of keys and values.

        The ranges ascend and do not overlap. No piece is empty.
        """
        if any(start < end for (_, end), (start, _) in itertools.pairwise(ranges)):
            raise ValueError("the ranges of a scan do not ascend, or overlap")
        return self._pending.over(self._stored(ranges), ranges)

    def _stored(self, ranges: Sequence[KeyRange]) -> Iterator[Columns]:
        with self._reading():
            for keys_in in ranges:
                yield from self._database.scan_range(keys_in)

    def put(self, keys: pa.LargeBinaryArray, values: pa.LargeBinaryArray) -> None:
        """Set the value of each key, in order; a null value deletes the key. Both arrays have the same length.

        Raises `TooLarge` for a value that no load could read again, see `SizeLimits.record_bytes`; no key is then set.
        """
        started = self._clock.monotonic_seconds()
        changed: list[bytes] = keys.to_pylist()
        if changed and max(changed) >= FIRST_RESERVED_KEY:
            raise UnsupportedType(
                "a key starts with the reserved bytes ff ff ff ff; the batch failed",
                path=str(self._path),
                hint="encode the keys as Spark encodes rows: a key in Spark's encoding never starts with these bytes",
            )
        with self._writing():
            self._writer().append(keys, values)
            self._pending.put_many(changed, values.to_pylist())
            self.commit_metrics.encode_milliseconds += (self._clock.monotonic_seconds() - started) * 1000
            assert self._changelog is not None
            self._changelog.upload.extend(self._changelog.file)

    def delete(self, keys: pa.LargeBinaryArray) -> None:
        """Delete each key."""
        self.put(keys, pa.nulls(len(keys), pa.large_binary()))

    def commit(self) -> VersionId:
        """Upload the changelog of the next version, also without changes. Return the version (in V1 with its digest).

        `put` and `delete` have uploaded the full parts of a large changelog. A small changelog of a store with a batch log
        becomes durable with the driver's batch log: it is in `member`. Raises `StorageError`; the changes are then kept,
        and another call uploads the same object.
        """
        metrics = self.commit_metrics
        if self._changelog is not None:
            self._changelog.upload.seal()
        changelog = self._finished_changelog()
        started = self._clock.monotonic_seconds()
        changelog.upload.send_rest()
        before = self._storage.requests.snapshot()
        if self._batch_log is not None and batch_log.path_of(self.next) is not None:
            with translated(changelog.path):
                self.member = changelog.path.read_bytes()
        else:
            self._send(changelog)
        spent = self._storage.requests.since(before)
        metrics.changed_keys = changelog.writer.records
        metrics.changed_bytes = changelog.writer.record_bytes
        metrics.uploaded_bytes = changelog.path.stat().st_size
        metrics.requests = spent.total + changelog.upload.metrics.requests
        metrics.early_bytes = changelog.upload.metrics.sent_bytes
        metrics.back_pressure_seconds = changelog.upload.metrics.back_pressure_seconds
        metrics.upload_milliseconds = (self._clock.monotonic_seconds() - started) * 1000
        # Once the driver has confirmed the id, the next load on this host replays these bytes without a request.
        with contextlib.suppress(OSError):
            changelog.path.replace(self._folder.cached_changelog(self.next))
        self._changelog = None
        self._release(committed=True)
        return self.next

    def _send(self, changelog: _Changelog) -> None:
        path = self._path.changelog(self.next)
        if self._structure is Structure.V2:
            if not changelog.upload.complete():
                self._storage.create(path, changelog.path)
        # Race: a zombie attempt resumes after another attempt has committed its batch. The file is confirmed and must not
        # be replaced. If the zombie stalls after this check instead, the next load detects the other digest.
        elif self._storage.stat(names.commits(self.base.version)) is not None:
            changelog.upload.abort()
        elif not changelog.upload.complete():
            self._storage.replace(path, changelog.path)

    def abort(self) -> None:
        """Discard the changes, and drop uploaded parts. No object of storage changes. Safe to call at any time."""
        if self._changelog is not None:
            self._changelog.upload.abort()
            with contextlib.suppress(OSError):
                self._changelog.file.close()  # fails again on a full disk
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

    def _release(self, *, committed: bool = False) -> None:
        """Close the database, or keep it open for the next batch. Does nothing if called again."""
        if self._released:
            return
        self._released = True
        kept_bytes, is_small = self._pending.held_bytes, not self._ahead_is_large()
        changes = self._pending.take()
        self._pending.close()
        if (
            not committed
            or self._open_copies is None
            or self._loaded.private is not None
            # After the compaction, another opening sees fewer tables and has fewer changes in memory.
            or self.needs_compaction
            or changes is None
            or not is_small
        ):
            self._loaded.close()
            return
        lineage = () if self._structure is Structure.V1 else (*self._loaded.lineage, self.next)
        copy = OpenCopy(
            database=self._database,
            database_version=self.base.version - self._loaded.ahead_versions,
            holds=LocalCopy(self.next, lineage),
            ahead=changes,
            ahead_bytes=kept_bytes,
        )
        self._open_copies.keep(self._folder.folder, copy)

    def _ahead_is_large(self) -> bool:
        keys = min(_AHEAD_KEYS, self._ahead.records // 2)
        size_bytes = min(_AHEAD_BYTES, self._ahead.uncompressed_bytes // 2)
        return len(self._pending) >= keys or self._pending.held_bytes >= size_bytes

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Repeat the first write error on each later call, so that an incomplete changelog is never uploaded."""
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
        """Stop serving a local copy that a read finds damaged; later tasks would fail, too."""
        try:
            yield
        except LocalStateDamaged:
            self._folder.condemn(self._database.path)
            raise

    def _writer(self) -> ChangelogWriter:
        if self._released or (self._changelog is not None and self._changelog.finished):
            # After a failed upload the object may exist. The next upload must have the same bytes.
            raise ValueError("no change can be added to a version that was committed or aborted")
        if self._changelog is None:
            path = self._folder.unfinished_file()
            file = path.open("wb")
            lineage = None if self._structure is Structure.V1 else self._loaded.lineage
            upload = EarlyUpload(
                self._storage,
                self._path.changelog(self.next),
                path,
                clock=self._clock,
                part_bytes=self._part_bytes,
                # A smaller changelog may become a member of the batch log, and then has another id.
                least_bytes=0 if self._batch_log is None else self._batch_log.most_bytes + 1,
                replaces=self._structure is Structure.V1,
            )
            self._changelog = _Changelog(
                path=path,
                file=file,
                writer=ChangelogWriter(
                    file,
                    Header(lineage),
                    most_record_bytes=self._storage.limits.record_bytes,
                    path=self._path.changelog(self.next),
                    root=self._storage.url,
                ),
                upload=upload,
            )
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
                elif self._batch_log is not None:
                    self.next = self._batch_log.placed(self.next, self._changelog.path.stat().st_size)
                self._changelog.finished = True
        return self._changelog


def advance_local_copy(
    address: StoreAddress,
    base: VersionId,
    *,
    storage: Storage,
    clock: Clock,
    ids: Ids,
    limits: StoreLimits | None = None,
) -> bool:
    """Move the local copy on this host forward to `base`, a committed version. Compact its tables if there are many.

    Call it between batches. Returns whether the local copy then contains `base`. Raises as `StateStore.load`.
    """
    engine = EngineLimits(block_cache_bytes=(limits or StoreLimits()).block_cache_bytes)
    folder = LocalCopyFolder(address.local_folder, engine, ids)
    return Loader(address.path, storage, folder, engine, clock=clock, lock_timeout_seconds=0).advance_local_copy(base)
