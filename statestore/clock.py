"""Time and chance, handed in: the only module of the library that asks the machine for either.

A test or a simulation passes its own `Clock` and `Ids`, so that a failed seed replays exactly.
"""

from __future__ import annotations

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now_seconds(self) -> float:
        """Seconds since the epoch, UTC; may jump in either direction."""

    def monotonic_seconds(self) -> float:
        """Seconds that never run backwards, for durations."""

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""


class Ids(Protocol):
    """Where globally unique ids come from."""

    def fresh(self) -> str:
        """A lower-case UUID, never handed out before."""


class SystemClock:
    """The machine's clock."""

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
