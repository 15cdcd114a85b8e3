"""An index of keys by time, for timers and expiries. Its cost depends on the keys that are due, not on the state.

The time of a key is in another store. The index has an entry at that time, *or at an earlier one*. So a time that moves on
with each batch, as a timeout does, writes no entry: when the old entry is due, the key gets an entry at its present time.
An entry of a key without a time is a leftover, which is deleted when it is due. See docs/decisions/047.

Times are in us since the epoch, shape (keys,); `NEVER` for a key without a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operator.times import TIMESTAMP, TimeKind, Ttl
from statekeeper.pipelines.task.group_stores import GroupStores, PlacedKeys
from statekeeper.pipelines.task.stored import TIMER_VALUES
from statekeeper.statestore.base.errors import WrongInput, WrongResult
from statekeeper.statestore.format.due_keys import (
    END_MS,
    FIRST_MS,
    VALUES,
    decode_due_keys,
    due_range,
    encode_due_keys,
    keys_of,
)
from statekeeper.statestore.format.state_rows import decode_values, encode_values
from statekeeper.statestore.root.times import TIMERS, TIMERS_DUE, BatchTimes, expiries
from statekeeper.statestore.store.engine.rocks import KeyRange

Times = npt.NDArray[np.int64]

_LOOKS_AT_ALL_EVERY = 64
"""Number of batches."""
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

    def due(
        self, partition: int, now_us: int, at_once: int, *, after_ms: int | None = None, most: int | None = None
    ) -> Iterator[Due]:
        """Iterate over the entries after `after_ms` and up to `now_us` in portions, at most over `most`. Settle each
        portion before the next."""
        ranges = _due_ranges(self._key_groups_of(partition), now_us // 1000, after_ms)
        if not ranges:
            return
        left = most
        for found, _ in self._stores.scan(
            self._name, partition, ranges, at_once if most is None else min(at_once, most)
        ):
            entries = pa.array(found[:left], pa.large_binary())
            keys = pc.unique(keys_of(entries))
            # Stores read sorted keys fastest, and each attempt gets the keys in one order.
            keys = keys.take(pc.array_sort_indices(keys))
            yield Due(PlacedKeys.of_partition(entries, partition), PlacedKeys.of_partition(keys, partition))
            if left is not None:
                left -= len(entries)
                if not left:
                    return

    def settle(self, due: Due, held: Times, now_us: int) -> None:
        """Delete the entries of a portion. The keys whose time is after `now_us` get an entry at that time."""
        self._stores.delete(self._name, due.entries)
        self.schedule(due.keys, np.where(held > now_us, held, NEVER), np.full(len(held), NEVER))


def settled_ms(times: BatchTimes) -> int | None:
    """Return the watermark up to which the previous batch has settled all timers; None if this batch looks at all of them.

    A row whose timer is not after it is late. Without this bound, a search for the due timers of a key group would pass the
    deleted ones, of which RocksDB keeps markers. Some batches look at all: nothing depends on the bound.
    """
    looks_at_all = times.batch % _LOOKS_AT_ALL_EVERY == 0 or times.late_watermark_ms == 0
    return None if looks_at_all else times.late_watermark_ms


def _due_ranges(key_groups: range, now_ms: int, after_ms: int | None) -> list[KeyRange]:
    if after_ms is not None and now_ms <= after_ms:
        return []
    # A key has its key group in little-endian order, in which 256 is before 255.
    return sorted(due_range(group, now_ms, after_ms) for group in key_groups)


def _entries(keys: PlacedKeys, times: Times) -> PlacedKeys:
    # Rounded up: a key must not be due before its time.
    return PlacedKeys(encode_due_keys(keys.keys, -(-times // 1000)), keys.partitions)


class Timers:
    """The timers of the partitions of a group. `now_us`: timers up to it are due; None before the first watermark.
    `after_ms`: see `settled_ms`."""

    def __init__(
        self,
        stores: GroupStores,
        key_groups_of: Callable[[int], range],
        *,
        batch: int,
        now_us: int | None,
        after_ms: int | None,
    ) -> None:
        self.fired: Counter[int] = Counter()
        """The timers that were due, by partition."""
        self._stores = stores
        self._index = DueIndex(stores, TIMERS_DUE, key_groups_of, batch)
        self._now_us = now_us
        self._after_ms = after_ms

    def put(self, keys: PlacedKeys, times: Times) -> None:
        """Set the timers of keys; `NEVER` deletes a timer. A timer that stays, as of an open window, is not written."""
        held = self._held(keys)
        gone, changed = times == NEVER, times != held
        self._index.schedule(keys, times, held)
        self._index.forget(keys, np.where(gone, held, NEVER))
        values = encode_values(pa.table([timestamps(np.where(gone, 0, times))], schema=TIMER_VALUES))
        kept, lost = np.flatnonzero(changed & ~gone), np.flatnonzero(changed & gone)
        self._stores.put(TIMERS, keys.take(kept), values.take(kept))
        self._stores.delete(TIMERS, keys.take(lost))

    def take_due(self, partition: int, at_once: int) -> Iterator[tuple[PlacedKeys, Times]]:
        """Delete the timers that are due. Iterate over their keys and times in portions; process each before the next.

        A timer that is set meanwhile and is due, too, follows. So a timer that is set again each hour catches up.
        """
        is_done = self._now_us is None
        while not is_done:
            is_done = True
            for fired in self._portions(partition, at_once):
                is_done = False
                yield fired

    def _portions(self, partition: int, at_once: int) -> Iterator[tuple[PlacedKeys, Times]]:
        assert self._now_us is not None
        for due in self._index.due(partition, self._now_us, at_once, after_ms=self._after_ms):
            held = self._held(due.keys)
            self._index.settle(due, held, self._now_us)
            places = np.flatnonzero(held <= self._now_us)
            if len(places):
                fired = due.keys.take(places)
                self._stores.delete(TIMERS, fired)
                self.fired[partition] += len(fired)
                yield fired, held[places]

    def _held(self, keys: PlacedKeys) -> Times:
        values = self._stores.get(TIMERS, keys)
        times = np.full(len(keys), NEVER)
        present = values.is_valid()
        times[present.to_numpy(zero_copy_only=False)] = times_of(
            decode_values(values.filter(present), TIMER_VALUES).column(0)
        )
        return times


class TimedState:
    """A state whose timers are in a key column: one store, sorted by this time. `now_us`, `after_ms`: as for `Timers`."""

    def __init__(
        self,
        stores: GroupStores,
        name: str,
        values: pa.Schema,
        *,
        keys: pa.Schema,
        timer_key: str,
        key_groups_of: Callable[[int], range],
        now_us: int | None,
        after_ms: int | None,
    ) -> None:
        self.fired: Counter[int] = Counter()
        """The timers that were due, by partition."""
        self._stores = stores
        self._after_ms = after_ms
        self._name = name
        self._values = values
        self._keys = keys
        self._timer_key = timer_key
        self._key_groups_of = key_groups_of
        self._now_us = now_us

    def placed(self, keys: PlacedKeys, key_rows: pa.Table) -> PlacedKeys:
        """Return keys as they are in the store. Raises `WrongInput` for a time that is null or cannot be stored."""
        times = times_of(key_rows.column(self._timer_key))
        wrong = (times < FIRST_US) | (times >= END_US)
        if wrong.any():
            raise WrongInput(
                f"key column {self._timer_key!r} has the time of the timer of each key, but it is null or not in the years "
                f"1 to 9999 for key {key_rows.slice(int(wrong.argmax()), 1).to_pylist()[0]}; the batch was not committed",
                hint="drop these rows before the operator",
            )
        return _entries(keys, times)

    def take_due(self, partition: int, at_once: int) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Delete the state that is due. Iterate in portions over its key columns, and over its key and value columns.
        Process each portion before the next."""
        if self._now_us is None:
            return
        ranges = _due_ranges(self._key_groups_of(partition), self._now_us // 1000, self._after_ms)
        if not ranges:
            return
        for portion in self._stores.scan(self._name, partition, ranges, at_once):
            entries, values = (pa.array(column, pa.large_binary()) for column in portion)
            key_rows = decode_due_keys(entries, self._keys)
            state = decode_values(values, self._values)
            table = pa.table([*key_rows.columns, *state.columns], schema=pa.schema([*key_rows.schema, *state.schema]))
            self._stores.delete(self._name, PlacedKeys.of_partition(entries, partition))
            self.fired[partition] += len(entries)
            yield key_rows, table


_AT_ONCE = 10_000


class Expiry:
    """The rows of one store that expire.

    values       the stored columns; the first is the expiry
    most_rows    the most entries of the index that the batch examines in each partition
    """

    def __init__(
        self,
        store: str,
        ttl: Ttl,
        values: pa.Schema,
        stores: GroupStores,
        *,
        key_groups_of: Callable[[int], range],
        times: BatchTimes,
        most_rows: int,
    ) -> None:
        self.deleted: Counter[int] = Counter()
        """The expired rows that were deleted, by partition."""
        self._store = store
        self._ttl = ttl
        self._values = values
        self._stores = stores
        self._index = DueIndex(stores, expiries(store), key_groups_of, times.batch)
        self._most_rows = most_rows
        is_event = ttl.kind is TimeKind.EVENT
        self._now_us = (times.watermark_ms if is_event else times.time_ms) * 1000
        self._visible_us = (times.late_watermark_ms if is_event else times.time_ms) * 1000
        self._is_running = not is_event or times.watermark_ms > 0
        """Whether there is a time: by event time, not before the first watermark."""

    def is_visible(self, held: Times) -> pa.BooleanArray:
        """Return whether rows with these expiries are visible; shape (keys,).

        By event time, the watermark of the previous batch decides, as it does for late rows. So a row that is not late
        finds the state of its time, as in Spark. The batch then deletes what has expired by its own watermark.
        """
        return pa.array(held > self._visible_us)

    def of_rows(self, rows: pa.Table, latest_us: Times | None) -> Times:
        """Compute the expiries of new rows of the store. `latest_us`: the latest event time of the key of each row in the
        call; None for a call without input rows.

        Raises `WrongResult` for an expiry beyond the years 1 to 9999.
        """
        after_ms = self._ttl.after_ms
        if after_ms is None:
            return np.full(rows.num_rows, NEVER)
        if self._ttl.column is not None:
            since = times_of(rows.column(self._ttl.column))
        elif self._ttl.kind is TimeKind.EVENT and latest_us is not None:
            since = latest_us
        else:
            since = np.full(rows.num_rows, self._now_us)
        is_set = since != NEVER
        far = is_set & ((since < FIRST_US) | (since >= END_US - after_ms * 1000))
        if far.any():
            raise WrongResult(
                f"store {self._store!r}: the expiry of a row, {after_ms / 1000:g} s after "
                f"{timestamps(since[far][:1])[0]}, is not in the years 1 to 9999",
                hint="return null in the column of the TTL for a row that never expires",
            )
        return np.where(is_set, since + np.where(is_set, after_ms * 1000, 0), NEVER)

    def schedule(self, keys: PlacedKeys, times: Times, held: Times) -> None:
        """Note the expiries of rows that are written. `held`: those of the rows that they replace."""
        self._index.schedule(keys, times, held)

    def forget(self, keys: PlacedKeys, held: Times) -> None:
        """Forget the expiries of rows that are deleted."""
        self._index.forget(keys, held)

    def delete_expired(self, partition: int) -> None:
        """Delete expired rows of a partition, in portions."""
        if not self._is_running:
            return
        for due in self._index.due(partition, self._now_us, _AT_ONCE, most=self._most_rows):
            held = self._held(due.keys)
            self._index.settle(due, held, self._now_us)
            expired = due.keys.take(np.flatnonzero(held <= self._now_us))
            self._stores.delete(self._store, expired)
            self.deleted[partition] += len(expired)

    def _held(self, keys: PlacedKeys) -> Times:
        values = self._stores.get(self._store, keys)
        held = np.full(len(keys), NEVER)
        present = values.is_valid()
        column = decode_values(values.filter(present), self._values).column(0)
        held[present.to_numpy(zero_copy_only=False)] = times_of(column)
        return held
