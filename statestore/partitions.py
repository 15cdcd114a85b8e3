"""How many partitions operators had at a batch, read from what says it."""

from __future__ import annotations

from collections.abc import Collection

from statestore.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statestore.format import logs, names
from statestore.format.operators import AGGREGATION, OperatorMetadata, has_one_partition, parse_schema, partitions_at
from statestore.format.state_conf import shuffle_partitions
from statestore.storage import Storage

_UNREADABLE = (CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion)


class Partitions:
    """Of the operators of one checkpoint, at these of its batches. What was read once is not read again.

    In structure V2 nothing is read where the commit and the metadata agree. In V1, which names no stores: the offset logs
    of the oldest and of the newest batch, those of all others where these two differ, and the schema of aggregations.
    """

    def __init__(self, storage: Storage, batches: Collection[int]) -> None:
        self._storage = storage
        self._oldest, self._newest = min(batches, default=0), max(batches, default=0)
        self._pinned: dict[int, int | None] = {}
        self._lone: dict[int, bool] = {}

    def at(self, batch: int, operator: OperatorMetadata, named: int | None) -> int:
        """The number at a batch, whose commit names so many; None in structure V1. Raises `CorruptFile` when that cannot
        be, `StorageError`."""
        described = max(store.partitions for store in operator.stores)
        if not operator.name or named == described:
            return described  # what no metadata describes was counted by its files
        pinned = self._pinned_at(batch, is_every=named is None)
        found = partitions_at(described, pinned, named, is_lone=self._is_lone(operator))
        if found is None:
            raise CorruptFile(
                f"names {named} partitions of operator {operator.operator}, its metadata describes {described}",
                path=names.commits(batch),
                hint=f"restore it, or {names.STATE}/{operator.operator}/_metadata",
            )
        return found

    def _pinned_at(self, batch: int, *, is_every: bool) -> int | None:
        if is_every:
            oldest, newest = self._read(self._oldest), self._read(self._newest)
            if oldest == newest:
                return newest
        return self._read(batch)

    def _read(self, batch: int) -> int | None:
        if batch not in self._pinned:
            path = names.offsets(batch)
            try:
                self._pinned[batch] = shuffle_partitions(logs.parse_offsets(self._storage.read(path), path), path)
            except _UNREADABLE:
                # The audit tells of it. What else is said of the operators holds.
                self._pinned[batch] = None
        return self._pinned[batch]

    def _is_lone(self, operator: OperatorMetadata) -> bool:
        number = operator.operator
        if number not in self._lone:
            key_json = self._key_schema(number) if operator.name == AGGREGATION else None
            self._lone[number] = has_one_partition(operator.name, key_json)
        return self._lone[number]

    def _key_schema(self, operator: int) -> str | None:
        path = names.state_schema(operator)
        try:
            return parse_schema(self._storage.read(path), path)[0]
        except _UNREADABLE:
            return None
