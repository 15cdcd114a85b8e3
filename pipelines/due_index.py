"""An index of keys by time, for timers and expiries. Its cost depends on the keys that are due, not on the state.

The time of a key is in another store. The index has an entry at that time, *or at an earlier one*. So a time that moves on
with each batch, as a timeout does, writes no entry: when the old entry is due, the key gets an entry at its present time.
An entry of a key without a time is a leftover, which is deleted when it is due. See docs/decisions/047.

Times are in us since the epoch, shape (keys,); `NEVER` for a key without a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.group_stores import GroupStores, PlacedKeys
from statekeeper.pipelines.times import TIMESTAMP
from statekeeper.statestore.format.due_keys import END_MS, FIRST_MS, VALUES, due_range, encode_due_keys, keys_of
from statekeeper.statestore.format.state_rows import encode_values

Times = npt.NDArray[np.int64]

NEVER = np.iinfo(np.int64).max
FIRST_US, END_US = FIRST_MS * 1000, (END_MS - 1) * 1000
"""The times that an index can hold: the years 1 to 9999."""


def times_of(column: pa.Array | pa.ChunkedArray) -> Times:
    """Return the times of timestamps; null becomes `NEVER`."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    numbers: Times = column.cast(pa.int64()).fill_null(NEVER).to_numpy(zero_copy_only=False)
    return numbers


def timestamps(times: Times) -> pa.Array:
    """Return the times as timestamps; `NEVER` becomes null."""
    return pa.array(times, pa.int64(), mask=times == NEVER).cast(TIMESTAMP)


@dataclass(frozen=True)
class Due:
    """Entries of one partition that are due, and their keys, sorted."""

    entries: PlacedKeys
    keys: PlacedKeys


class DueIndex:
    """The index with this name, of the partitions of a group.

    key_groups_of  partition -> its key groups
    batch          the number of the batch, which is in each new entry
    """

    def __init__(self, stores: GroupStores, name: str, key_groups_of: Callable[[int], range], batch: int) -> None:
        self._stores = stores
        self._name = name
        self._key_groups_of = key_groups_of
        self._value = encode_values(pa.table([pa.array([batch], pa.int64())], schema=VALUES))[0]

    def schedule(self, keys: PlacedKeys, times: Times, held: Times) -> None:
        """Note new times of keys, which replace the `held` ones."""
        sooner = np.flatnonzero(times < held)
        if len(sooner):
            self._stores.put(
                self._name, _entries(keys.take(sooner), times[sooner]), pa.repeat(self._value, len(sooner))
            )

    def forget(self, keys: PlacedKeys, held: Times) -> None:
        """Delete the entries of keys that lose their times. An entry at an earlier time stays until it is due."""
        known = np.flatnonzero(held != NEVER)
        if len(known):
            self._stores.delete(self._name, _entries(keys.take(known), held[known]))

    def due(self, partition: int, now_us: int, at_once: int, most: int | None = None) -> Iterator[Due]:
        """Iterate over the entries up to `now_us` in portions, at most over `most`. Settle each portion before the next."""
        ranges = [due_range(group, now_us // 1000) for group in self._key_groups_of(partition)]
        found = itertools.islice(self._stores.scan(self._name, partition, ranges), most)
        while portion := [key for key, _ in itertools.islice(found, at_once)]:
            entries = pa.array(portion, pa.large_binary())
            keys = pc.unique(keys_of(entries))
            # Stores read sorted keys fastest, and each attempt gets the keys in one order.
            keys = keys.take(pc.array_sort_indices(keys))
            yield Due(PlacedKeys.of_partition(entries, partition), PlacedKeys.of_partition(keys, partition))

    def settle(self, due: Due, held: Times, now_us: int) -> None:
        """Delete the entries of a portion. The keys whose time is after `now_us` get an entry at that time."""
        self._stores.delete(self._name, due.entries)
        self.schedule(due.keys, np.where(held > now_us, held, NEVER), np.full(len(held), NEVER))


def _entries(keys: PlacedKeys, times: Times) -> PlacedKeys:
    # Rounded up: a key must not be due before its time.
    return PlacedKeys(encode_due_keys(keys.keys, -(-times // 1000)), keys.partitions)
