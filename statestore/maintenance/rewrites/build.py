"""Builds and publishes the snapshots of one group of stores: old partitions -> spool -> new partitions -> read-back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from statestore import catalog
from statestore.engine.local_copy import LocalCopyFolder
from statestore.engine.rocks import Database, EngineLimits, translated
from statestore.errors import CorruptFile, StatekeeperError, UnknownFormatVersion
from statestore.format.family_rows import FAMILY_BYTES, family_id
from statestore.format.murmur3 import partitions_of
from statestore.format.names import StorePath
from statestore.format.partition_keys import key_hashes, require_partition
from statestore.format.snapshot import Snapshot, SnapshotMetadata, TableFile, encode_snapshot, is_small_file
from statestore.loading.loader import Loader
from statestore.maintenance import snapshot
from statestore.maintenance.pool import in_pool
from statestore.maintenance.rewrites import digests
from statestore.maintenance.rewrites.plans import Partitions, RewritePlan, StoreGroup
from statestore.maintenance.rewrites.spool import Spool
from statestore.maintenance.switchover import Machine, StoreSwitchFacts
from statestore.storage import Storage, at_once
from statestore.switch_journal import Begun, Made

_BLOCK_BYTES = 4096
"""Spark's block size."""

_PIECE_SHARE = 8
"""A piece of the spool may take this part of the memory: it is held as Python objects."""


@dataclass(frozen=True)
class _Source:
    """A source that was read: the digest of its rows, and the snapshot that names its column families."""

    digest: str
    base: SnapshotMetadata | None


def rebuild(
    storage: Storage,
    begun: Begun,
    planned: RewritePlan,
    group: StoreGroup,
    machine: Machine,
    ended: Callable[[StorePath, Made], None],
) -> None:
    """Make the snapshots of a group. `ended` is called after each, from one thread at a time.

    *Guarantee*: overwrites no file. The snapshots have exactly the rows of the sources: the digests are compared before
    the first snapshot is published, and each snapshot is read back. Raises as `snapshot.execute`; `CorruptFile` if rows
    differ, `UnknownFormatVersion` if the partitions name their column families differently.
    """
    with translated(machine.scratch):
        machine.scratch.mkdir(parents=True, exist_ok=True)
    with translated(machine.scratch), tempfile.TemporaryDirectory(dir=machine.scratch, prefix="rewrite-") as name:
        folder = Path(name)
        limits = EngineLimits(block_bytes=_BLOCK_BYTES)
        with Spool(folder / "spool", limits, machine.memory_bytes // _PIECE_SHARE // machine.workers) as spool:
            sources = _read(storage, planned, group, machine, folder, spool)
            snapshots = _Snapshots(storage, begun, planned, group, machine, folder, _families(group, sources))
            snapshots.build(spool, digests.total(source.digest for source in sources), ended)


def _read(
    storage: Storage, planned: RewritePlan, group: StoreGroup, machine: Machine, folder: Path, spool: Spool
) -> Sequence[_Source]:
    """Restore each source, and add its rows to the spool."""
    found: list[_Source] = []
    failed: list[StatekeeperError] = []

    def work(fact: StoreSwitchFacts) -> _Source:
        limits = EngineLimits(block_bytes=_BLOCK_BYTES, replay_bytes=machine.memory_bytes // (2 * machine.workers))
        place = folder / f"source-{fact.store.partition}"
        cache = LocalCopyFolder(place / "store", limits, machine.ids)
        loader = Loader(
            fact.store, storage, cache, limits, clock=machine.clock, lock_timeout_seconds=0, conf=planned.conf
        )
        restored = loader.restore(fact.head, place / "database")
        with restored.database as database:
            names = {} if restored.base is None else _names(restored.base)
            spool.add(_routed(database, group, names, fact.store))
            return _Source(database.digest(), restored.base)

    def ended(fact: StoreSwitchFacts, outcome: _Source | StatekeeperError) -> None:
        del fact
        (failed if isinstance(outcome, StatekeeperError) else found).append(outcome)  # type: ignore[arg-type]

    in_pool(work, group.sources, ended, workers=max(1, min(machine.workers, len(group.sources))))
    if failed:
        raise failed[0]
    return found


def _routed(
    database: Database, group: StoreGroup, names: dict[int, str], store: StorePath
) -> Iterator[tuple[Partitions, Sequence[bytes], Sequence[bytes]]]:
    """Find the target of each row. A piece has rows of one column family.

    Raises `UnknownPartitioning` if a row is not in the partition in which the rule expects it: then the query partitions
    its rows by something else, such as a function of the key.
    """
    for keys, values in database.scan():
        begin = 0
        while begin < len(keys):
            end, family = len(keys), None
            if names:
                number = family_id(keys[begin])
                end = next((at for at in range(begin, len(keys)) if family_id(keys[at]) != number), end)
                family = names.get(number)
                _require_family(number, family, group, store)
            yield _targets(keys[begin:end], family, group, store), keys[begin:end], values[begin:end]
            begin = end


def _targets(keys: Sequence[bytes], family: str | None, group: StoreGroup, store: StorePath) -> Partitions:
    if group.rules is None:
        return np.full(len(keys), store.partition, np.int32)
    rule = replace(group.rules[family], store=store)
    hashes = key_hashes(keys, rule)
    require_partition(hashes, rule, len(group.sources))
    return partitions_of(hashes, len(group.targets))


def _require_family(number: int, family: str | None, group: StoreGroup, store: StorePath) -> None:
    if family is None or (group.rules is not None and family not in group.rules):
        raise UnknownFormatVersion(
            f"has rows of a column family with the id {number}, which the snapshot or the schema does not name; the rows "
            f"cannot be moved",
            path=str(store),
            hint="restore the snapshot and the schema that Spark wrote when the family was added",
        )


def _names(base: SnapshotMetadata) -> dict[int, str]:
    return {number: name for name, number in base.column_families.items()}


def _families(group: StoreGroup, sources: Sequence[_Source]) -> SnapshotMetadata | None:
    """Return the metadata that names the column families: the same in all partitions."""
    bases = [source.base for source in sources if source.base is not None and source.base.column_families]
    if not bases:
        return None
    if any(base.column_families != bases[0].column_families for base in bases):
        raise UnknownFormatVersion(
            f"operator {group.operator}, store {group.name}: the partitions number their column families differently; "
            f"their rows cannot be moved",
            hint="run the query for one batch with Spark's defaults, then run this command again",
        )
    return max(bases, key=lambda base: base.largest_family_id)


@dataclass(frozen=True)
class _Snapshots:
    """Builds the databases of the targets, and publishes their snapshots."""

    storage: Storage
    begun: Begun
    planned: RewritePlan
    group: StoreGroup
    machine: Machine
    folder: Path
    families: SnapshotMetadata | None

    def build(self, spool: Spool, digest: str, ended: Callable[[StorePath, Made], None]) -> None:
        """Build all databases, compare all their rows with the sources, and only then publish."""
        built = {target: self._database(spool, target) for target in self.group.targets}
        found = digests.total(built.values())
        if found != digest:
            raise CorruptFile(
                f"the rewritten rows differ from the present rows of store {self.group.name}: {found}, expected {digest}; "
                f"nothing was published",
                path=f"state/{self.group.operator}",
                hint="report this error with the plan; to reverse the rewrite, use --abort",
            )
        failed: list[StatekeeperError] = []

        def publish(target: StorePath) -> Made:
            return self._publish(target, built[target])

        def done(target: StorePath, outcome: Made | StatekeeperError) -> None:
            if isinstance(outcome, StatekeeperError):
                failed.append(outcome)
            else:
                ended(target, outcome)

        in_pool(publish, self.group.targets, done, workers=self.machine.workers)
        if failed:
            raise failed[0]

    def _path(self, target: StorePath) -> Path:
        return self.folder / f"target-{target.partition}"

    def _database(self, spool: Spool, target: StorePath) -> str:
        """Build the database of a target, and return its digest."""
        path, limits = self._path(target), EngineLimits(block_bytes=_BLOCK_BYTES)
        with Database.create(path, limits) as database:
            rows = spool.rows_of(target.partition)
            first = next(rows, None)
            if first is not None:
                database.apply([_chained(first, rows)], None)
            return database.digest()

    def _publish(self, target: StorePath, digest: str) -> Made:
        version, captured = self.begun.stores[target], self.folder / f"captured-{target.partition}"
        limits = EngineLimits(block_bytes=_BLOCK_BYTES)
        with self._reopened(self._path(target), limits) as database:
            metadata = self._metadata(database, digests.rows_of(digest))
            database.capture(captured)
        files = catalog.files(self.storage, target.folder).of(target)
        tables = tables_of(self.begun, files)
        # An interrupted run may have published the snapshot, or only a part of its tables. A snapshot is compared below.
        if version not in files.snapshots:
            self.storage.delete(target.table_file(name) for name in tables)
            tables = self._upload(target, captured, metadata)
        snapshot.require_same(
            self.storage,
            target,
            version,
            digest,
            self.folder / f"back-{target.partition}",
            conf=self.planned.conf,
            at_hand={},
        )
        return Made(digest, tables)

    def _upload(self, target: StorePath, captured: Path, metadata: SnapshotMetadata) -> tuple[str, ...]:
        """Upload the tables and then the zip. Return the names of the tables."""
        tables = tuple(
            TableFile(path.name, f"{path.stem}{_ending(self.begun)}", path.stat().st_size)
            for path in sorted(captured.glob("*.sst"))
        )

        def upload(table: TableFile) -> None:
            self.storage.create(target.table_file(table.dfs_name), captured / table.local_name)

        at_once(upload, tables)
        small = {path.name: path.read_bytes() for path in captured.iterdir() if is_small_file(path.name)}
        body = encode_snapshot(Snapshot(small, replace(metadata, tables=tables)))
        self.storage.create(target.snapshot(self.begun.stores[target]), body)
        return tuple(table.dfs_name for table in tables)

    def _reopened(self, path: Path, limits: EngineLimits) -> Database:
        """Open a database. With column families, its options name Spark's merge operator: see `rocksdb_files`."""
        if self.families is None:
            return Database.open_for_writing(path, limits)
        return Database.open_with_merges(path, limits, self.planned.conf.merge_delimiter)

    def _metadata(self, database: Database, rows: int) -> SnapshotMetadata:
        header = self.begun.header
        if self.families is None:
            return SnapshotMetadata(header=header, tables=(), key_count=rows, column_families={})
        names = _names(self.families)
        own = internal = 0
        for beginning, count in database.count_by_beginning(FAMILY_BYTES).items():
            if self.families.internal_families.get(names[family_id(beginning)], False):
                internal += count
            else:
                own += count
        return replace(self.families, header=header, key_count=own, internal_key_count=internal, archived_logs=())


def tables_of(begun: Begun, files: catalog.StoreFiles) -> tuple[str, ...]:
    """Return the names of the tables of a store that this rewrite has uploaded, whether a snapshot names them or not."""
    return tuple(sorted(name for name in files.tables if name.endswith(_ending(begun))))


def _ending(begun: Begun) -> str:
    """The end of the name of each table of a rewrite."""
    return f"-{begun.run}.sst"


def _chained(first: tuple[bytes, bytes], rest: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    yield first
    yield from rest
