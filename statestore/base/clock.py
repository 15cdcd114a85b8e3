"""Injected clock and ids. No other module of the library uses the system clock or random numbers.

Tests and simulations inject their own `Clock` and `Ids`, so that a failed seed can be replayed exactly.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Event, Thread
from typing import Protocol

from statekeeper.statestore.base.errors import StatekeeperError


class Clock(Protocol):
    """A source of time."""

    def now_seconds(self) -> float:
        """Return seconds since the epoch in UTC. They may jump in either direction."""

    def monotonic_seconds(self) -> float:
        """Return seconds that never decrease, for durations."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def every(self, seconds: float, action: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `action` each `seconds` during the body of a `with` statement, also from another thread, and not after it.

        A `StatekeeperError` of the action does not end the body: the next call is the next try. Any other error is a
        defect: it ends the calls, and is raised at the end of a body that succeeds.
        """


class Ids(Protocol):
    """A source of globally unique ids."""

    def fresh(self) -> str:
        """Return a new lower-case UUID."""


class SystemClock:
    """The system clock."""

    def now_seconds(self) -> float:
        return time.time()  # noqa: TID251 - the one place that may

    def monotonic_seconds(self) -> float:
        return time.monotonic()  # noqa: TID251 - the one place that may

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: TID251 - the one place that may

    @contextmanager
    def every(self, seconds: float, action: Callable[[], None]) -> Iterator[None]:
        stopped = Event()
        defects: list[Exception] = []

        def repeat() -> None:
            while not (defects or stopped.wait(seconds)):
                try:
                    with suppress(StatekeeperError):
                        action()
                except Exception as defect:  # noqa: BLE001 - raised below, in the thread of the body
                    defects.append(defect)

        thread = Thread(target=repeat, name="timer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
        if defects:
            raise defects[0]


class RandomIds:
    """Random UUIDs (version 4), as Spark uses for checkpoint ids (SPARK-49374)."""

    def fresh(self) -> str:
        return str(uuid.uuid4())  # noqa: TID251 - the one place that may
