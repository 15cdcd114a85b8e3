"""The rows that change in a table: decoded from changelogs, or found by a comparison, and spooled on local disk.

The spool has the rows in the columns of the table, with their batch. Their hashes are in memory: 40 bytes for each row.
The last write of a key wins, by the number of the write.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.contents.delta_logs import deleted_positions
from statekeeper.statestore.contents.rows import (
    Contents,
    Layout,
    OpenStore,
    Pairs,
    decoded_keys,
    decoded_pairs,
    opened,
)
from statekeeper.statestore.format.changelog import Kind
from statekeeper.statestore.format.deletion_vectors import Positions
from statekeeper.statestore.format.delta_log import DataFile, DeltaTable
from statekeeper.statestore.format.family_rows import FAMILY_BYTES
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.maintenance.copies.state_tables import files
from statekeeper.statestore.maintenance.copies.state_tables.columns import Columns, Hashes, Shaped
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import EngineLimits, translated
from statekeeper.statestore.store.engine.scratch import work_folder
from statekeeper.statestore.store.loading.changelogs import Changelogs

_DECODED_AT_ONCE = 10_000
_LIMITS = EngineLimits(block_bytes=4096)
_WRITES_BYTES = 32 * 1024 * 1024
"""Bytes of the last writes of one store in memory."""
_RECORD_BYTES = 200
_BYTES_OF_ROW = 64
"""Memory of a comparison for each row of the table."""


class RangeDeleted(Exception):
    """A changelog deletes a range of keys, which only a comparison can find in the table."""


class Spool:
    """Rows on local disk, in the order of their writes. See the module."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self._path = path
        self._columns = columns
        self._schema = pa.schema([*columns.state_schema, pa.field("batch", pa.int64())])
        self._keys: list[Hashes] = []
        self._values: list[Hashes] = []
        self._deleted: list[npt.NDArray[np.bool_]] = []
        self._writes: list[npt.NDArray[np.int64]] = []
        self._write = 0
        with translated(path):
            self._sink = pa.OSFile(str(path), "wb")
            self._writer = pa.ipc.new_stream(self._sink, self._schema)

    def next_write(self) -> int:
        """Begin the next write, and return its number. Its rows replace those of earlier writes with the same keys."""
        self._write += 1
        return self._write

    def add(self, shaped: Shaped, batches: npt.NDArray[np.int64], *, write: int | None = None) -> None:
        """Add rows of a write, by default the present one. `batches`: which wrote them."""
        count = shaped.rows.num_rows
        if not count:
            return
        rows = pa.RecordBatch.from_arrays([*shaped.rows.columns, pa.array(batches, pa.int64())], schema=self._schema)
        with translated(self._path):
            self._writer.write_batch(rows)
        self._keys.append(shaped.keys)
        self._values.append(shaped.values)
        self._deleted.append(shaped.deleted)
        self._writes.append(np.full(count, self._write if write is None else write, np.int64))

    def finish(self) -> Changed:
        """End the spool, and return the last write of each key."""
        with translated(self._path):
            self._writer.close()
            self._sink.close()
        if not self._keys:
            return Changed.nothing()
        keys, values = np.concatenate(self._keys), np.concatenate(self._values)
        deleted, writes = np.concatenate(self._deleted), np.concatenate(self._writes)
        order = np.lexsort((np.arange(len(keys)), writes, keys[:, 1], keys[:, 0]))
        ordered = keys[order]
        is_new = np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)]
        starts = np.flatnonzero(is_new)
        of_key = np.cumsum(is_new) - 1
        newest = np.maximum.reduceat(writes[order], starts)
        counted = writes[order] == newest[of_key]
        live = counted & ~deleted[order]
        has_live = np.zeros(len(starts), bool)
        has_live[of_key[live]] = True
        digests = np.zeros(len(starts), np.uint64)
        digests[of_key[live]] = values[order][live]
        # A deleted key keeps one row, whose columns of the key the feed shows.
        kept = live.copy()
        marks = np.flatnonzero(counted & ~has_live[of_key])
        kept[marks[np.r_[True, of_key[marks][1:] != of_key[marks][:-1]]] if len(marks) else marks] = True
        key_of_row = np.full(len(keys), -1, np.int64)
        key_of_row[order[kept]] = of_key[kept]
        return Changed(keys=ordered[starts], values=digests, is_deleted=~has_live, key_of_row=key_of_row)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Read the rows with their batch, in order."""
        with translated(self._path), pa.OSFile(str(self._path)) as source:
            yield from pa.ipc.open_stream(source)


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The keys that were written, sorted by their hashes.

    keys, values  the hashes of the key and of its last value
    is_deleted    the key does not belong to the table any more
    key_of_row    the place of the key of each row of the spool; -1 for a row that a later write replaces
    """

    keys: Hashes
    values: Hashes
    is_deleted: npt.NDArray[np.bool_]
    key_of_row: npt.NDArray[np.int64]

    @classmethod
    def nothing(cls) -> Changed:
        """Return no keys."""
        return cls(
            keys=np.zeros((0, 2), np.uint64),
            values=np.zeros(0, np.uint64),
            is_deleted=np.zeros(0, bool),
            key_of_row=np.zeros(0, np.int64),
        )

    def __len__(self) -> int:
        return len(self.keys)


def places_of(sorted_keys: Hashes, keys: Hashes) -> npt.NDArray[np.int64]:
    """Return the place of each key among sorted ones; -1 if it is not there."""
    found = np.full(len(keys), -1, np.int64)
    if not len(sorted_keys) or not len(keys):
        return found
    high, low = np.ascontiguousarray(sorted_keys[:, 0]), sorted_keys[:, 1]
    # Most keys of a table are not among the changed ones: a table of 20 bits of the hash excludes them at once.
    there = np.zeros(1 << 20, bool)
    there[(high & np.uint64((1 << 20) - 1)).astype(np.int64)] = True
    maybe = np.flatnonzero(there[(keys[:, 0] & np.uint64((1 << 20) - 1)).astype(np.int64)])
    of_maybe = keys[maybe]
    at = np.searchsorted(high, of_maybe[:, 0])
    inside = at < len(high)
    at = np.where(inside, at, 0)
    same = inside & (high[at] == of_maybe[:, 0])
    hit = same & (low[at] == of_maybe[:, 1])
    # Keys whose first 64 bits are equal are neighbors.
    for place in np.flatnonzero(same & ~hit):
        one = int(at[place])
        while one < len(high) and high[one] == of_maybe[place, 0]:
            if low[one] == of_maybe[place, 1]:
                at[place], hit[place] = one, True
                break
            one += 1
    found[maybe[hit]] = at[hit]
    return found


@dataclass(frozen=True, kw_only=True)
class Found:
    """Rows of the table with changed keys.

    file       the place of the data file in `files`
    positions  in the file
    key        the place among the changed keys
    values     the hash of the value that the row has
    """

    files: Sequence[DataFile]
    file: npt.NDArray[np.int64]
    positions: Positions
    key: npt.NDArray[np.int64]
    values: Hashes


def find(storage: Storage, table: DeltaTable, changed: Changed, told: Callable[[], None]) -> Found:
    """Find the rows of the table that have these keys. Reads 24 bytes of each row of the table; at most those of one row
    group are in memory."""
    held = [table.files[path] for path in sorted(table.files)]
    pieces: list[tuple[npt.NDArray[np.int64], ...]] = []
    values: list[Hashes] = []
    for number, file in enumerate(held if len(changed) else []):
        left = deleted_positions(storage, file)
        for some in files.identities(storage, file):
            places = places_of(changed.keys, some.keys)
            rows = np.flatnonzero(places >= 0)
            positions = rows + some.first
            live = ~np.isin(positions, left)
            rows, positions = rows[live], positions[live]
            pieces.append((np.full(len(rows), number, np.int64), positions, places[rows]))
            values.append(some.values[rows])
        told()
    file_of, positions, keys = (np.concatenate([np.zeros(0, np.int64), *column]) for column in _columns_of(pieces))
    return Found(
        files=held,
        file=file_of,
        positions=positions,
        key=keys,
        values=np.concatenate([np.zeros(0, np.uint64), *values]),
    )


def _columns_of(pieces: Sequence[tuple[npt.NDArray[np.int64], ...]]) -> Iterator[list[npt.NDArray[np.int64]]]:
    for place in range(3):
        yield [piece[place] for piece in pieces]


# -- from changelogs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StateReader:
    """Reads the rows of one table from the stores of a root."""

    contents: Contents
    layout: Layout
    columns: Columns
    scratch: Path
    clock: Clock
    ids: Ids

    @property
    def _family(self) -> str | None:
        return self.columns.chosen.family

    def spool_changes(self, spool: Spool, store: StorePath, base: VersionId, versions: Sequence[VersionId]) -> int:
        """Spool the last write of each key in these changelogs; return their number of records.

        `base`: the version before them. Raises `RangeDeleted`, `ObjectMissing`, `CorruptFile`, `LocalDiskFull`.
        """
        storage, records = self.contents.storage, 0
        family = None if self._family is None else self._id_of_family(store)
        if self._family is not None and family is None:
            # The newest snapshot does not name the family. Only a comparison with the rows of the store is certain.
            raise RangeDeleted
        with work_folder(self.scratch, "publish") as folder:
            cache = LocalCopyFolder(folder / "store", _LIMITS, self.ids)
            changelogs = Changelogs(
                store, storage, cache, self.contents.conf, most_record_bytes=_LIMITS.record_bytes(storage.limits)
            )
            changelogs.fetch(base, versions)
            last: dict[bytes, tuple[bytes | None, int]] = {}
            appended: set[bytes] = set()
            size_bytes = 0
            for version in versions:
                # The end of a changelog shows whether it is whole.
                changelogs.check(version)
                for piece in changelogs.pieces(version):
                    kinds = [None] * len(piece) if piece.kinds is None else piece.kinds.tolist()
                    for (key, value), kind in zip(piece.pairs(), kinds, strict=True):
                        if kind == Kind.DELETE_RANGE and (family is None or _crosses(key, value, family)):
                            raise RangeDeleted
                        if family is not None and key[:FAMILY_BYTES] != family:
                            continue
                        if kind == Kind.MERGE:
                            appended.add(key)
                        else:
                            appended.discard(key)
                        records += 1
                        size_bytes += len(key) + len(value or b"") + _RECORD_BYTES
                        last[key] = (value, version.version - 1)
                    if size_bytes >= _WRITES_BYTES and not appended:
                        self._spool_writes(spool, store, last)
                        last, size_bytes = {}, 0
            if appended:
                with self._opened(store) as rows:
                    keys = sorted(appended)
                    for key, value in zip(keys, rows.values_of(keys), strict=True):
                        last[key] = (value, last[key][1])
            self._spool_writes(spool, store, last)
        return records

    def _spool_writes(self, spool: Spool, store: StorePath, last: Mapping[bytes, tuple[bytes | None, int]]) -> None:
        spool.next_write()
        puts = [(key, value, batch) for key, (value, batch) in last.items() if value is not None]
        gone = [(key, batch) for key, (value, batch) in last.items() if value is None]
        for begin in range(0, len(puts), _DECODED_AT_ONCE):
            some = puts[begin : begin + _DECODED_AT_ONCE]
            pairs = Pairs(self._family, [key for key, _, _ in some], [value for _, value, _ in some])
            decoded = decoded_pairs(self.contents, store, self.layout, pairs)
            batches = np.repeat(np.array([batch for _, _, batch in some], np.int64), decoded.counts)
            first = 0
            if decoded.are_lists:
                keys = decoded_keys(self.contents, store, self.layout, self._family, pairs.keys)
                of_keys = self.columns.deleted(store.partition, keys)
                spool.add(of_keys, np.array([batch for _, _, batch in some], np.int64))
            for shaped in self.columns.shaped(store.partition, decoded):
                spool.add(shaped, batches[first : first + shaped.rows.num_rows])
                first += shaped.rows.num_rows
        for begin in range(0, len(gone), _DECODED_AT_ONCE):
            of_gone = gone[begin : begin + _DECODED_AT_ONCE]
            keys = decoded_keys(self.contents, store, self.layout, self._family, [key for key, _ in of_gone])
            batches = np.array([batch for _, batch in of_gone], np.int64)
            spool.add(self.columns.deleted(store.partition, keys), batches)

    def _id_of_family(self, store: StorePath) -> bytes | None:
        """The bytes before the keys of the family, which only snapshots tell; None if no snapshot has the family."""
        storage, head = self.contents.storage, self.contents.stores[store]
        held = catalog.files(storage, store.folder, provider=store.provider).of(store).snapshots
        for version in sorted(held, key=lambda one: one.version, reverse=True):
            if version.version > head.version:
                continue
            path = store.snapshot(version)
            known = read_snapshot(storage.read(path), path).metadata.column_families
            if self._family in known:
                return known[self._family].to_bytes(FAMILY_BYTES, "little", signed=True)
            return None
        raise CorruptFile(
            "has no snapshot, which names the column families of its rows",
            path=str(store),
            hint="to find the damage, run: statekeeper audit ROOT",
        )

    # -- of whole stores -----------------------------------------------------------------------------------------------

    def _opened(self, store: StorePath) -> AbstractContextManager[OpenStore]:
        return opened(self.contents, store, self.layout, scratch=self.scratch, clock=self.clock, ids=self.ids)

    def rows(self, store: StorePath) -> Iterator[Shaped]:
        """Read all rows of a store, restored into the scratch folder. Raises as `contents.rows.opened`."""
        with self._opened(store) as rows:
            for pairs in rows.pairs(self._family):
                yield from self.columns.shaped(store.partition, rows.decoded(pairs))

    def spool_differences(
        self,
        spool: Spool,
        storage: Storage,
        table: DeltaTable,
        stores: Sequence[StorePath],
        memory_bytes: int,
        told: Callable[[StorePath, int], None],
    ) -> None:
        """Spool all rows that the table does not have as the state has them, and deletions of those that the state lacks.

        The keys of the table are compared in ranges of their hashes, so that those of one range fit into the memory. Each
        range reads the state once.
        """
        parts = max(1, -(-table.live_rows * _BYTES_OF_ROW // max(1, memory_bytes)))
        edges = [(part << 64) // parts for part in range(parts)] + [1 << 64]
        for begin, end in itertools.pairwise(edges):
            index = _Index.of(storage, table, begin, end)
            # A row of the state replaces the deletion of its former row, which is found last.
            of_deletions = spool.next_write()
            for store in stores:
                count = 0
                spool.next_write()
                for shaped in self.rows(store):
                    part = shaped.take(_inside(shaped.keys, begin, end)) if parts > 1 else shaped
                    differing = part.take(index.differ(part))
                    spool.add(differing, np.full(differing.rows.num_rows, self.contents.batch, np.int64))
                    count += part.rows.num_rows
                told(store, count)
            for shaped in index.left(storage, self.columns):
                batches = np.full(shaped.rows.num_rows, self.contents.batch, np.int64)
                spool.add(shaped, batches, write=of_deletions)


def _crosses(begin: bytes, end: bytes | None, family: bytes) -> bool:
    return begin[:FAMILY_BYTES] <= family + b"\xff" and (end is None or end[:FAMILY_BYTES] >= family)


def _inside(keys: Hashes, begin: int, end: int) -> npt.NDArray[np.bool_]:
    high = keys[:, 0]
    found: npt.NDArray[np.bool_] = high >= np.uint64(begin)
    return found if end == 1 << 64 else found & (high < np.uint64(end))


class _Index:
    """The rows of a table whose keys are in a range of hashes: their hashes, and their places."""

    def __init__(
        self, held: Sequence[DataFile], columns: Sequence[npt.NDArray[np.int64]], keys: Hashes, values: Hashes
    ):
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        self._files = held
        self._keys, self._values = keys[order], values[order]
        self._file, self._positions = (column[order] for column in columns)
        self._seen = np.zeros(len(order), bool)

    @classmethod
    def of(cls, storage: Storage, table: DeltaTable, begin: int, end: int) -> _Index:
        """Read the hashes of the table."""
        held = [table.files[path] for path in sorted(table.files)]
        places: list[tuple[npt.NDArray[np.int64], ...]] = []
        keys, values = [np.zeros((0, 2), np.uint64)], [np.zeros(0, np.uint64)]
        for number, file in enumerate(held):
            left = deleted_positions(storage, file)
            for some in files.identities(storage, file):
                rows = np.flatnonzero(_inside(some.keys, begin, end))
                rows = rows[~np.isin(rows + some.first, left)]
                places.append((np.full(len(rows), number, np.int64), rows + some.first))
                keys.append(some.keys[rows])
                values.append(some.values[rows])
        columns = [np.concatenate([np.zeros(0, np.int64), *(one[place] for one in places)]) for place in range(2)]
        return cls(held, columns, np.concatenate(keys), np.concatenate(values))

    def differ(self, shaped: Shaped) -> npt.NDArray[np.bool_]:
        """Return which rows the table does not have with the same value. The others are not left."""
        at = places_of(self._keys, shaped.keys)
        same = (at >= 0) & ~shaped.deleted
        same[same] = self._values[at[same]] == shaped.values[same]
        for place in np.unique(at[same]).tolist() if self._has_lists() else ():
            self._seen[self._of_key(place)] = True
        self._seen[at[same]] = True
        # Elements of a list that do not meet the conditions are no deletions of their key.
        needless = shaped.deleted & ((at < 0) | np.isin(at, at[same]))
        return ~same & ~needless

    def _has_lists(self) -> bool:
        keys = self._keys
        return len(keys) > 1 and bool((keys[1:] == keys[:-1]).all(axis=1).any())

    def _of_key(self, place: int) -> slice:
        first = last = place
        while first > 0 and (self._keys[first - 1] == self._keys[place]).all():
            first -= 1
        while last + 1 < len(self._keys) and (self._keys[last + 1] == self._keys[place]).all():
            last += 1
        return slice(first, last + 1)

    def left(self, storage: Storage, columns: Columns) -> Iterator[Shaped]:
        """Yield the keys whose rows are not those of the state, as deletions."""
        left = ~self._seen
        for number in np.unique(self._file[left]).tolist():
            of_file = np.flatnonzero(left & (self._file == number))
            order = np.argsort(self._positions[of_file])
            of_file, done = of_file[order], 0
            for rows in files.rows_at(storage, self._files[number], self._positions[of_file], columns.state_schema):
                some = of_file[done : done + rows.num_rows]
                done += rows.num_rows
                yield Shaped(
                    rows=columns.without_values(rows),
                    keys=self._keys[some],
                    values=np.zeros(len(some), np.uint64),
                    deleted=np.ones(len(some), bool),
                )
