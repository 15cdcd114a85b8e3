"""Concurrent requests in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 8
_QUEUED = 1_000

Item = TypeVar("Item")


def at_once(work: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Do `work` for each item, `AT_ONCE` items at a time. Raises the error of the first item that failed."""
    if len(items) < 2:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # In parts, because the pool queues all items immediately, a kilobyte for each.
        for first in range(0, len(items), _QUEUED):
            for _ in pool.map(work, items[first : first + _QUEUED]):
                pass
