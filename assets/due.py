"""Which queries are due for a run of maintenance: pure decisions, and the cursor in which they are remembered.

    commit log's head, what was asked for before, how that ended  ->  Ask | Wait, with the figures that decided it

A query is due when it has as many new versions as make a tail long, when nothing was asked for yet, or when what was
asked for did not end well and its pause is over. Nothing is due twice: while a run is queued or at work it waits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum

from statestore.format.untrusted import BAD_VALUES

FORMAT = 1
_FIRST_PAUSE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 3600.0


class Last(Enum):
    """How the newest run of a query stands."""

    NONE = "there is no run"
    AT_WORK = "a run is queued or at work"
    WELL = "the newest run succeeded"
    ILL = "the newest run failed"


@dataclass(frozen=True)
class Asked:
    """What was asked for last. `attempts`: runs asked for since the last one that is known to have succeeded; 0: that
    was it. `at_seconds`: when, since the epoch."""

    version: int
    attempts: int
    at_seconds: float


@dataclass(frozen=True)
class Cursor:
    """What the sensor remembers: by query what was asked for, and since when a query that was there is gone."""

    asked: Mapping[str, Asked] = field(default_factory=dict)
    gone_since_seconds: Mapping[str, float] = field(default_factory=dict)

    def encoded(self) -> str:
        """As text, the same for the same content."""
        asked = {name: asdict(one) for name, one in self.asked.items()}
        return json.dumps({"format": FORMAT, "asked": asked, "gone_since": self.gone_since_seconds}, sort_keys=True)


def parse(text: str | None) -> Cursor | None:
    """The cursor; an empty one where there is none yet; None for one that cannot be read or is of another format."""
    if not text:
        return Cursor()
    try:
        body = json.loads(text)
        if body["format"] != FORMAT:
            return None
        asked = {
            str(name): Asked(int(one["version"]), int(one["attempts"]), float(one["at_seconds"]))
            for name, one in body["asked"].items()
        }
        return Cursor(asked, {str(name): float(since) for name, since in body["gone_since"].items()})
    except BAD_VALUES:
        return None


@dataclass(frozen=True)
class Ask:
    """Ask for a run. `new`: versions since the last time."""

    asked: Asked
    new: int
    why: str

    def run_key(self, query: str) -> str:
        """The fact that justifies the run: asked for twice, it is one run."""
        return f"maintain:{query}@{self.asked.version}#{self.asked.attempts}"


@dataclass(frozen=True)
class Wait:
    """Ask for nothing. `asked`: what is remembered."""

    asked: Asked
    new: int
    why: str


def decide(version: int, asked: Asked | None, last: Last, *, long_tail: int, now_seconds: float) -> Ask | Wait:
    """What to do about a query whose newest committed version is this. Pure."""
    if asked is None:
        return Ask(Asked(version, 1, now_seconds), version, "seen for the first time")
    new = version - asked.version
    if last is Last.AT_WORK:
        return Wait(asked, new, last.value)
    if last is Last.ILL or (last is Last.NONE and asked.attempts):
        # Whoever asked for it: a nightly run that failed is tried again before the next night.
        attempts = max(asked.attempts, 1)
        pause = pause_seconds(attempts)
        left = asked.at_seconds + pause - now_seconds
        # A clock that was set back must not make it wait for ever.
        if 0 < left <= pause:
            return Wait(asked, new, f"{attempts} runs did not end well, again in {left:,.0f} s")
        return Ask(Asked(version, attempts + 1, now_seconds), new, f"{attempts} runs did not end well")
    if new < 0:
        return Ask(Asked(version, 1, now_seconds), new, f"it was at version {asked.version}: it went back")
    if new >= long_tail:
        return Ask(Asked(version, 1, now_seconds), new, f"{new:,} new versions, {long_tail:,} make a tail long")
    return Wait(Asked(asked.version, 0, asked.at_seconds), new, f"{new:,} new versions of {long_tail:,}")


def pause_seconds(attempts: int) -> float:
    """How long to wait after so many runs that did not end well: a minute, four, sixteen, then an hour."""
    return min(_FIRST_PAUSE_SECONDS * 4.0 ** (attempts - 1), _LONGEST_PAUSE_SECONDS)
