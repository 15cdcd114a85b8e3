"""The expiry of a store's rows (TTL). The time is in the row; an index by time finds the rows to delete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from statekeeper.pipelines.due_index import END_US, FIRST_US, NEVER, DueIndex, Times, times_of, timestamps
from statekeeper.pipelines.group_stores import GroupStores, PlacedKeys
from statekeeper.pipelines.times import TimeKind, Ttl
from statekeeper.statestore.batch_times import BatchTimes
from statekeeper.statestore.errors import WrongResult
from statekeeper.statestore.format.state_rows import decode_values
from statekeeper.statestore.timed_stores import expiries

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
        for due in self._index.due(partition, self._now_us, _AT_ONCE, self._most_rows):
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
