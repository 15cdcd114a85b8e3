"""Builds and publishes the snapshots of a group of stores: old partitions -> spool -> new partitions -> read-back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from statekeeper.statestore.engine.local_errors import translated
from statekeeper.statestore.engine.rows_digest import RowsDigest
from statekeeper.statestore.engine.scratch import work_folder
from statekeeper.statestore.errors import CorruptFile, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.snapshot import SnapshotMetadata
from statekeeper.statestore.maintenance.pool import in_pool
from statekeeper.statestore.maintenance.processes import Caller, callers
from statekeeper.statestore.maintenance.rewrites.hdfs_snapshots import HdfsSnapshots, NewFiles
from statekeeper.statestore.maintenance.rewrites.load_rows import RowProgress, read_savepoint
from statekeeper.statestore.maintenance.rewrites.plans import Conversion, RewritePlan, StoreGroup
from statekeeper.statestore.maintenance.rewrites.read import Source, read
from statekeeper.statestore.maintenance.rewrites.rocksdb_snapshots import NewDatabases, RocksDbSnapshots
from statekeeper.statestore.maintenance.rewrites.spool import OpenPart, Part, SharedSpool, Spool, rows_of
from statekeeper.statestore.maintenance.switchover import Machine
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.switch_journal import Begun, Made

_PIECE_SHARE = 32
"""A piece of the spool may take this part of the memory of a worker, and again while it is sorted."""
_STORES_OF_PROCESSES = 32
"""A process opens local databases once more for each store. With more stores, they must be larger to be worth that."""

_MEMORY_OF_A_PROCESS = 64 * 1024 * 1024
"""The least memory for each process; its imports alone take most of it."""


def rebuild(
    storage: Storage,
    begun: Begun,
    planned: RewritePlan,
    group: StoreGroup,
    machine: Machine,
    ended: Callable[[StorePath, Made], None],
    read_rows: RowProgress,
) -> None:
    """Make the snapshots of a group. `ended` is called after each, from one thread at a time. `read_rows`: of a load.

    *Guarantee*: overwrites no file. The snapshots have exactly the rows of the sources: the digests are compared before
    the first snapshot is published, and each snapshot is read back. Raises as `read`; `CorruptFile` if rows differ,
    `UnknownFormatVersion` if the partitions number their column families differently, `LocalDiskFull`, `StorageError`.
    """
    with (
        work_folder(machine.scratch, "rewrite") as folder,
        translated(machine.scratch),
        callers(_processes(group, machine)) as call,
    ):
        piece_bytes = machine.memory_bytes // _PIECE_SHARE // machine.workers
        with _spool(folder / "spool", piece_bytes, call) as spool:
            if planned.load is None:
                sources = read(storage, planned, group, machine, folder, spool, call)
            else:
                sources = read_savepoint(storage, planned, group, machine, spool, read_rows)
            new = _new(planned, group, sources, folder, most_record_bytes=storage.limits.record_bytes)
            built = _build(new, spool, group, call, machine.workers if call.is_here else call.workers)
        _require_all_rows(group, sources, [compared for _, compared in built.values()])
        snapshots: RocksDbSnapshots | HdfsSnapshots
        if isinstance(new, NewDatabases):
            snapshots = RocksDbSnapshots(storage=storage, begun=begun, conf=planned.conf, new=new, call=call)
        else:
            snapshots = HdfsSnapshots(storage=storage, begun=begun, conf=planned.conf, new=new)
        digests = {target: str(digest) for target, (digest, _) in built.items()}
        _publish(group, machine, lambda target: snapshots.publish(target, digests[target]), ended, call)


def _processes(group: StoreGroup, machine: Machine) -> int:
    """The number of processes beside this one; 1 for none."""
    stores = max(len(group.sources), len(group.targets))
    is_large = group.read_bytes >= max(machine.process_bytes, stores * machine.process_bytes // _STORES_OF_PROCESSES)
    return min(machine.workers, stores, max(1, machine.memory_bytes // _MEMORY_OF_A_PROCESS)) if is_large else 1


def _new(
    planned: RewritePlan, group: StoreGroup, sources: Sequence[Source], folder: Path, *, most_record_bytes: int
) -> NewDatabases | NewFiles:
    if planned.provider is Provider.ROCKSDB:
        return NewDatabases(folder, _families(group, sources))
    return NewFiles(
        folder=folder,
        codec=planned.codec,
        row_checksums=planned.conf.row_checksums,
        most_record_bytes=most_record_bytes,
    )


def _spool(path: Path, piece_bytes: int, call: Caller) -> AbstractContextManager[Spool]:
    return OpenPart.create(path, piece_bytes) if call.is_here else nullcontext(SharedSpool(path, piece_bytes))


def _build(
    new: NewDatabases | NewFiles, spool: Spool, group: StoreGroup, call: Caller, workers: int
) -> Mapping[StorePath, tuple[RowsDigest, RowsDigest]]:
    """Build the snapshots on local disk. Return the digests of their rows as they are stored, and as they are compared."""
    built: dict[StorePath, tuple[RowsDigest, RowsDigest]] = {}
    failed: list[StatekeeperError] = []

    def ended(target: StorePath, outcome: tuple[RowsDigest, RowsDigest] | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
        else:
            built[target] = outcome

    in_pool(
        lambda target: call(_written, new, spool.parts, target, group.conversion),
        group.targets,
        ended,
        workers=workers,
        interrupt=call.end,
    )
    if failed:
        raise failed[0]
    return built


def _written(
    new: NewDatabases | NewFiles, parts: Sequence[Part], target: StorePath, conversion: Conversion | None
) -> tuple[RowsDigest, RowsDigest]:
    """Build one snapshot. Needs local files only."""
    stored, compared = RowsDigest(), RowsDigest()

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for keys, values in rows_of(parts, target.partition):
            pairs = list(zip(keys, values, strict=True))
            stored.add(pairs)
            if conversion is not None:
                compared.add(zip(*conversion.of_target(keys, values), strict=True))
            yield from pairs

    new.write(target, rows())
    return stored, compared if conversion is not None else stored


def _require_all_rows(group: StoreGroup, sources: Sequence[Source], targets: Sequence[RowsDigest]) -> None:
    expected, found = RowsDigest(), RowsDigest()
    for source in sources:
        expected.merge(source.digest)
    for target in targets:
        found.merge(target)
    if str(found) != str(expected):
        raise CorruptFile(
            f"the rewritten rows of store {group.name} differ from the rows that were read: digest {found}, expected "
            f"{expected}; nothing was published",
            path=f"state/{group.operator}",
            hint="reverse the rewrite with --abort, and report this error",
        )


def _families(group: StoreGroup, sources: Sequence[Source]) -> SnapshotMetadata | None:
    """Return the metadata that names the column families: the same in all partitions."""
    bases = [source.base for source in sources if source.base is not None and source.base.column_families]
    if not bases:
        return None
    if any(base.column_families != bases[0].column_families for base in bases):
        raise UnknownFormatVersion(
            f"operator {group.operator}, store {group.name}: the ids of the column families differ between the partitions; "
            f"the rows cannot be moved",
            hint="keep the number of partitions",
        )
    return max(bases, key=lambda base: base.largest_family_id)


def _publish(
    group: StoreGroup,
    machine: Machine,
    publish: Callable[[StorePath], Made],
    ended: Callable[[StorePath, Made], None],
    call: Caller,
) -> None:
    failed: list[StatekeeperError] = []

    def done(target: StorePath, outcome: Made | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
        else:
            ended(target, outcome)

    in_pool(publish, group.targets, done, workers=machine.workers, interrupt=call.end)
    if failed:
        raise failed[0]
