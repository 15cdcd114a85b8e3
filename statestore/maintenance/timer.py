"""Repeats an action while a verb works, such as the renewal of a lease. The work may take hours between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from statestore.errors import StatekeeperError


@contextmanager
def every(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` each `seconds` in a thread of its own during the body of a `with` statement, and not after it.

    A `StatekeeperError` of the action does not end the body: the next call is the next try.
    """
    stopped = Event()

    def repeat() -> None:
        while not stopped.wait(seconds):
            with suppress(StatekeeperError):
                action()

    thread = Thread(target=repeat, name="timer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
