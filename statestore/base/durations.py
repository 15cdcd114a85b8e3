"""Durations and times as text, such as `90s`, `10m`, `1h` or `7d`, and `2026-03-01T03:00:00Z`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(?P<count>[0-9]+(?:\.[0-9]+)?)(?P<unit>[smhd])")


def parse_duration(text: str) -> float:
    """Convert `90s`, `10m`, `1h` or `7d` to seconds. Raises `ValueError`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a number and a unit, for example 90s, 10m, 1h or 7d")
    return float(match["count"]) * _UNITS[match["unit"]]


def duration_text(seconds: float) -> str:
    """Return seconds as `statekeeper.toml` has them: 3600.0 is `1h`."""
    for unit in ("d", "h", "m"):
        size = _UNITS[unit]
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def utc(seconds: float, *, between: str = "T") -> str:
    """Return a time in seconds since the epoch as text in UTC. A file can have a time that no date can show."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d{between}%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return "an invalid time"
