"""Facts in the offset log: the number of partitions of each operator at a batch, and the state store provider."""

from __future__ import annotations

from collections.abc import Collection

from statekeeper.statestore.base.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.operators import (
    AGGREGATION,
    OperatorMetadata,
    has_one_partition,
    parse_schema,
    partitions_at,
)
from statekeeper.statestore.format.provider import Provider, provider_of
from statekeeper.statestore.format.state_conf import shuffle_partitions
from statekeeper.statestore.storage import Storage

_UNREADABLE = (CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion)


class Partitions:
    """The partition counts of the operators of one checkpoint, at the given batches. Each file is read once.

    In structure V2 no file is read if the commit and the metadata agree. In structure V1 commits name no stores: the offset
    logs of the oldest and the newest batch are read, those of all batches if these two differ, and the schema of
    aggregations.
    """

    def __init__(self, storage: Storage, batches: Collection[int]) -> None:
        self._storage = storage
        self._oldest, self._newest = min(batches, default=0), max(batches, default=0)
        self._logs: dict[int, logs.OffsetLog | None] = {}
        self._lone: dict[int, bool] = {}

    def at(self, batch: int, operator: OperatorMetadata, named: int | None) -> int:
        """The number of partitions at a batch. `named`: the number in its commit, None in structure V1.

        Raises `CorruptFile` if commit and metadata contradict each other, `StorageError`.
        """
        described = max(store.partitions for store in operator.stores)
        if not operator.name or named == described:
            return described  # without metadata, the number comes from the files
        pinned = self._pinned_at(batch, is_every=named is None)
        found = partitions_at(described, pinned, named, is_lone=self._is_lone(operator))
        if found is None and self._is_purged(batch):
            found = named  # only the commit has the number of this batch
        if found is None:
            raise CorruptFile(
                f"names {named} partitions of operator {operator.operator}, but the metadata of the operator "
                f"describes {described}; the state of batch {batch} is unknown",
                path=names.commits(batch),
                hint=f"restore the file or {names.STATE}/{operator.operator}/_metadata from a backup",
            )
        return found

    def provider(self, batch: int) -> Provider:
        """The state store provider of a batch in structure V1. Only a conversion changes it: the offset logs of other
        batches are read only if those of the oldest and the newest batch differ."""
        oldest, newest = self._provider(self._oldest), self._provider(self._newest)
        found = newest if oldest in (newest, None) else self._provider(batch) or newest
        # The verbs reject a provider of another library by its conf.
        return found or Provider.ROCKSDB

    def _provider(self, batch: int) -> Provider | None:
        log = self._log(batch)
        return None if log is None else provider_of(log.conf)

    def _pinned_at(self, batch: int, *, is_every: bool) -> int | None:
        if is_every:
            oldest, newest = self._read(self._oldest), self._read(self._newest)
            if oldest == newest:
                return newest
        return self._read(batch)

    def _is_purged(self, batch: int) -> bool:
        """Whether the offsets of a batch were purged: those of the oldest batch are missing, too, and the newest batch has
        them. A gap between offsets is a loss. At most two requests."""
        if self._log(self._newest) is None:
            return False
        return all(self._storage.stat(names.offsets(one)) is None for one in {self._oldest, batch})

    def _read(self, batch: int) -> int | None:
        log = self._log(batch)
        try:
            return None if log is None else shuffle_partitions(log, names.offsets(batch))
        except CorruptFile:
            return None  # the audit reports the file

    def _log(self, batch: int) -> logs.OffsetLog | None:
        if batch not in self._logs:
            path = names.offsets(batch)
            try:
                self._logs[batch] = logs.parse_offsets(self._storage.read(path), path)
            except _UNREADABLE:
                # The audit reports the file. The other facts about the operators are still valid.
                self._logs[batch] = None
        return self._logs[batch]

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
