"""The open stores of adjacent partitions: reads and writes of keys that are sorted by partition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekeeper.statestore.store.engine.rocks import KeyRange
from statekeeper.statestore.store.state_store import StateStore

Stores = Mapping[str, StateStore]
"""Name of a store -> the store, of one partition."""

Numbers = npt.NDArray[np.int64]


def partition_runs(partitions: Numbers) -> list[tuple[int, slice]]:
    """Cut ascending partitions, shape (rows,), into runs of equal ones: each partition, and the place of its rows."""
    cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    return [(int(partitions[start]), slice(start, end)) for start, end in itertools.pairwise(cuts) if end > start]


@dataclass(frozen=True)
class PlacedKeys:
    """Keys of the state, and their partitions in ascending order; shape (keys,) each."""

    keys: pa.LargeBinaryArray
    partitions: Numbers

    @classmethod
    def of_partition(cls, keys: pa.LargeBinaryArray, partition: int) -> PlacedKeys:
        """Place all keys in one partition."""
        return cls(keys, np.full(len(keys), partition, np.int64))

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, places: Numbers) -> PlacedKeys:
        """Return the keys at these places, whose partitions ascend."""
        if len(places) == len(self) and (places[:-1] < places[1:]).all():
            return self
        return PlacedKeys(self.keys.take(places), self.partitions[places])

    @cached_property
    def runs(self) -> list[tuple[int, slice]]:
        """The partitions, each with the place of its keys."""
        return partition_runs(self.partitions)


class GroupStores:
    """The stores of a group. `stores`: partition -> its stores; all partitions of the group, in order."""

    def __init__(self, stores: Mapping[int, Stores]) -> None:
        self._stores = stores

    def get(self, name: str, placed: PlacedKeys) -> pa.LargeBinaryArray:
        """Read the values of keys; null if there is none."""
        found = [self._stores[partition][name].get(placed.keys[part]) for partition, part in placed.runs]
        return pa.concat_arrays(found) if found else pa.array([], pa.large_binary())

    def put(self, name: str, placed: PlacedKeys, values: pa.LargeBinaryArray) -> None:
        """Write a value for each key; null deletes the key."""
        for partition, part in placed.runs:
            self._stores[partition][name].put(placed.keys[part], values[part])

    def delete(self, name: str, placed: PlacedKeys) -> None:
        """Delete keys."""
        self.put(name, placed, pa.nulls(len(placed), pa.large_binary()))

    def scan(
        self, name: str, partition: int, ranges: Sequence[KeyRange], at_once: int
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Iterate over the pairs of one store, see `StateStore.scan_ranges`, in portions of `at_once` keys and values."""
        keys: list[bytes] = []
        values: list[bytes] = []
        for more_keys, more_values in self._stores[partition][name].scan_ranges(ranges):
            keys += more_keys
            values += more_values
            while len(keys) >= at_once:
                yield keys[:at_once], values[:at_once]
                del keys[:at_once], values[:at_once]
        if keys:
            yield keys, values

    def of_partition(self, partition: int) -> Stores:
        """Return the stores of a partition."""
        return self._stores[partition]

    def commit(self, partition: int) -> None:
        """Commit the stores of a partition."""
        for store in self._stores[partition].values():
            store.commit()
