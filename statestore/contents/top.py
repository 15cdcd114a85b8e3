"""A look inside the state: its largest keys, the keys that change most, the skew of partitions, growth and oldest rows.

    kinds of rows     one per operator, store and column family
    largest keys      by the bytes of key and value, from all rows of the newest version
    changed keys      by the number of their writes in the newest batches, from the changelogs
    growth            between the oldest and the newest snapshot of each store, from their metadata
    oldest row        by the time after which Spark evicts a row: the end of a window or session, or an expiry

Memory does not depend on the size of the state: a store is restored on local disk, and its rows are streamed.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.contents.rows import Contents, Layout, Pairs, decoded_keys, opened
from statekeeper.statestore.contents.sizes import Ends, Growth, PartitionSize, growths
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.family_rows import FAMILY_BYTES, DecodedRows
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.plain_values import plain_rows
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.records import changes_of
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.storage import Storage, at_once, read_or_none

MOST_COUNTED = 1_000_000
"""Keys of one store whose writes are counted at a time. Beyond it, the keys that were written least are forgotten."""
_EXPIRES_US, _EXPIRES_MS = "expiresAtMicros", "ttlExpirationMs"
Kind = tuple[int, str, str | None]
"""An operator, the name of its store, and a column family."""


@dataclass(frozen=True, kw_only=True)
class KeyBytes:
    """A key with the bytes of its row, or with the number of its writes."""

    partition: int
    key: Mapping[str, Any]
    size_bytes: int = 0
    writes: int = 0


@dataclass(frozen=True, kw_only=True)
class OldestRow:
    """The row that is due first. `due_ms`: the time after which it is evicted; `by`: the column with this time."""

    due_ms: int
    by: str
    key: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Top:
    """The look at one kind of rows.

    largest, changed  in descending order
    is_exact    whether all changed keys were counted
    partitions  by number
    oldest      None if the rows have no time of their eviction
    overdue     rows that the newest batch should have evicted; None if unknown
    """

    operator: int
    operator_name: str
    store: str
    family: str | None
    largest: tuple[KeyBytes, ...] = ()
    changed: tuple[KeyBytes, ...] = ()
    is_exact: bool = True
    partitions: tuple[PartitionSize, ...] = ()
    oldest: OldestRow | None = None
    overdue: int | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(one.rows for one in self.partitions)

    @property
    def size_bytes(self) -> int:
        """The bytes of keys and values, uncompressed."""
        return sum(one.size_bytes for one in self.partitions)

    @property
    def skew(self) -> float | None:
        """The rows of the largest partition, as a multiple of the average; None without rows."""
        if not self.rows:
            return None
        return max(one.rows for one in self.partitions) * len(self.partitions) / self.rows


@dataclass(frozen=True, kw_only=True)
class TopOfState:
    """The look at all kinds of rows. `counted`: the first and the last batch whose writes were counted; None if no
    changelog of a later batch exists. `skipped`: changelogs that could not be read."""

    batch: int
    watermark_ms: int
    committed_ms: int | None
    counted: tuple[int, int] | None
    kinds: tuple[Top, ...]
    growth: tuple[Growth, ...]
    skipped: int = 0


def look(
    contents: Contents,
    layouts: Mapping[StorePath, Layout],
    *,
    batches: int,
    limit: int,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    told: Callable[[StorePath], None] = lambda store: None,
) -> TopOfState:
    """Look at the rows of these stores. `batches`: the newest batches whose writes are counted; `limit`: keys of each list.

    Raises `VersionNotLoadable`, `CorruptFile`, `UnknownFormatVersion`, `LocalDiskFull`, `StorageError`.
    """
    storage = contents.storage
    offsets = read_or_none(storage, names.offsets(contents.batch))
    watermark = 0 if offsets is None else logs.parse_offsets(offsets, names.offsets(contents.batch)).watermark_ms
    entry = storage.stat(names.commits(contents.batch))
    committed_ms = None if entry is None or entry.modified_at_seconds is None else int(entry.modified_at_seconds * 1000)
    listed = catalog.files(storage, provider=contents.conf.provider)
    operators = _names_of_operators(contents)
    found: dict[Kind, _Look] = {}
    first = max(0, contents.batch - batches + 1)
    log = catalog.commit_log(storage, down_to=first, at=contents.batch) if batches and contents.batch >= 0 else None
    heads = {} if log is None else {batch: log.at(batch) or {} for batch in range(first, contents.batch + 1)}
    skipped = 0
    read = set[int]()
    for store, layout in layouts.items():
        looks = {family: _Look.of(store, family, operators, limit, found) for family in layout.families}
        with opened(contents, store, layout, scratch=scratch, clock=clock, ids=ids) as rows:
            for family, one in looks.items():
                one.begin(store.partition)
                for pairs in rows.pairs(family):
                    one.add(store.partition, pairs, rows.decoded, layout.families[family], watermark, committed_ms)
            families = rows.families
        counted = _writes(contents, store, listed.of(store), heads)
        skipped += counted.skipped
        read |= counted.batches
        for family, one in looks.items():
            one.count(store, counted, family, families, contents, layout)
        told(store)
    return TopOfState(
        batch=contents.batch,
        watermark_ms=watermark,
        committed_ms=committed_ms,
        counted=(min(read), max(read)) if read else None,
        kinds=tuple(found[kind].result() for kind in sorted(found, key=lambda kind: (kind[0], kind[1], kind[2] or ""))),
        growth=tuple(_growth(storage, contents, listed, layouts)),
        skipped=skipped,
    )


def _names_of_operators(contents: Contents) -> Mapping[int, str]:
    described = {
        operator: catalog.operator_at(contents.storage, operator, contents.batch)
        for operator in {store.operator for store in contents.stores}
    }
    return {operator: one.name if one else "" for operator, one in described.items()}


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Look:
    top: Top
    limit: int
    _largest: list[tuple[int, int, bytes, int, Mapping[str, Any]]] = field(default_factory=list)
    _changed: list[tuple[int, int, int, Mapping[str, Any]]] = field(default_factory=list)
    _sizes: dict[int, list[int]] = field(default_factory=dict)
    _order: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def of(
        cls, store: StorePath, family: str | None, operators: Mapping[int, str], limit: int, found: dict[Kind, _Look]
    ) -> _Look:
        kind = (store.operator, store.store, family)
        if kind not in found:
            name = operators.get(store.operator, "")
            top = Top(operator=kind[0], operator_name=name, store=kind[1], family=family)
            found[kind] = cls(top=top, limit=limit)
        return found[kind]

    def begin(self, partition: int) -> None:
        self._sizes.setdefault(partition, [0, 0])

    def add(
        self,
        partition: int,
        pairs: Pairs,
        decode: Callable[[Pairs], DecodedRows],
        family: Family,
        watermark_ms: int,
        committed_ms: int | None,
    ) -> None:
        """Look at a piece of rows."""
        sizes = np.fromiter(
            (len(key) + len(value) for key, value in zip(pairs.keys, pairs.values, strict=True)), np.int64
        )
        of_partition = self._sizes[partition]
        of_partition[0] += len(sizes)
        of_partition[1] += int(sizes.sum())
        least = self._largest[0][0] if len(self._largest) >= self.limit else -1
        large = np.flatnonzero(sizes > least)
        if len(large) > self.limit:
            large = large[np.argsort(sizes[large])[-self.limit :]]
        rule = _rule(family)
        if len(large) or rule is not None:
            decoded = decode(pairs)
            if len(large):
                self._keep(partition, pairs, plain_rows(decoded.keys.take(pa.array(large))), large, sizes)
            if rule is not None and not decoded.are_lists:
                self._age(rule, decoded, watermark_ms, committed_ms)

    def _keep(
        self,
        partition: int,
        pairs: Pairs,
        keys: Sequence[Mapping[str, Any]],
        large: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> None:
        for place, key in zip(large.tolist(), keys, strict=True):
            item = (int(sizes[place]), -next(self._order), pairs.keys[place], partition, key)
            if len(self._largest) < self.limit:
                heapq.heappush(self._largest, item)
            elif self.limit:
                heapq.heappushpop(self._largest, item)

    def _age(self, rule: _Rule, decoded: DecodedRows, watermark_ms: int, committed_ms: int | None) -> None:
        due = rule.due_ms(decoded)
        known = due[due >= 0]
        if not len(known):
            return
        now = committed_ms if rule.is_of_clock else watermark_ms
        if now:
            late = int((known <= now).sum())
            self.top = replace(self.top, overdue=(self.top.overdue or 0) + late)
        place = int(np.argmin(np.where(due >= 0, due, np.iinfo(np.int64).max)))
        if self.top.oldest is None or due[place] < self.top.oldest.due_ms:
            [key] = plain_rows(decoded.keys.slice(place, 1))
            self.top = replace(self.top, oldest=OldestRow(due_ms=int(due[place]), by=rule.column, key=key))

    def count(
        self,
        store: StorePath,
        counted: _Writes,
        family: str | None,
        families: Mapping[str, int],
        contents: Contents,
        layout: Layout,
    ) -> None:
        """Take over the keys of a store that were written most."""
        writes = counted.writes
        if family is not None:
            number = families.get(family)
            if number is None:
                return
            prefix = number.to_bytes(FAMILY_BYTES, "little", signed=True)
            writes = Counter({key: count for key, count in writes.items() if key[:FAMILY_BYTES] == prefix})
        self.top = replace(self.top, is_exact=self.top.is_exact and counted.is_exact)
        most = heapq.nlargest(self.limit, writes.items(), key=lambda item: (item[1], item[0]))
        if not most:
            return
        keys = plain_rows(decoded_keys(contents, store, layout, family, [key for key, _ in most]))
        self._changed += [
            (count, -next(self._order), store.partition, key) for (_, count), key in zip(most, keys, strict=True)
        ]
        self._changed = sorted(self._changed, key=lambda item: item[:2], reverse=True)[: self.limit]

    def result(self) -> Top:
        """Return the look."""
        largest = sorted(self._largest, key=lambda item: item[:2], reverse=True)
        return replace(
            self.top,
            largest=tuple(KeyBytes(partition=one[3], key=one[4], size_bytes=one[0]) for one in largest),
            changed=tuple(KeyBytes(partition=one[2], key=one[3], writes=one[0]) for one in self._changed),
            partitions=tuple(PartitionSize(number, *self._sizes[number]) for number in sorted(self._sizes)),
        )


# -- the time of eviction ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rule:
    """The column with the time after which a row is evicted: by the watermark, or by the clock."""

    column: str
    in_key: bool
    unit_us: int
    is_of_clock: bool = False

    def due_ms(self, decoded: DecodedRows) -> npt.NDArray[np.int64]:
        """Return the time of each row in milliseconds; -1 if it has none."""
        of = decoded.keys if self.in_key else decoded.values
        name, _, child = self.column.partition(".")
        column = of.column(of.schema.get_field_index(name)).combine_chunks()
        if child:
            column = pc.struct_field(column, child)
        micros = pc.fill_null(column.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        due: npt.NDArray[np.int64] = np.where(micros < 0, -1, micros // 1000 if self.unit_us == 1 else micros)
        return due


def _rule(family: Family) -> _Rule | None:
    """Find the time of eviction in the columns: the end of a window or session, an expiry, a time to live."""
    for in_key, schema in ((True, family.key), (False, family.value)):
        for one in schema:
            if pa.types.is_struct(one.type) and [child.name for child in one.type] == ["start", "end"]:
                if pa.types.is_timestamp(one.type.field("end").type):
                    return _Rule(f"{one.name}.end", in_key, 1)
            elif one.name == _EXPIRES_US and one.type == pa.int64():
                return _Rule(one.name, in_key, 1)
            elif one.name == _EXPIRES_MS and one.type == pa.int64():
                return _Rule(one.name, in_key, 1000, is_of_clock=True)
    return None


# -- writes ------------------------------------------------------------------------------------------------------------


@dataclass
class _Writes:
    """The number of writes of each key. `batches`: whose changelogs were read; `skipped`: the number of the others."""

    writes: Counter[bytes] = field(default_factory=Counter)
    is_exact: bool = True
    batches: set[int] = field(default_factory=set)
    skipped: int = 0


def _writes(
    contents: Contents, store: StorePath, files: StoreFiles, heads: Mapping[int, Mapping[StorePath, VersionId]]
) -> _Writes:
    found = _Writes()
    committed = {batch: of_batch[store] for batch, of_batch in heads.items() if store in of_batch}
    storage = contents.storage
    for batch, version in committed.items():
        if version not in files.changelogs:
            found.skipped += 1
            continue
        path = store.changelog(version)
        try:
            _, pieces = changes_of(storage.read(path), path, contents.conf)
            for piece in pieces:
                found.writes.update(key for key, _ in piece.pairs())
                if len(found.writes) > MOST_COUNTED:
                    found.is_exact = False
                    found.writes = Counter(dict(found.writes.most_common(MOST_COUNTED // 2)))
        except (ObjectMissing, CorruptFile, UnknownFormatVersion):
            found.skipped += 1
            continue
        found.batches.add(batch)
    return found


# -- growth ------------------------------------------------------------------------------------------------------------


def _growth(
    storage: Storage, contents: Contents, listed: Mapping[StorePath, StoreFiles], stores: Mapping[StorePath, Layout]
) -> Iterator[Growth]:
    """Yield the growth of each operator whose stores have two snapshots with metadata."""
    if contents.conf.provider is Provider.HDFS_BACKED:
        return
    ends: dict[StorePath, Ends] = {}

    def read(store: StorePath) -> None:
        head = contents.stores[store].version
        held = sorted(
            (version for version in (listed.get(store) or StoreFiles()).snapshots if version.version <= head),
            key=lambda version: version.version,
        )
        if len(held) < 2:
            return
        both = []
        for version in (held[0], held[-1]):
            path = store.snapshot(version)
            try:
                both.append(((listed[store].snapshots[version]), read_snapshot(storage.read(path), path).metadata))
            except (ObjectMissing, CorruptFile, UnknownFormatVersion):
                return
        ends[store] = (both[0], both[1])

    at_once(read, list(stores))
    yield from growths(ends)
