"""Builds and publishes the snapshots of a group of stores: old partitions -> spool -> new partitions -> read-back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from statekeeper.statestore.base.errors import AlreadyExists, CorruptFile, UnknownFormatVersion
from statekeeper.statestore.base.workers import Caller, callers, results_in_pool
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Made
from statekeeper.statestore.format.family_rows import FAMILY_BYTES, family_id
from statekeeper.statestore.format.hdfs_backed import HdfsBackedWriter
from statekeeper.statestore.format.limits import MOST_RECORD_BYTES
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.snapshot import (
    Snapshot,
    SnapshotMetadata,
    TableFile,
    encode_snapshot,
    is_small_file,
    read_snapshot,
)
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance.rewrites.engine.model import Machine
from statekeeper.statestore.maintenance.rewrites.engine.snapshots import make_each, table_name, tables_of
from statekeeper.statestore.maintenance.rewrites.engine.steps import Rewriting
from statekeeper.statestore.maintenance.rewrites.whole_stores.load import RowProgress, read_savepoint
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import (
    ByFamily,
    Conversion,
    RewritePlan,
    StoreGroup,
)
from statekeeper.statestore.maintenance.rewrites.whole_stores.read import BLOCK_BYTES, ClosedDatabase, Source, read
from statekeeper.statestore.maintenance.rewrites.whole_stores.spool import (
    OpenPart,
    ReadablePart,
    SharedSpool,
    Spool,
    rows_of,
)
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.storage import Storage, at_once
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits, translated
from statekeeper.statestore.store.engine.rows_digest import RowsDigest
from statekeeper.statestore.store.engine.scratch import work_folder

TABLE_BYTES = 64 * 1024 * 1024
"""Keys and values of a table, as many as in Spark's tables."""


@dataclass(frozen=True)
class NewDatabases:
    """The databases of the new partitions, below `folder`.

    `families`: the metadata that names the column families; None for stores without families.
    """

    folder: Path
    families: SnapshotMetadata | None

    def write(self, target: StorePath, rows: Iterator[tuple[bytes, bytes]]) -> None:
        """Write the rows, whose keys ascend, into a new database, and capture its files."""
        with Database.create(self.path(target), EngineLimits(block_bytes=BLOCK_BYTES)) as database:
            database.apply(_tables(rows), None)
            if self.families is None:
                database.capture(self.captured(target))

    def path(self, target: StorePath) -> Path:
        """The folder of a database."""
        return self.folder / f"target-{target.partition}"

    def captured(self, target: StorePath) -> Path:
        """The folder with links to the files of a snapshot. With column families, `upload` makes it."""
        return self.folder / f"captured-{target.partition}"

    def closed(self, path: Path, conf: StateConf) -> ClosedDatabase:
        """A database. With column families, its options name Spark's merge operator: see `rocksdb_files`."""
        delimiter = None if self.families is None else conf.merge_delimiter
        return ClosedDatabase(path=path, limits=EngineLimits(block_bytes=BLOCK_BYTES), merge_delimiter=delimiter)

    def upload(
        self,
        storage: Storage,
        target: StorePath,
        rows: int,
        *,
        header: str,
        conf: StateConf,
        name_of: Callable[[str], str],
    ) -> tuple[bytes, tuple[str, ...]]:
        """Upload the tables of a database. Return the zip that names them, and their names.

        `header`: of the snapshot; `name_of`: returns the name of a table in storage.
        """
        metadata = self._metadata(target, rows, header, conf)
        captured = self.captured(target)
        tables = tuple(
            TableFile(path.name, name_of(path.stem), path.stat().st_size) for path in sorted(captured.glob("*.sst"))
        )

        def upload(table: TableFile) -> None:
            storage.create(target.table_file(table.dfs_name), captured / table.local_name)

        at_once(upload, tables)
        small = {path.name: path.read_bytes() for path in captured.iterdir() if is_small_file(path.name)}
        body = encode_snapshot(Snapshot(small, replace(metadata, tables=tables)))
        return body, tuple(table.dfs_name for table in tables)

    def _metadata(self, target: StorePath, rows: int, header: str, conf: StateConf) -> SnapshotMetadata:
        families = self.families
        if families is None:
            return SnapshotMetadata(header=header, tables=(), key_count=rows, column_families={})
        names = {number: name for name, number in families.column_families.items()}
        own = internal = 0
        with self.closed(self.path(target), conf).open() as database:
            database.capture(self.captured(target))
            counts = database.count_by_beginning(FAMILY_BYTES)
        for beginning, count in counts.items():
            if families.internal_families.get(names[family_id(beginning)], False):
                internal += count
            else:
                own += count
        return replace(families, header=header, key_count=own, internal_key_count=internal, archived_logs=())


@dataclass(frozen=True, kw_only=True)
class RocksDbSnapshots:
    """Publishes the databases of the new partitions. `call`: runs what needs local files only."""

    storage: Storage
    begun: Begun
    conf: StateConf
    new: NewDatabases
    call: Caller

    def publish(self, target: StorePath, digest: str) -> Made:
        """Publish a database, tables first and the zip last, and compare the published rows with `digest`."""
        version, run = self.begun.stores[target], self.begun.run
        files = catalog.files(self.storage, target.folder).of(target)
        tables = tables_of(run, files)
        # An interrupted run may have published the snapshot, or only a part of its tables. A snapshot is compared below.
        if version in files.snapshots:
            path = target.snapshot(version)
            tables = tuple(one.dfs_name for one in read_snapshot(self.storage.read(path), path).metadata.tables)
        else:
            self.storage.delete(target.table_file(name) for name in tables)
            rows, header = RowsDigest.parse(digest).rows, self.begun.header
            body, tables = self.new.upload(
                self.storage, target, rows, header=header, conf=self.conf, name_of=partial(table_name, run)
            )
            self.storage.create(target.snapshot(version), body)
        back = self.new.folder / f"back-{target.partition}"
        conf = replace(self.conf, provider=target.provider)
        snapshot.require_same(
            self.storage, target, version, digest, back, conf=conf, at_hand={}, digest_of=self._digest_of
        )
        return Made(digest, tables)

    def _digest_of(self, database: Database) -> str:
        if self.call.is_here:
            return database.digest()
        database.close()
        return self.call(self.new.closed(database.path, self.conf).digest)


def _tables(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    """Split the rows of a database into tables: RocksDB keeps the filter and the index of a table in memory until its end.
    Each is read before the next."""
    for first in rows:
        yield itertools.chain([first], _until(rows, TABLE_BYTES - len(first[0]) - len(first[1])))


def _until(rows: Iterator[tuple[bytes, bytes]], size_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    while size_bytes > 0 and (row := next(rows, None)) is not None:
        size_bytes -= len(row[0]) + len(row[1])
        yield row


_PIECE_ROWS = 10_000


@dataclass(frozen=True, kw_only=True)
class NewFiles:
    """The snapshot files of the new partitions, below `folder`. `codec`, `row_checksums`: of the query;
    `most_record_bytes`: of the root."""

    folder: Path
    codec: str
    row_checksums: bool
    most_record_bytes: int = MOST_RECORD_BYTES

    def write(self, target: StorePath, rows: Iterator[tuple[bytes, bytes]]) -> None:
        """Write the rows into a new file. Raises `TooLarge`."""
        with self.path(target).open("wb") as file:
            writer = HdfsBackedWriter(
                file,
                self.codec,
                row_checksums=self.row_checksums,
                most_record_bytes=self.most_record_bytes,
                path=target.folder,
            )
            while piece := list(islice(rows, _PIECE_ROWS)):
                writer.append([key for key, _ in piece], [value for _, value in piece])
            writer.finish()

    def path(self, target: StorePath) -> Path:
        """The path of a file."""
        return self.folder / f"target-{target.partition}.snapshot"


@dataclass(frozen=True, kw_only=True)
class HdfsSnapshots:
    """Publishes the snapshot files of the new partitions."""

    storage: Storage
    begun: Begun
    conf: StateConf
    new: NewFiles

    def publish(self, target: StorePath, digest: str) -> Made:
        """Publish a file, and compare the published rows with `digest`."""
        version = self.begun.stores[target]
        # An interrupted run may have published it. It is compared below.
        with suppress(AlreadyExists):
            self.storage.create(target.snapshot(version), self.new.path(target))
        back = self.new.folder / f"back-{target.partition}"
        conf = replace(self.conf, provider=target.provider)
        snapshot.require_same(self.storage, target, version, digest, back, conf=conf, at_hand={})
        return Made(digest, ())


PIECE_SHARE = 32
"""A piece of the spool may take this part of the memory of a worker, and again while it is sorted."""
_STORES_OF_PROCESSES = 32
"""A process opens local databases once more for each store. With more stores, they must be larger to be worth that."""

_MEMORY_OF_A_PROCESS = 64 * 1024 * 1024
"""The least memory for each process; its imports alone take most of it."""


def rebuild_here(
    work: Rewriting, planned: RewritePlan, group: StoreGroup, machine: Machine, read_rows: RowProgress
) -> None:
    """Make the snapshots of a group on this machine. `read_rows`: of a load.

    *Guarantee*: overwrites no file. The snapshots have exactly the rows of the sources: the digests are compared before
    the first snapshot is published, and each snapshot is read back. Raises as `read`; `CorruptFile` if rows differ,
    `UnknownFormatVersion` if the partitions number their column families differently, `LocalDiskFull`, `StorageError`.
    """
    storage, begun, conf = work.storage, work.begun, planned.conf_after or planned.conf
    with (
        work_folder(machine.scratch, "rewrite") as folder,
        translated(machine.scratch),
        callers(_processes(group, machine)) as call,
    ):
        piece_bytes = machine.memory_bytes // PIECE_SHARE // machine.workers
        with _spool(folder / "spool", piece_bytes, call) as spool:
            if planned.load is None:
                sources = read(planned.source or storage, planned, group, machine, folder, spool, call)
            else:
                sources = read_savepoint(storage, planned, group, machine, spool, read_rows)
            new = new_snapshots(planned, group, sources, folder, most_record_bytes=storage.limits.record_bytes)
            built = _build(new, spool, group, call, machine.workers if call.is_here else call.workers)
        require_all_rows(group, sources, [compared for _, compared in built.values()])
        snapshots: RocksDbSnapshots | HdfsSnapshots
        if isinstance(new, NewDatabases):
            snapshots = RocksDbSnapshots(storage=storage, begun=begun, conf=conf, new=new, call=call)
        else:
            snapshots = HdfsSnapshots(storage=storage, begun=begun, conf=conf, new=new)
        digests = {target: str(digest) for target, (digest, _) in built.items()}
        make_each(
            work,
            group.targets,
            lambda target: (snapshots.publish(target, digests[target]), ()),
            workers=machine.workers,
            interrupt=call.end,
        )


def _processes(group: StoreGroup, machine: Machine) -> int:
    """The number of processes beside this one; 1 for none."""
    stores = max(len(group.sources), len(group.targets))
    is_large = group.read_bytes >= max(machine.process_bytes, stores * machine.process_bytes // _STORES_OF_PROCESSES)
    return min(machine.workers, stores, max(1, machine.memory_bytes // _MEMORY_OF_A_PROCESS)) if is_large else 1


def new_snapshots(
    planned: RewritePlan, group: StoreGroup, sources: Sequence[Source], folder: Path, *, most_record_bytes: int
) -> NewDatabases | NewFiles:
    """Return the snapshots to build below `folder`. Raises `UnknownFormatVersion` if the partitions number their column
    families differently."""
    if planned.provider is Provider.ROCKSDB:
        return NewDatabases(folder, _families(group, sources))
    return NewFiles(
        folder=folder,
        codec=planned.codec,
        row_checksums=(planned.conf_after or planned.conf).row_checksums,
        most_record_bytes=most_record_bytes,
    )


def _spool(path: Path, piece_bytes: int, call: Caller) -> AbstractContextManager[Spool]:
    return OpenPart.create(path, piece_bytes) if call.is_here else nullcontext(SharedSpool(path, piece_bytes))


def _build(
    new: NewDatabases | NewFiles, spool: Spool, group: StoreGroup, call: Caller, workers: int
) -> Mapping[StorePath, tuple[RowsDigest, RowsDigest]]:
    """Build the snapshots on local disk. Return the digests of each, see `written`."""
    compared = compared_of(group.conversion, new)

    def write(target: StorePath) -> tuple[RowsDigest, RowsDigest]:
        return call(written, new, spool.parts, target, compared)

    digests = results_in_pool(write, group.targets, workers=workers, interrupt=call.end)
    return dict(zip(group.targets, digests, strict=True))


@dataclass(frozen=True)
class Compared:
    """What new rows have in common with the present ones. `by_family`: by the id of the column family; None for a store
    without families, which has `conversion`."""

    conversion: Conversion | None
    by_family: Mapping[int, Conversion | None] | None = None

    def of(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs to compare. `keys` ascend, so that the families follow each other."""
        if self.by_family is None:
            yield from self._of_family(self.conversion, keys, values)
            return
        begin = 0
        for number, of_family in itertools.groupby(keys, family_id):
            end = begin + sum(1 for _ in of_family)
            yield from self._of_family(self.by_family[number], keys[begin:end], values[begin:end])
            begin = end

    @staticmethod
    def _of_family(
        conversion: Conversion | None, keys: Sequence[bytes], values: Sequence[bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        return zip(*((keys, values) if conversion is None else conversion.of_target(keys, values)), strict=True)


def compared_of(conversion: Conversion | ByFamily | None, new: NewDatabases | NewFiles) -> Compared | None:
    """Return how new rows are compared; None if they are the present ones."""
    if not isinstance(conversion, ByFamily):
        return None if conversion is None else Compared(conversion)
    ids = new.families.column_families if isinstance(new, NewDatabases) and new.families is not None else {}
    return Compared(None, {ids[name]: one for name, one in conversion.families.items() if name in ids})


def written(
    new: NewDatabases | NewFiles, parts: Sequence[ReadablePart], target: StorePath, comparison: Compared | None
) -> tuple[RowsDigest, RowsDigest]:
    """Build one snapshot. Needs local files only. Returns the digests of its rows as they are stored, and as they are
    compared."""
    stored, compared = RowsDigest(), RowsDigest()

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for keys, values in rows_of(parts, target.partition):
            pairs = list(zip(keys, values, strict=True))
            stored.add(pairs)
            if comparison is not None:
                compared.add(comparison.of(keys, values))
            yield from pairs

    new.write(target, rows())
    return stored, compared if comparison is not None else stored


def require_all_rows(group: StoreGroup, sources: Sequence[Source], targets: Sequence[RowsDigest]) -> None:
    """Require that the new snapshots have the rows that were read. Raises `CorruptFile`."""
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
    newest = max(bases, key=lambda base: base.largest_family_id)
    if not isinstance(group.conversion, ByFamily):
        return newest
    kept = group.conversion.families
    return replace(
        newest,
        column_families={name: number for name, number in newest.column_families.items() if name in kept},
        internal_families={name: one for name, one in newest.internal_families.items() if name in kept},
    )
