"""Looks at a checkpoint that is to be switched."""

from __future__ import annotations

import shutil
from pathlib import Path

from statestore import catalog
from statestore import switch_journal as journal
from statestore.chain import look_at_snapshot
from statestore.format import logs, names
from statestore.format.names import EMPTY, StorePath
from statestore.format.sparks import Spark
from statestore.format.state_conf import shuffle_partitions
from statestore.format.structure import Structure
from statestore.maintenance import audit, snapshot
from statestore.maintenance.audit import AuditPolicy
from statestore.maintenance.switchover.plans import StoreSwitchFacts, SwitchoverFacts
from statestore.storage import Storage, at_once, read_or_none


def gather(storage: Storage, *, scratch: Path, policy: AuditPolicy | None = None) -> SwitchoverFacts:
    """The facts, an audit among them unless a switchover is half done. `scratch` is where it is to work.

    Requests: those of an audit and of `snapshot.gather`, one for each snapshot that a load starts from, and a few for the
    logs. Raises `NotACheckpoint`, `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    half_done = journal.standing(storage)
    of_snapshots = snapshot.gather(storage, at_head=True)
    if of_snapshots.batch is None:
        return SwitchoverFacts(of_snapshots.is_own, half_done=half_done)
    batch = of_snapshots.batch
    order = catalog.heads_at(storage, batch).heads
    files = catalog.files(storage)
    by_store = {fact.store: fact for fact in of_snapshots.stores}
    measured: dict[StorePath, StoreSwitchFacts] = {}

    def measure(store: StorePath) -> None:
        measured[store] = _measured(storage, by_store[store], files.get(store, catalog.StoreFiles()))

    at_once(measure, list(order))
    path = names.commits(batch)
    commit = storage.read(path)
    log = logs.parse_commit(commit, path)
    begun, partitions = catalog.newest_begun(storage), _pinned(storage, batch)
    return SwitchoverFacts(
        of_snapshots.is_own,
        batch,
        Structure.V1 if log.ids is None else Structure.V2,
        tuple(measured[store] for store in order),
        files,
        commit.decode(),
        logs.is_plain_commit(commit, path),
        begun,
        _pending(storage, batch + 1),
        partitions,
        begun == batch + 1 and _pinned(storage, begun) != partitions,
        of_snapshots.conf,
        any(spark in of_snapshots.written_by for spark in (Spark.V3_5, Spark.V4_0)),
        None if half_done else audit.judge(audit.gather(storage), policy),
        half_done,
        _free_bytes(scratch),
        of_snapshots.replay_bytes_per_second,
    )


def _measured(storage: Storage, fact: snapshot.StoreSnapshotFacts, files: catalog.StoreFiles) -> StoreSwitchFacts:
    """With the size of what the load starts from."""
    if fact.load is None or fact.load.base == EMPTY:
        return StoreSwitchFacts(fact.store, fact.head, fact.load, 0, fact.tail_bytes, fact.problem)
    base = look_at_snapshot(storage, fact.store, fact.load.base, files)
    zip_bytes = files.snapshots[fact.load.base].size_bytes
    table_bytes = sum(table.size_bytes for table in base.metadata.tables) if base.metadata else 0
    problem = fact.problem or (None if base.damage is None else str(base.damage))
    return StoreSwitchFacts(fact.store, fact.head, fact.load, zip_bytes + table_bytes, fact.tail_bytes, problem)


def _pending(storage: Storage, batch: int) -> tuple[str, ...]:
    paths = [entry.path for entry in storage.list(names.PENDING)]
    return tuple(p for p in paths if (place := names.parse_pending(p.rpartition("/")[2])) and place[0] == batch)


def _pinned(storage: Storage, batch: int) -> int | None:
    """How many partitions the offset log names. Spark's offline repartition (4.2) begins with one that names another."""
    path = names.offsets(batch)
    body = read_or_none(storage, path)
    # The audit tells of one that is missing.
    return None if body is None else shuffle_partitions(logs.parse_offsets(body, path), path)


def _free_bytes(scratch: Path) -> int:
    """Of the disk on which the folder is, or will be."""
    place = scratch.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
