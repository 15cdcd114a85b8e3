"""Work on many stores, a few at a time, in threads: the engine and the network do most of it, outside of Python.

What the work is, and in which order it is worth doing, is the verb's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event, Lock
from typing import TypeVar

from statestore.errors import StatekeeperError

WORKERS = os.cpu_count() or 1
"""As many as the machine has cores."""

_LOOK_SECONDS = 0.1
"""A signal may come to any thread, and only the main one acts on it, when it has something to do: who waits for good would
learn of a Ctrl-C when all is done."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_pool(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    ended: Callable[[Item, Result | StatekeeperError], None],
    *,
    workers: int = WORKERS,
) -> None:
    """Do `work` for each item, beginning in their order; `ended` is told of each as soon as it has, of one at a time.

    One that fails with an error of the library does not stop the others: the error is how it ended. When it is
    interrupted, nothing new begins, what has begun is brought to its end and told, and the `KeyboardInterrupt` goes on.
    So does anything else that `work` raises.
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
        finally:
            stopped.set()


def _outcome(work: Callable[[Item], Result], item: Item) -> Result | StatekeeperError:
    try:
        return work(item)
    except StatekeeperError as error:
        return error
