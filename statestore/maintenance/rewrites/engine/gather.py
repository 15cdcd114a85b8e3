"""Gathers the facts for a switchover plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.contents.chain import look_at_snapshot
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.state_conf import ROCKSDB, shuffle_partitions
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.maintenance.rewrites.engine.model import StoppedQuery, StoppedStore
from statekeeper.statestore.maintenance.upkeep import audit, snapshot
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy
from statekeeper.statestore.root import attempts
from statekeeper.statestore.storage import Storage, at_once, read_or_none
from statekeeper.statestore.store.engine.scratch import free_bytes


def gather(
    storage: Storage,
    *,
    scratch: Path,
    policy: AuditPolicy | None = None,
    supported: Collection[Provider] = ROCKSDB,
) -> StoppedQuery:
    """Gather the facts, with an audit unless a switchover is half done. `scratch`: the folder for local work; `supported`:
    the providers that the command supports.

    Requests: the requests of an audit and of `snapshot.gather`, one for each base, and a few for the logs. Raises
    `NotACheckpoint`, `CorruptFile`, `UnknownFormatVersion`, `UnsupportedProvider`, `StorageError`.
    """
    half_done = journal.open_journal(storage)
    of_snapshots = snapshot.gather(storage, at_head=True, supported=supported)
    if of_snapshots.batch is None:
        return StoppedQuery(origin=of_snapshots.origin, half_done=half_done)
    batch = of_snapshots.batch
    order = catalog.heads_at(storage, batch).heads
    files = catalog.files(storage, provider=of_snapshots.conf.provider)
    by_store = {fact.store: fact for fact in of_snapshots.stores}
    measured: dict[StorePath, StoppedStore] = {}

    def measure(store: StorePath) -> None:
        measured[store] = _measured(storage, by_store[store], files.of(store))

    at_once(measure, list(order))
    path = names.commits(batch)
    commit = storage.read(path)
    log = logs.parse_commit(commit, path)
    begun, partitions = catalog.newest_begun(storage), _pinned(storage, batch)
    is_switched = half_done is not None and half_done.begun.rewrite is journal.RewriteKind.SWITCH
    before = half_done.begun.to.other if half_done is not None and is_switched else log.structure
    structures = _structures_of_attempts(storage, batch + 1, before)
    others = tuple(path for path, structure in structures.items() if structure is not before)
    return StoppedQuery(
        origin=of_snapshots.origin,
        batch=batch,
        structure=log.structure,
        stores=tuple(measured[store] for store in order),
        files=files,
        commit=commit.decode(),
        is_plain_commit=logs.is_plain_commit(commit, path),
        begun=begun,
        pending=tuple(path for path in structures if path not in others),
        others=others,
        former=_former(storage, batch, order) if others and half_done is None else {},
        partitions=partitions,
        repartitions=begun == batch + 1 and _pinned(storage, begun) != partitions,
        conf=of_snapshots.conf,
        may_be_of_4_0=any(spark in of_snapshots.written_by for spark in (Spark.V3_5, Spark.V4_0)),
        audit=None if half_done else audit.judge(audit.gather(storage), policy),
        half_done=half_done,
        free_bytes=free_bytes(scratch),
        scratch=str(scratch),
        replay_bytes_per_second=of_snapshots.replay_bytes_per_second,
    )


def _measured(storage: Storage, fact: snapshot.StoreSnapshotFacts, files: catalog.StoreFiles) -> StoppedStore:
    """Return the facts about one store, with the size of its base."""
    if fact.load is None or fact.load.base == EMPTY:
        return StoppedStore(
            store=fact.store,
            head=fact.head,
            load=fact.load,
            base_bytes=0,
            tail_bytes=fact.tail_bytes,
            problem=fact.problem,
        )
    base = look_at_snapshot(storage, fact.store, fact.load.base, files)
    zip_bytes = files.snapshots[fact.load.base].size_bytes
    table_bytes = sum(table.size_bytes for table in base.metadata.tables) if base.metadata else 0
    problem = fact.problem or (None if base.damage is None else str(base.damage))
    return StoppedStore(
        store=fact.store,
        head=fact.head,
        load=fact.load,
        base_bytes=zip_bytes + table_bytes,
        tail_bytes=fact.tail_bytes,
        problem=problem,
    )


def _structures_of_attempts(storage: Storage, batch: int, default: Structure) -> Mapping[str, Structure]:
    """Return the structure of each attempt at a batch, by the path of its record; `default` for an unreadable record."""
    paths = [entry.path for entry in storage.list(names.PENDING)]
    of_batch = [p for p in paths if (place := names.parse_pending(p)) and place[0] == batch]
    logged = [entry.path for entry in storage.list_after(names.BATCH_LOGS, "", beginning=f"{batch + 1}-")]
    found = {}
    for path in (*of_batch, *(path for path in logged if names.parse_batch_log(path))):
        found[path] = default
        with suppress(CorruptFile, UnknownFormatVersion, *BAD_VALUES):
            record = attempts.record_in(storage, path)
            found[path] = Structure(str((record or {}).get("structure", default.value)))
    return found


def _former(storage: Storage, batch: int, order: Iterable[StorePath]) -> Mapping[StorePath, VersionId]:
    """Return the versions of the stores at a batch before the newest switchover; empty if they are unknown.

    Race: a job that was confirmed as stopped computes the next batch during a switchover, writes it to the sink, and dies
    before its commit. The changelogs of this attempt start from these versions.
    """
    path = names.commits(batch)
    text = journal.commit_before(storage, batch)
    log = None if text is None else logs.parse_commit(text.encode(), path)
    if log is None or log.marks is None:
        return {}
    marks = {
        operator: [mark for of_partition in stores for mark in of_partition] for operator, stores in log.marks.items()
    }
    stores = list(order)
    by_operator = {operator: [store for store in stores if store.operator == operator] for operator in marks}
    if any(len(by_operator[operator]) != len(of_operator) for operator, of_operator in marks.items()):
        return {}
    return {
        store: log.version(batch + 1, mark)
        for operator, of_operator in marks.items()
        for store, mark in zip(by_operator[operator], of_operator, strict=True)
    }


def _pinned(storage: Storage, batch: int) -> int | None:
    """Return the number of partitions in the offset log. Spark's offline repartition (4.2) starts with a changed number."""
    path = names.offsets(batch)
    body = read_or_none(storage, path)
    # The audit reports a missing file.
    return None if body is None else shuffle_partitions(logs.parse_offsets(body, path), path)
