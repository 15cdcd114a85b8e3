"""A state root of several operators whose keys have key groups, written without Spark like a job does, and its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import batch_log
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.state_rows import decode_keys, decode_values, encode_keys, encode_values, key_group
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.state_root import Pending, Ready, StateRoot
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.state_store import BatchLogPart, StateStore, StoreAddress
from tests.support.checkpoints import copy_files
from tests.support.roots import QUERY, opened, outer, store

KEYS = pa.schema([("key", pa.string())])
VALUES = pa.schema([("value", pa.int64())])
NAMES = ("counts", "sums")

Rows = dict[tuple[int, str], int]
"""(operator, key) -> value."""
Changes = Mapping[str, int | None]


@cache
def group_of(key: str, key_groups: int) -> int:
    """The key group that a job gives to a key: Spark's hash of its columns."""
    return int(partitions_of(row_hashes(pa.table({"key": [key]}, schema=KEYS)), key_groups)[0])


@dataclass
class KeyedRoot:
    """The (N+1)th call of `batch` creates batch N. `rows`: the model of the state."""

    storage: Storage
    folder: Path
    partitions: int = 8
    key_groups: int = 256
    in_batch_logs: bool = False
    structure: Structure = Structure.V2
    rows: Rows = field(default_factory=dict)
    batches: int = 0

    def wanted(self) -> Binding:
        """The declaration of the job; it never learns the number of partitions after a rescale."""
        schemas = tuple(store(VALUES, KEYS, name) for name in NAMES)
        return Binding(
            root_id="", query_id=QUERY, partitions=self.partitions, key_groups=self.key_groups, stores=schemas
        )

    def copied_to(self, storage: Storage, folder: Path) -> KeyedRoot:
        copy_files(self.storage, storage)
        return KeyedRoot(
            storage,
            folder,
            self.partitions,
            self.key_groups,
            self.in_batch_logs,
            self.structure,
            dict(self.rows),
            self.batches,
        )

    def grow(self, batches: int, keys: int = 40) -> None:
        """Commit batches: each adds keys, overwrites one, and deletes one of the batch before."""
        for _ in range(batches):
            number = self.batches
            changes: dict[str, int | None] = {f"key {number} {n}": n for n in range(keys)}
            changes["counter"] = number
            if number:
                changes[f"key {number - 1} 0"] = None
            self.batch(changes, {key: value and value + 1 for key, value in changes.items()})

    def batch(self, *changes: Changes) -> StateRoot:
        """Commit one batch: the changes of each operator."""
        batch = self.batches
        root = opened(self.storage, self.wanted(), batch, self.structure)
        ready = root.begin(batch, outer(batch))
        assert isinstance(ready, Ready)
        attempt, partitions = RandomIds().fresh(), root.binding.partitions
        part = BatchLogPart(batch_log.tag_of(attempt), 1 << 20) if self.in_batch_logs else None
        snapshots = catalog.snapshots(self.storage)
        members, ids = {}, {}
        for operator, of_operator in enumerate(changes):
            new = []
            for partition in range(partitions):
                place = StorePath(operator, partition)
                mine = {
                    key: value for key, value in of_operator.items() if self._partition(key, partitions) == partition
                }
                address = StoreAddress(place, self.folder / "host" / f"{operator}-{partition}")
                with StateStore.load(
                    address,
                    ready.bases[operator][partition],
                    storage=self.storage,
                    clock=SystemClock(),
                    ids=RandomIds(),
                    snapshots=snapshots.get(place, ()),
                    structure=self.structure,
                    batch_log=part,
                ) as held:
                    held.put(self._keys(mine), _values(mine))
                    new.append(held.commit())
                    if held.member is not None:
                        members[place, new[-1]] = held.member
            ids[operator] = tuple(str(version.mark) for version in new)
            for key, value in of_operator.items():
                self.rows.pop((operator, key), None)
                if value is not None:
                    self.rows[operator, key] = value
        pending = Pending(
            batch=batch,
            attempt=attempt,
            root_id=root.binding.root_id,
            query_id=QUERY,
            sources=outer(batch).sources,
            schema=root.schema(),
            ids=ids,
            structure=self.structure,
        )
        root.write_pending(pending, members if self.in_batch_logs else None)
        root.commit(batch, ids)
        self.batches += 1
        return root

    def _partition(self, key: str, partitions: int) -> int:
        return group_of(key, self.key_groups) * partitions // self.key_groups

    def _keys(self, changes: Changes) -> pa.LargeBinaryArray:
        groups = np.array([group_of(key, self.key_groups) for key in changes], np.int32)
        return encode_keys(groups, pa.table({"key": pa.array(list(changes), pa.string())}, schema=KEYS))

    def read(self, batch: int | None = None) -> dict[StorePath, Rows]:
        """The rows of each store, loaded on a new host; asserts that each row is in the partition of its key group."""
        newest = catalog.newest_batch(self.storage)
        assert newest is not None
        heads = catalog.heads_at(self.storage, newest if batch is None else batch).heads
        counts = Counter(place.operator for place in heads)
        found = {}
        snapshots = catalog.snapshots(self.storage)
        host = self.folder / f"reader-{RandomIds().fresh()}"
        for place, head in heads.items():
            address = StoreAddress(place, host / f"{place.operator}-{place.partition}")
            with StateStore.load(
                address,
                head,
                storage=self.storage,
                clock=SystemClock(),
                ids=RandomIds(),
                snapshots=snapshots.get(place, ()),
                structure=self.structure,
            ) as held:
                rows = dict(held.scan())
            for key in rows:
                partition = key_group(key) * counts[place.operator] // self.key_groups
                assert partition == place.partition, (place, key)
            keys = decode_keys(pa.array(list(rows), pa.large_binary()), KEYS)["key"].to_pylist()
            found[place] = {(place.operator, key): value for key, value in zip(keys, _decoded(rows), strict=True)}
        return found

    def assert_right(self, partitions: int | None = None) -> None:
        """Assert that the head has the rows of the model, in this number of partitions."""
        found = self.read()
        assert {key: value for of_store in found.values() for key, value in of_store.items()} == self.rows
        assert sum(map(len, found.values())) == len(self.rows)
        if partitions is not None:
            assert Counter(place.operator for place in found) == {0: partitions, 1: partitions}


def _values(changes: Changes) -> pa.LargeBinaryArray:
    values = pa.array(list(changes.values()), pa.int64())
    encoded = encode_values(pa.table({"value": values.fill_null(0)}, schema=VALUES))
    return pa.array(
        [None if value is None else raw for value, raw in zip(values.to_pylist(), encoded.to_pylist(), strict=True)],
        pa.large_binary(),
    )


def _decoded(rows: Mapping[bytes, bytes]) -> list[int]:
    return list(decode_values(pa.array(list(rows.values()), pa.large_binary()), VALUES)["value"].to_pylist())
