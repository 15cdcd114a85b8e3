"""Many requests at once, in threads: what they wait for is the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 8
_QUEUED = 1_000

Item = TypeVar("Item")


def at_once(work: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Do `work` for each item, `AT_ONCE` of them at a time. Raises what the first that failed raised."""
    if len(items) < 2:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # The pool queues all items at once, a kilobyte for each.
        for first in range(0, len(items), _QUEUED):
            for _ in pool.map(work, items[first : first + _QUEUED]):
                pass
