"""Matches the tables of a savepoint with the stores of a checkpoint, and states why a load is blocked. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statekeeper.statestore.base.errors import CorruptFile, StatekeeperError, UnknownFormatVersion, UnknownPartitioning
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.workers import results_in_pool
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.rows import Layout
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.family_encode import encode_keys, encode_values
from statekeeper.statestore.format.key_groups import KeyGroups
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes
from statekeeper.statestore.format.names import EMPTY
from statekeeper.statestore.format.partition_keys import PartitionRule, key_hashes, require_partition
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.ragged import Counts
from statekeeper.statestore.format.snapshot import SnapshotMetadata, read_snapshot
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.savepoints.record import File
from statekeeper.statestore.maintenance.copies.savepoints.saved import Columns, Saved, SavedPart, SavedTable, columns_of
from statekeeper.statestore.maintenance.copies.savepoints.write import (
    Table,
    digest_of,
    digest_sum,
    state_rows,
    table_of,
)
from statekeeper.statestore.maintenance.executors import Place, results_of
from statekeeper.statestore.maintenance.rewrites.engine.model import Machine, Progress, ProgressCallback, RewritePhase
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import (
    Incoming,
    Load,
    OperatorFacts,
    Partitions,
    RewriteFacts,
    RewritePlan,
    StoreGroup,
)
from statekeeper.statestore.maintenance.rewrites.whole_stores.read import Source
from statekeeper.statestore.maintenance.rewrites.whole_stores.spool import Piece, Spool
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.rows_digest import RowsDigest
from statekeeper.statestore.store.engine.scratch import work_folder

ROWS_PER_SECOND = 20_000
"""Measured with two workers on two cores that other processes used too: a million rows of an aggregation."""

_COPIES = 3
"""A row is on local disk at most this many times: in the spool, in its target, and in the snapshot that is read back."""
_ROW_BYTES = 32
"""Upper bound of what RocksDB adds to a row."""


def incoming(facts: RewriteFacts, goal: Load, operator: OperatorFacts, store: str) -> tuple[Incoming, ...]:
    """Return the tables of a store, those that match."""
    layout, rules = operator.layouts.get(store), operator.rules[store]
    if not isinstance(layout, Layout) or isinstance(rules, StatekeeperError):
        return ()
    tables = _tables(goal.saved)
    found = []
    for family, rows in layout.families.items():
        table = tables.get((operator.operator, store, family))
        if table is None or any(_differences(table, rows)):
            continue
        is_own = isinstance(rules, KeyGroups)
        rule: PartitionRule | None = None if isinstance(rules, KeyGroups) else rules[family]
        found.append(
            Incoming(
                table=table,
                layout=rows,
                rule=rule,
                key_groups=KeyGroups(facts.key_groups) if is_own and facts.key_groups else None,
            )
        )
    return tuple(found)


def local_bytes(group: StoreGroup) -> int:
    """Return an upper bound of the local disk of a group: its rows, and all files, because each worker holds one."""
    rows = sum(one.table.state_bytes + _ROW_BYTES * one.table.rows for one in group.incoming)
    return _COPIES * rows + sum(one.table.file_bytes for one in group.incoming)


def of_load(facts: RewriteFacts, goal: Load) -> Iterator[str]:
    """Yield the reasons that block a load."""
    stopped, saved = facts.stopped, goal.saved
    if stopped.conf.provider is Provider.HDFS_BACKED:
        yield (
            "load does not support Spark's default provider: first move the query to RocksDB with: statekeeper convert "
            "ROOT --to rocksdb"
        )
        return
    if saved.origin is not stopped.origin:
        kinds = {Origin.OWN: "the state root of a job on `pipelines`", Origin.NATIVE: "a native query"}
        yield f"the savepoint is of {kinds[saved.origin]}, but the checkpoint is of {kinds[stopped.origin]}"
        return
    if stopped.origin is Origin.OWN and stopped.structure is Structure.V1:
        yield (
            "the root has structure V1, in which the new snapshots would have the names of the present ones; first run: "
            "statekeeper switch ROOT --to v2"
        )
    if facts.filled is not None and not goal.replaces_state and stopped.half_done is None:
        yield f"{facts.filled}: to replace all rows of the checkpoint, add --replace-state"
    written = sum(table.state_bytes + _ROW_BYTES * table.rows for table in saved.tables)
    if facts.free_at_root is not None and written > facts.free_at_root:
        yield (
            f"the new snapshots need up to {written:,} bytes, but {facts.free_at_root:,} are free where the checkpoint is"
        )
    yield from _of_stores(facts, saved)


def _of_stores(facts: RewriteFacts, saved: Saved) -> Iterator[str]:
    tables = _tables(saved)
    for operator in facts.operators:
        described = f"operator {operator.operator} ({operator.name or 'unnamed'})"
        for store in operator.stores:
            layout, rules = operator.layouts.get(store), operator.rules[store]
            if not isinstance(layout, Layout):
                yield f"{described}, store {store}: {layout.what if layout is not None else 'its schema is unknown'}"
                continue
            if isinstance(rules, StatekeeperError):
                yield rules.what
            for family, rows in layout.families.items():
                place = f"{described}, store {store}{'' if family is None else f', family {family}'}"
                table = tables.pop((operator.operator, store, family), None)
                if table is None:
                    yield f"{place}: the savepoint has no table of it"
                    continue
                yield from (f"{place}: {reason}" for reason in _of_table(table, operator, rows))
    for table in tables.values():
        yield (
            f"the savepoint has {counted(table.rows, 'row')} of operator {table.operator} "
            f"({table.operator_name or 'unnamed'}), store {table.store}"
            f"{'' if table.family is None else f', family {table.family}'}, which the checkpoint does not have"
        )


def _of_table(table: SavedTable, operator: OperatorFacts, rows: Family) -> Iterator[str]:
    if table.problem is not None:
        yield f"the savepoint has bytes instead of typed columns: {table.problem}"
        return
    # The tables of an own root have the name of Statekeeper's operator; its stores are matched by number.
    is_own = any(isinstance(rules, KeyGroups) for rules in operator.rules.values())
    if not is_own and table.operator_name and operator.name and table.operator_name != operator.name:
        yield f"the savepoint has the operator {table.operator_name}"
    yield from _differences(table, rows)


def _differences(table: SavedTable, rows: Family) -> Iterator[str]:
    for part, saved, present in (("key", table.key, rows.key), ("value", table.value, rows.value)):
        columns = columns_of(present)
        if not _fits(saved, columns):
            yield f"the {part} has the columns {_shown(saved)} in the savepoint, and {_shown(columns)} in the checkpoint"


def _fits(saved: Columns, present: Columns) -> bool:
    """Return whether the columns are equal. A column without nulls also fits one that allows them."""
    if [(name, kind) for name, kind, _ in saved] != [(name, kind) for name, kind, _ in present]:
        return False
    return all(
        nullable or not saved_nullable for (_, _, saved_nullable), (_, _, nullable) in zip(saved, present, strict=True)
    )


def _shown(columns: Columns) -> str:
    return ", ".join(f"{name} {kind}{'' if nullable else ' not null'}" for name, kind, nullable in columns) or "none"


def _tables(saved: Saved) -> dict[tuple[int, str, str | None], SavedTable]:
    return {table.place: table for table in saved.tables}


_ROWS = 16_384
"""Rows in memory at a time, by worker, as Python objects."""
_REPORTS = 20
_BUFFER_BYTES = 256 * 1024
_HINT = "make the savepoint again, or restore its file from a backup"


@dataclass(frozen=True)
class LoadedPart:
    """A partition of a table, with the id of its family in the stores of the checkpoint, and the number of partitions of
    the store that gets its rows."""

    incoming: Incoming
    saved: SavedPart
    number: int | None
    targets: int

    @property
    def rows(self) -> int:
        """The number of its rows, by the manifest."""
        return self.saved.part.rows


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the parts of a savepoint are read: `key_groups` of the savepoint of an own root, and how the new rows are
    encoded."""

    storage: Storage
    key_groups: int | None
    conf: StateConf

    @classmethod
    def of(cls, planned: RewritePlan) -> Reading:
        """Return how the savepoint of a load is read."""
        assert planned.load is not None
        load = planned.load
        return cls(storage=load.storage, key_groups=load.saved.key_groups, conf=planned.conf)


class RowProgress:
    """Counts the rows of a phase, from any thread, and reports about every twentieth of `of`."""

    def __init__(self, progress: ProgressCallback, phase: RewritePhase, of: int) -> None:
        self._progress = progress
        self._phase = phase
        self._of = of
        self._done = self._shown = 0
        self._counting = Lock()

    def add(self, rows: int) -> None:
        """Count more rows."""
        with self._counting:
            self._done += rows
            if self._done == self._of or self._done - self._shown >= self._of / _REPORTS:
                self._shown = self._done
                self._progress(Progress(phase=self._phase, done=self._done, of=self._of))


@dataclass(frozen=True, kw_only=True)
class VerifyEach:
    """The task that reads a part of a savepoint. `counted`: of an executor in this process: counts the rows while they are
    read."""

    reading: Reading
    counted: RowProgress | None = None

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.reading.storage,)

    def __call__(self, part: LoadedPart, place: Place) -> None:
        with work_folder(place.scratch, "load") as folder:
            for _ in pieces(self.reading, part, folder, RowsDigest(), self.counted):
                pass


def require_intact(
    storage: Storage, planned: RewritePlan, machine: Machine, progress: ProgressCallback = lambda _: None
) -> None:
    """Read all files of the savepoint, and compare their columns, counts and digests with the manifest and the checkpoint.

    Raises `CorruptFile`, `SchemaMismatch`, `UnknownPartitioning`, `UnknownFormatVersion`, `StorageError`, `LocalDiskFull`.
    """
    parts = [part for group in planned.groups for part in parts_of(storage, group)[0]]
    verified = RowProgress(progress, RewritePhase.VERIFIED, planned.rows)
    executor = machine.executor
    task = VerifyEach(reading=Reading.of(planned), counted=verified if executor.is_here else None)
    results_of(executor, task, parts, lambda part, _: None if executor.is_here else verified.add(part.rows))


def read_savepoint(
    storage: Storage, planned: RewritePlan, group: StoreGroup, machine: Machine, spool: Spool, read: RowProgress
) -> Sequence[Source]:
    """Add the rows of a group's tables to the spool, and count them in `read`. Return their digests, and the snapshots of
    the checkpoint that name the column families. Raises as `require_intact`."""
    reading, digests = Reading.of(planned), list[RowsDigest]()
    parts, bases = parts_of(storage, group)

    def work(part: LoadedPart) -> None:
        digest = RowsDigest()
        with work_folder(machine.scratch, "load") as folder, spool.lend() as lent, lent.writing() as rows:
            rows.add(pieces(reading, part, folder, digest, read))
        digests.append(digest)

    results_in_pool(work, parts, workers=machine.workers)
    return [*(Source(digest, None) for digest in digests), *(Source(RowsDigest(), base) for base in bases)]


def parts_of(storage: Storage, group: StoreGroup) -> tuple[list[LoadedPart], list[SnapshotMetadata]]:
    """Return the parts of the tables of a group, and the snapshots of the checkpoint that name the column families. One
    request for each partition of a store with families. Raises `UnknownFormatVersion`, `CorruptFile`, `StorageError`."""
    bases = _bases(storage, group)
    return list(_parts(group, _numbers(group, bases))), bases


def _bases(storage: Storage, group: StoreGroup) -> list[SnapshotMetadata]:
    """Return the metadata that names the column families, of each partition; none for a store without families."""
    if all(one.table.family is None for one in group.incoming):
        return []
    found = []
    for source in group.sources:
        assert source.load is not None
        if source.load.base != EMPTY:
            path = source.store.snapshot(source.load.base)
            found.append(read_snapshot(storage.read(path), path).metadata)
    return found


def _numbers(group: StoreGroup, bases: Sequence[SnapshotMetadata]) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    for base in bases:
        numbers |= base.column_families
    for one in group.incoming:
        family = one.table.family
        if family is not None and one.table.rows and family not in numbers:
            raise UnknownFormatVersion(
                f"operator {group.operator}, store {group.name}: no snapshot of the checkpoint names the column family "
                f"{family}, so its id is unknown; nothing was written",
                path=f"state/{group.operator}",
                hint="run the query until it has used this state variable, then stop it and load again",
            )
    return numbers


def _parts(group: StoreGroup, numbers: Mapping[str, int]) -> Iterator[LoadedPart]:
    for incoming in group.incoming:
        family = incoming.table.family
        number = None if family is None else numbers.get(family)
        # A part needs not know the others, of which a large savepoint has many.
        alone = replace(incoming, table=replace(incoming.table, parts=()))
        yield from (LoadedPart(alone, saved, number, len(group.targets)) for saved in incoming.table.parts)


def pieces(
    reading: Reading, part: LoadedPart, folder: Path, digest: RowsDigest, counted: RowProgress | None
) -> Iterator[Piece]:
    """Encode the rows of a part, and find the target of each. Its files are downloaded to `folder`. Raises an error after
    the last piece if the rows differ from the manifest."""
    incoming = part.incoming
    table = _table_of(incoming)
    for rows, counts in _whole_lists(_verified(reading.storage, part, table, folder), part):
        keys, values = state_rows(table, rows)
        if counts is not None:
            starts = np.cumsum(counts) - counts
            keys = keys.take(pa.array(starts))
        keys, targets = _placed_by_key_group(reading, part, keys)
        encoded = encode_keys(keys, incoming.layout, part.number)
        if targets is None:
            targets = _placed(part, encoded)
        with_values = encode_values(encoded, values, counts, incoming.layout, reading.conf)
        digest.add(zip(encoded, with_values, strict=True))
        if counted is not None:
            counted.add(rows.num_rows)
        yield targets, encoded, with_values


def _table_of(incoming: Incoming) -> Table:
    saved = incoming.table
    layout = Layout({saved.family: incoming.layout}, "")
    return table_of(saved.operator, saved.operator_name, saved.store, saved.family, layout)


def _verified(storage: Storage, part: LoadedPart, table: Table, folder: Path) -> Iterator[pa.RecordBatch]:
    """Iterate over the rows of a part. The last step compares their number and digest."""
    found, expected = 0, part.saved.part
    for file in expected.files:
        for batch in _batches(storage, file, table, folder):
            found = digest_sum((found, digest_of(batch)))
            yield batch
    if f"{found:032x}" != expected.digest:
        raise CorruptFile(
            f"partition {part.saved.partition} has rows whose digest is {found:032x}; the manifest of the savepoint has "
            f"{expected.digest}",
            path=expected.table,
            hint=_HINT,
        )


def _batches(storage: Storage, file: File, table: Table, folder: Path) -> Iterator[pa.RecordBatch]:
    path = folder / "part.parquet"
    storage.download(file.path, path, expected_bytes=file.bytes)
    count = 0
    try:
        # By default, Arrow keeps the compressed bytes of the whole file in memory.
        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as opened:
            if not opened.schema_arrow.equals(table.schema, check_metadata=False):
                raise CorruptFile("has other columns than the manifest of the savepoint", path=file.path, hint=_HINT)
            for batch in opened.iter_batches(batch_size=_ROWS, use_threads=False):
                count += batch.num_rows
                yield batch
    except (pa.ArrowException, OSError) as error:
        raise CorruptFile(f"cannot be read as Parquet: {error}", path=file.path, hint=_HINT) from error
    finally:
        path.unlink(missing_ok=True)
    if count != file.rows:
        raise CorruptFile(
            f"has {count:,} rows; the manifest of the savepoint has {file.rows:,}", path=file.path, hint=_HINT
        )


def _whole_lists(batches: Iterator[pa.RecordBatch], part: LoadedPart) -> Iterator[tuple[pa.RecordBatch, Counts | None]]:
    """Iterate over rows, or over whole lists with the number of elements of each key."""
    left: pa.RecordBatch | None = None
    for batch in batches:
        element = batch.column("element")
        if element.null_count == len(element) and left is None:
            yield batch, None
            continue
        joined = batch if left is None else pa.concat_batches([left, batch])
        starts = np.flatnonzero(joined.column("element").to_numpy(zero_copy_only=False) == 0)
        last = int(starts[-1]) if len(starts) else 0
        if last:
            yield joined.slice(0, last), _counts(joined.slice(0, last), part)
        left = joined.slice(last)
    if left is not None:
        yield left, _counts(left, part)


def _counts(rows: pa.RecordBatch, part: LoadedPart) -> Counts:
    """Return the length of each list. Require that its elements are numbered from 0."""
    column = rows.column("element")
    elements = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.flatnonzero(elements == 0)
    counts: Counts = np.diff([*starts, len(elements)])
    within = np.arange(len(elements)) - np.repeat(starts, counts) if len(starts) else np.array([-2])
    if not len(starts) or starts[0] or (within != elements).any():
        raise CorruptFile(
            f"partition {part.saved.partition} has lists whose elements are not numbered from 0",
            path=part.saved.part.table,
            hint=_HINT,
        )
    return counts


def _placed(part: LoadedPart, keys: Sequence[bytes]) -> Partitions:
    assert part.incoming.rule is not None
    rule = part.incoming.rule
    hashes = key_hashes(keys, rule)
    in_part = replace(rule, store=replace(rule.store, partition=part.saved.partition))
    require_partition(hashes, in_part, part.incoming.table.partitions)
    return partitions_of(hashes, part.targets)


def _placed_by_key_group(reading: Reading, part: LoadedPart, keys: pa.Table) -> tuple[pa.Table, Partitions | None]:
    """Give each key of an own root its key group in the checkpoint, and find its partition. A native key stays as it is."""
    key_groups = part.incoming.key_groups
    if key_groups is None:
        return keys, None
    assert reading.key_groups is not None
    # The index of a time has it before the key columns.
    prefix = len(part.incoming.layout.front)
    hashes = row_hashes(keys.select(range(prefix, keys.num_columns)))
    if (partitions_of(hashes, reading.key_groups) != keys.column(0).to_numpy()).any():
        raise UnknownPartitioning(
            f"partition {part.saved.partition} has a key whose key group is not the hash of its columns; nothing "
            f"was written",
            path=part.saved.part.table,
            hint=_HINT,
        )
    groups = partitions_of(hashes, key_groups.count)
    column = pa.array(groups.astype(np.int32), pa.int32())
    moved = pa.Table.from_arrays([column, *keys.columns[1:]], schema=keys.schema)
    return moved, key_groups.partitions_of(groups.astype(np.int64), part.targets).astype(np.int32)
