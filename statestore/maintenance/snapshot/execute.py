"""Executes a snapshot plan: builds each snapshot on local disk and publishes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from statekeeper.statestore.clock import Clock, Ids
from statekeeper.statestore.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.engine.local_errors import translated
from statekeeper.statestore.engine.rocks import EngineLimits
from statekeeper.statestore.engine.scratch import work_folder
from statekeeper.statestore.errors import CorruptFile, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.format.family_rows import FAMILY_BYTES
from statekeeper.statestore.format.snapshot import Snapshot, SnapshotMetadata, TableFile, encode_snapshot, is_small_file
from statekeeper.statestore.loading.loaded import Restored
from statekeeper.statestore.loading.loader import Loader
from statekeeper.statestore.maintenance.pool import WORKERS, in_pool
from statekeeper.statestore.maintenance.snapshot.decisions import TakeSnapshot
from statekeeper.statestore.maintenance.snapshot.publish import (
    Published,
    named,
    publish,
    require_same,
    require_still_unchanged,
    require_tables,
    require_unchanged,
    sources_now,
    tables_pending_delete,
    upload,
)
from statekeeper.statestore.storage import Storage, at_once

_SPARKS_BLOCK_BYTES = 4096
"""Spark's block size."""

MEMORY_BYTES = 512 * 1024 * 1024
"""Default memory for making snapshots."""

_PROCESS_BYTES = 240 * 1024 * 1024
"""The part of the memory for the interpreter, the libraries and the engine. The rest is for sorting changes."""


Change = Callable[[Restored], str]
"""Changes the rows of a restored version, and returns the digest that all its rows must have then."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The result of one action.

    new_tables, sent_tables   number and storage names of the tables that this run uploaded
    uploaded_bytes            bytes that this run added to storage
    restore_seconds           time to fetch the base and to replay the tail
    digest                    digest of keys and values, if the snapshot was read back
    """

    action: TakeSnapshot
    published: Published
    keys: int
    tables: int
    new_tables: int
    uploaded_bytes: int
    replayed_keys: int
    skipped_snapshots: tuple[str, ...]
    restore_seconds: float
    seconds: float
    digest: str | None = None
    sent_tables: tuple[str, ...] = ()


def execute_all(
    storage: Storage,
    actions: Sequence[TakeSnapshot],
    ended: Callable[[TakeSnapshot, Taken | StatekeeperError], None],
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    workers: int = WORKERS,
    memory_bytes: int = MEMORY_BYTES,
) -> None:
    """Make snapshots, `workers` at a time, which share `memory_bytes`. See `execute`.

    For failures, interruptions and the calls of `ended`, see `pool.in_pool`.
    """
    at_a_time = max(1, min(workers, len(actions)))

    def work(action: TakeSnapshot) -> Taken:
        share = share_of(memory_bytes, at_a_time)
        return execute(storage, action, scratch=scratch, clock=clock, ids=ids, memory_bytes=share)

    in_pool(work, actions, ended, workers=at_a_time)


def share_of(memory_bytes: int, at_a_time: int) -> int:
    """Return the memory of each of `at_a_time` snapshots. Every share includes the memory of the process itself."""
    return _PROCESS_BYTES + (memory_bytes - _PROCESS_BYTES) // at_a_time


def execute(
    storage: Storage,
    action: TakeSnapshot,
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    memory_bytes: int = MEMORY_BYTES,
    change: Change | None = None,
) -> Taken:
    """Make one snapshot on local disk below `scratch`, and publish it: tables first, zip last.

    `memory_bytes` bounds the memory of the process; with less memory, a long tail becomes more tables. `change` changes the
    rows of the restored version first.

    *Guarantee*: it overwrites no file, and deletes only its own snapshot if that is wrong. A crash at any request leaves a
    store that loads: tables without a zip are orphans. If another maintainer has published an intact snapshot, that
    snapshot is kept.

    Raises `VersionNotLoadable`; `RefusedAsUnsafe` if a changelog of structure V1 was replaced during the replay;
    `CorruptFile` if a damaged zip has the name of the snapshot; `ObjectMissing` if its tables are deleted after each
    upload; `LocalDiskFull`, `StorageError`.
    """
    started = clock.monotonic_seconds()
    with work_folder(scratch, "snapshot") as folder, translated(scratch):
        captured = folder / "captured"
        limits = EngineLimits(block_bytes=_SPARKS_BLOCK_BYTES, replay_bytes=max(0, memory_bytes - _PROCESS_BYTES))
        cache = LocalCopyFolder(folder / "store", limits, ids)
        loader = Loader(action.store, storage, cache, limits, clock=clock, lock_timeout_seconds=0, conf=action.conf)
        sources = sources_now(storage, action)
        restored = loader.restore(action.version, folder / "database")
        restore_seconds = clock.monotonic_seconds() - started
        with restored.database as database:
            expected = None if change is None else change(restored)
            if database.wants_merge():
                database.merge_tables()
            keys = _keys(action, restored if change is None else replace(restored, keys=None))
            digest = database.digest() if action.name else None
            _require_expected(action, digest, expected)
            database.capture(captured)
        tables, fresh = named(captured, restored.base, tables_pending_delete(storage, action.store), ids)
        at_once(lambda table: upload(storage, action.store, table, captured), fresh)
        small = {path.name: path.read_bytes() for path in captured.iterdir() if is_small_file(path.name)}
        of_digest = (action.name or action.version).digest
        snapshot = Snapshot(small, _metadata(action, restored.base, tables, keys), digest=of_digest)
        body = encode_snapshot(snapshot)
        require_unchanged(storage, action, sources)
        published = publish(storage, action, body)
        if published is Published.NEW:
            require_tables(storage, action, tables, captured)
            require_still_unchanged(storage, action, sources, body)
        if digest is not None:
            at_hand = {table.dfs_name: captured / table.local_name for table in tables if table not in fresh}
            made = action.name or action.version
            require_same(storage, action.store, made, digest, folder / "back", conf=action.conf, at_hand=at_hand)
    return Taken(
        action=action,
        published=published,
        keys=keys.own,
        tables=len(tables),
        new_tables=len(fresh),
        uploaded_bytes=sum(table.size_bytes for table in fresh) + (len(body) if published is Published.NEW else 0),
        replayed_keys=restored.report.replayed_keys,
        skipped_snapshots=restored.report.skipped_snapshots,
        restore_seconds=restore_seconds,
        seconds=clock.monotonic_seconds() - started,
        digest=digest,
        sent_tables=tuple(table.dfs_name for table in fresh),
    )


def _require_expected(action: TakeSnapshot, digest: str | None, expected: str | None) -> None:
    if expected is not None and digest != expected:
        raise CorruptFile(
            f"does not have the rows that were planned: digest {digest}, expected {expected}; it was not written",
            path=action.path,
            hint="report this error",
        )


@dataclass(frozen=True)
class _Keys:
    """The number of keys, and of Spark's internal keys."""

    own: int
    internal: int = 0


def _keys(action: TakeSnapshot, restored: Restored) -> _Keys:
    base = restored.base
    if base is not None and base.column_families and restored.report.skipped_snapshots:
        # The damaged snapshot may name families that the older one does not, even families without a key.
        raise CorruptFile(
            f"is damaged ({restored.report.skipped_snapshots[0]}); an older snapshot cannot replace it, because it may "
            "lack column families",
            path=action.store.snapshot(action.load.base),
            hint="restore it from a backup",
        )
    if base is None or not base.column_families:
        return _Keys(restored.database.count_keys() if restored.keys is None else restored.keys)
    # Each key starts with the number of its family: two bytes, little-endian.
    names_of = {number.to_bytes(FAMILY_BYTES, "little"): name for name, number in base.column_families.items()}
    counts = {"own": 0, "internal": 0}
    for number, count in restored.database.count_by_beginning(FAMILY_BYTES).items():
        if number not in names_of:
            raise UnknownFormatVersion(
                f"version {action.version.version} has keys of column family {int.from_bytes(number, 'little')}, and "
                "its base does not name that family; no snapshot was written",
                path=action.store.snapshot(action.load.base),
                hint="restore the snapshot that Spark wrote when the family was added",
            )
        counts["internal" if base.internal_families.get(names_of[number], False) else "own"] += count
    return _Keys(**counts)


def _metadata(
    action: TakeSnapshot, base: SnapshotMetadata | None, tables: tuple[TableFile, ...], keys: _Keys
) -> SnapshotMetadata:
    """Return the metadata of the snapshot: the metadata of its base with new tables, counts, and maybe a new header. The
    base names the column families; changelogs do not."""
    if base is None:
        return SnapshotMetadata(header=action.header or "v1", tables=tables, key_count=keys.own, column_families={})
    counted = replace(base, key_count=keys.own, internal_key_count=keys.internal)
    return replace(counted, header=action.header or base.header, tables=tables, archived_logs=())
