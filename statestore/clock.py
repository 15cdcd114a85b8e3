"""Injected clock and ids. No other module of the library uses the system clock or random numbers.

Tests and simulations inject their own `Clock` and `Ids`, so that a failed seed can be replayed exactly.
"""

from __future__ import annotations

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_seconds(self) -> float:
        """Return seconds since the epoch in UTC. They may jump in either direction."""

    def monotonic_seconds(self) -> float:
        """Return seconds that never decrease, for durations."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


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


class RandomIds:
    """Random UUIDs (version 4), as Spark uses for checkpoint ids (SPARK-49374)."""

    def fresh(self) -> str:
        return str(uuid.uuid4())  # noqa: TID251 - the one place that may
