"""The sizes of stores by the metadata of their snapshots, without a restore: keys, bytes, skew and growth. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.snapshot import SnapshotMetadata
from statekeeper.statestore.storage import Entry

_DAY_SECONDS = 86_400
_SHORTEST_GROWTH_SECONDS = 60


@dataclass(frozen=True)
class PartitionSize:
    """The rows of one partition."""

    partition: int
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class Growth:
    """The growth of an operator per day, between two snapshots of each store that are `days` apart on average."""

    operator: int
    keys_per_day: float
    bytes_per_day: float
    days: float


Ends = tuple[tuple[Entry, SnapshotMetadata], tuple[Entry, SnapshotMetadata]]
"""The oldest and the newest snapshot of a store."""


def growths(ends: Mapping[StorePath, Ends]) -> Iterator[Growth]:
    """Yield the growth of each operator whose stores have two snapshots."""
    for operator in sorted({store.operator for store in ends}):
        keys = size_bytes = days = 0.0
        count = 0
        for store, ((old_entry, old), (new_entry, new)) in ends.items():
            seconds = (new_entry.modified_at_seconds or 0) - (old_entry.modified_at_seconds or 0)
            if store.operator != operator or seconds < _SHORTEST_GROWTH_SECONDS:
                continue
            if min(old.key_count, new.key_count) < 0:
                continue
            of_day = _DAY_SECONDS / seconds
            keys += (new.key_count - old.key_count) * of_day
            size_bytes += (_table_bytes(new) - _table_bytes(old)) * of_day
            days += seconds / _DAY_SECONDS
            count += 1
        if count:
            yield Growth(operator, keys, size_bytes, days / count)


@dataclass(frozen=True, kw_only=True)
class SnapshotSizes:
    """The sizes of one store of an operator, as the newest snapshots of its partitions state them.

    partitions  by number, those whose newest snapshot states its keys. Bytes are those of the tables, compressed
    of          the number of all partitions
    growth      of the operator; None unless a store has two snapshots
    """

    operator: int
    store: str
    partitions: tuple[PartitionSize, ...]
    of: int
    growth: Growth | None = None

    @property
    def keys(self) -> int:
        """The number of keys."""
        return sum(one.rows for one in self.partitions)

    @property
    def size_bytes(self) -> int:
        """The bytes of the tables."""
        return sum(one.size_bytes for one in self.partitions)

    @property
    def skew(self) -> float | None:
        """The keys of the largest partition, as a multiple of the average; None without keys."""
        if not self.keys:
            return None
        return max(one.rows for one in self.partitions) * len(self.partitions) / self.keys


def sizes_of_snapshots(chains: Iterable[Chain]) -> tuple[SnapshotSizes, ...]:
    """The sizes that snapshots state whose metadata is read already, such as those of an audit. Pure, without requests."""
    ends: dict[StorePath, Ends] = {}
    of_kind: dict[tuple[int, str], list[StorePath]] = {}
    for chain in chains:
        of_kind.setdefault((chain.store.operator, chain.store.store), []).append(chain.store)
        held = [
            (chain.files.snapshots[version], found.metadata)
            for version in chain.versions
            if (found := chain.snapshots.get(version)) is not None
            and found.is_whole
            and found.metadata is not None
            and found.metadata.key_count >= 0
            and version in chain.files.snapshots
        ]
        if held:
            ends[chain.store] = held[0], held[-1]
    by_operator = {
        one.operator: one for one in growths({store: both for store, both in ends.items() if both[0] != both[1]})
    }
    return tuple(
        SnapshotSizes(
            operator=operator,
            store=name,
            partitions=tuple(
                PartitionSize(store.partition, ends[store][1][1].key_count, _table_bytes(ends[store][1][1]))
                for store in sorted(stores)
                if store in ends
            ),
            of=len(stores),
            growth=by_operator.get(operator),
        )
        for (operator, name), stores in sorted(of_kind.items())
    )


def _table_bytes(metadata: SnapshotMetadata) -> int:
    return sum(table.size_bytes for table in metadata.tables)
