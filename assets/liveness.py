"""Which started runs are dead. Pure functions, and the cursor of the sensor `dead_runs`.

    beats of the started runs, what earlier ticks saw  ->  the dead runs, what this tick saw

A run is dead if its beat has not changed for some minutes, or if it is still starting after some more: the process that
launches it was killed. The sensor measures this time with its own clock: the time in a
beat is of another machine. Time in which the sensor did not tick does not count, because the machine of the sensor and of
the runs may have been asleep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import json_records
from statekeeper.statestore.format.json_records import About, Record

FORMAT = 1

DEAD_SECONDS = 120.0
"""Time without a beat after which a run is dead: several beats."""

START_SECONDS = 600.0
"""Time after which a run that is still starting is dead: longer than a pod waits for a new node. Dagster's run monitoring,
if it is enabled, ends it earlier."""

STARTING = "starting"
"""In the place of the beat of a run that is starting."""

_LONGEST_GAP_SECONDS = 90.0
"""Longest time between two ticks that counts as time without a beat."""


@dataclass(frozen=True)
class Beat:
    """The newest beat of a run, and when a tick saw it first, since the epoch."""

    text: str
    seen_seconds: float


@dataclass(frozen=True)
class Seen:
    """What the ticks saw: the beats by run, and the time of the newest tick."""

    beats: Mapping[str, Beat] = field(default_factory=dict)
    at_seconds: float | None = None

    def encoded(self) -> str:
        """Encode as text, for the cursor."""
        return json_records.encoded({"format": FORMAT, "beats": self.beats, "at_seconds": self.at_seconds}).decode()


class _Written(Record):
    beats: dict[str, Beat] = msgspec.field(default_factory=dict)
    at_seconds: float | None = None


def parse(text: str | None) -> Seen:
    """Parse a cursor. An unreadable one is empty: a dead run is then found some minutes later."""
    if not text:
        return Seen()
    try:
        found = json_records.decoded(_Written, text.encode(), "cursor", About("cursor"), only_format=FORMAT)
    except (CorruptFile, UnicodeEncodeError):
        return Seen()
    return Seen(found.beats, found.at_seconds)


def look(before: Seen, beats: Mapping[str, str], *, now_seconds: float) -> tuple[set[str], Seen]:
    """Return the dead runs, and what this tick saw. `beats`: of the started runs, and `STARTING` of those that start."""
    gap = None if before.at_seconds is None else now_seconds - before.at_seconds
    is_watched = gap is not None and 0 <= gap <= _LONGEST_GAP_SECONDS
    seen = {}
    for run, text in beats.items():
        known = before.beats.get(run)
        is_same = is_watched and known is not None and known.text == text
        seen[run] = known if known is not None and is_same else Beat(text, now_seconds)
    dead = {
        run
        for run, beat in seen.items()
        if now_seconds - beat.seen_seconds >= (START_SECONDS if beat.text == STARTING else DEAD_SECONDS)
    }
    return dead, Seen({run: beat for run, beat in seen.items() if run not in dead}, now_seconds)
