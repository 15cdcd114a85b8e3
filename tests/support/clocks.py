"""A clock that does not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import RLock

from statekeeper.statestore.base.errors import StatekeeperError


@dataclass
class _Timer:
    seconds: float
    action: Callable[[], None]
    due_seconds: float


class SleeplessClock:
    """Records the requested waits, and returns at once. Its timers act in the thread that waits."""

    def __init__(self, now_seconds: float = 1_700_000_000.0) -> None:
        self._started_seconds = now_seconds
        self._passed_seconds = 0.0
        self._timers: list[_Timer] = []
        self.waiting = RLock()
        self.slept_seconds: list[float] = []

    def now_seconds(self) -> float:
        return self._started_seconds + self._passed_seconds

    def monotonic_seconds(self) -> float:
        return self._passed_seconds

    def sleep(self, seconds: float) -> None:
        # Threads that wait at the same time wait one after the other: no timer is late.
        with self.waiting:
            self.slept_seconds.append(seconds)
            until = self._passed_seconds + seconds
            while due := [timer for timer in self._timers if timer.due_seconds <= until]:
                first = min(due, key=lambda timer: timer.due_seconds)
                self._passed_seconds = first.due_seconds
                first.due_seconds += first.seconds
                with suppress(StatekeeperError):
                    first.action()
            self._passed_seconds = until

    @contextmanager
    def every(self, seconds: float, action: Callable[[], None]) -> Iterator[None]:
        timer = _Timer(seconds, action, self._passed_seconds + seconds)
        self._timers.append(timer)
        try:
            yield
        finally:
            self._timers.remove(timer)
