"""The timers of the keys: written with the results of the functions, and found when they are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from statekeeper.pipelines.due_index import NEVER, DueIndex, Times, times_of, timestamps
from statekeeper.pipelines.group_stores import GroupStores, PlacedKeys
from statekeeper.pipelines.stored import TIMER_VALUES
from statekeeper.statestore.format.state_rows import decode_values, encode_values
from statekeeper.statestore.timed_stores import TIMERS, TIMERS_DUE


class Timers:
    """The timers of the partitions of a group. `now_us`: timers up to it are due; None before the first watermark."""

    def __init__(
        self, stores: GroupStores, key_groups_of: Callable[[int], range], *, batch: int, now_us: int | None
    ) -> None:
        self.fired: Counter[int] = Counter()
        """The timers that were due, by partition."""
        self._stores = stores
        self._index = DueIndex(stores, TIMERS_DUE, key_groups_of, batch)
        self._now_us = now_us

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
        for due in self._index.due(partition, self._now_us, at_once):
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
