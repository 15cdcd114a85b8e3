"""A clock that does not wait."""

from __future__ import annotations


class SleeplessClock:
    """Records the requested waits, and returns at once."""

    def __init__(self, now_seconds: float = 1_700_000_000.0) -> None:
        self._started_seconds = now_seconds
        self.slept_seconds: list[float] = []

    def now_seconds(self) -> float:
        return self._started_seconds + sum(self.slept_seconds)

    def monotonic_seconds(self) -> float:
        return sum(self.slept_seconds)

    def sleep(self, seconds: float) -> None:
        self.slept_seconds.append(seconds)
