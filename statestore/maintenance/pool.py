"""A thread pool for work on many stores. The engine and the network do most of the work, outside of Python.

The verb defines the work and its order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event, Lock
from typing import TypeVar

from statekeeper.statestore.errors import StatekeeperError

WORKERS = os.cpu_count() or 1
"""Default number of threads: one per core."""

_LOOK_SECONDS = 0.1
"""Python handles a signal only in the main thread, between bytecodes. A wait without a timeout would delay Ctrl-C to the
end."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_pool(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    ended: Callable[[Item, Result | StatekeeperError], None],
    *,
    workers: int = WORKERS,
    interrupt: Callable[[], None] = lambda: None,
) -> None:
    """Run `work` for each item, starting in order. Call `ended` after each item, from one thread at a time.

    An item that fails with a `StatekeeperError` does not stop the others; `ended` gets the error. After `KeyboardInterrupt`
    or another exception of `work`, no new item starts, the running items finish and are reported, and the exception is
    raised again. `interrupt` is called before, to end the running items.
    """
    to_do = iter(items)
    stopped = Event()
    telling = Lock()

    def work_off() -> None:
        try:
            for item in to_do:
                if stopped.is_set():
                    break
                outcome = _outcome(work, item)
                with telling:
                    ended(item, outcome)
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(workers) as pool:
        try:
            runs = [pool.submit(work_off) for _ in range(workers)]
            while wait(runs, timeout=_LOOK_SECONDS).not_done:
                pass
            for run in runs:
                run.result()
        except BaseException:
            stopped.set()
            interrupt()
            raise


def _outcome(work: Callable[[Item], Result], item: Item) -> Result | StatekeeperError:
    try:
        return work(item)
    except StatekeeperError as error:
        return error
