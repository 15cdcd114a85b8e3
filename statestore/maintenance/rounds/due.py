"""Decides which queries are due for a run of maintenance. Pure functions, and the sensor's cursor.

    head in the commit log, previous request, status of the newest run  ->  Ask | Wait, with the reason

A query is due in five cases: it has at least `snapshot.changelogs` new versions, the replay of its new versions exceeds
`snapshot.restore_target`, no run was requested yet, the newest run failed and its pause is over, or its newest run is too
old. While a run is queued or running, the query waits. Outside of the times of its `schedule`, it waits in all cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from enum import Enum

import msgspec

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import json_records
from statekeeper.statestore.format.json_records import About, Record
from statekeeper.statestore.maintenance.verbs.config import Schedule, window_text

FORMAT = 1
_FIRST_PAUSE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 3600.0
_PAUSE_AFTER_DEATHS_SECONDS = 240.0
_DEATHS = 6
"""The runs that may die with a query before its pauses grow: a machine or a daemon that is restarted several times kills
the runs of healthy queries, too."""
_LEAST_SHARE = 10
_MINUTES_OF_A_DAY = 24 * 60
_LEAST_OPEN_MINUTES = 15.0
"""A run that becomes due less than this before its window closes may miss it, because a look at the queries takes time."""
_FEWER = 4
"""After each run that died, a run has so many times fewer of its queries."""
_RUNS_OF_SUSPECTS = 2
"""The most such runs of the same size at a look."""


class Last(Enum):
    """The status of the newest run of a query."""

    NONE = "there is no run"
    ACTIVE = "a run is queued or running"
    SUCCEEDED = "the newest run succeeded"
    FAILED = "the newest run failed"


@dataclass(frozen=True)
class Asked:
    """The newest request of a run.

    attempts    requests since the newest run that succeeded; 0 if the run of this request succeeded
    at_seconds  time of the request, since the epoch
    versions    new versions whose replay takes as long as the restore target; None without a target or a measured tail
    """

    version: int
    attempts: int
    at_seconds: float
    versions: int | None = None


_NEVER = Asked(0, 0, 0.0)
"""In the place of the newest request of a query without one."""


@dataclass(frozen=True)
class Cursor:
    """The sensor's memory.

    asked               the newest request by query
    gone_since_seconds  the time at which a query disappeared
    added               the partitions that this sensor added, and may delete: another fleet may have added the others. A
                        sensor that loses its cursor deletes no earlier partition
    died                the attempts of a query when a run died with it, until a visit of it ends; see `batches`
    looked_seconds      time of the previous tick, since the epoch
    """

    asked: Mapping[str, Asked] = field(default_factory=dict)
    gone_since_seconds: Mapping[str, float] = field(default_factory=dict)
    added: frozenset[str] = frozenset()
    _: KW_ONLY
    died: Mapping[str, int] = field(default_factory=dict)
    looked_seconds: float | None = None

    def encoded(self) -> str:
        """Encode as text; equal cursors give equal texts."""
        asked = {name: asdict(one) for name, one in self.asked.items()}
        body: dict[str, object] = {"asked": asked, "gone_since": self.gone_since_seconds, "added": sorted(self.added)}
        body |= {"died": self.died} if self.died else {}
        body |= {"looked": self.looked_seconds} if self.looked_seconds is not None else {}
        return json_records.encoded({"format": FORMAT, **body}, sort_keys=True).decode()


class _Written(Record):
    """A cursor as text. Cursors of earlier builds have no `added`: such a sensor has requested a run for each partition
    that it added."""

    asked: dict[str, Asked]
    gone_since: dict[str, float]
    added: frozenset[str] | None = None
    died: dict[str, int] = msgspec.field(default_factory=dict)
    looked: float | None = None


def parse(text: str | None) -> Cursor | None:
    """Parse a cursor. Returns an empty one for no text, and None if the text is unreadable or of another format."""
    if not text:
        return Cursor()
    try:
        found = json_records.decoded(_Written, text.encode(), "cursor", About("cursor"), only_format=FORMAT)
    except (CorruptFile, UnicodeEncodeError):
        return None
    return Cursor(
        asked=found.asked,
        gone_since_seconds=found.gone_since,
        added=frozenset(found.asked) if found.added is None else found.added,
        died=found.died,
        looked_seconds=found.looked,
    )


@dataclass(frozen=True)
class Ask:
    """Request a run. `new`: versions since the newest request."""

    asked: Asked
    new: int
    reason: str

    def run_key(self, query: str) -> str:
        """The run key. Dagster creates one run for equal keys."""
        return f"maintain:{query}@{self.asked.version}#{self.asked.attempts}"


@dataclass(frozen=True)
class Wait:
    """Request no run. `asked`: the request to remember."""

    asked: Asked
    new: int
    reason: str


def versions_in(target_seconds: float, figures: Mapping[str, object], *, long_tail: int) -> int | None:
    """Return the number of new versions whose predicted replay takes the target together with the tails that the newest run
    left. Pure.

    None if that run saw no tail to measure, or left more than the target: a store cannot get a snapshot, and more runs do
    not help. At least a tenth of `long_tail`: a run may leave almost the target, and the next must not follow at once.
    `figures`: of the asset `snapshot`.
    """
    try:
        changelogs = float(str(figures["changelogs_before"]))
        seconds = float(str(figures["restore_seconds_before"]))
        after, stores = float(str(figures["restore_seconds_after"])), float(str(figures["stores"]))
    except (KeyError, ValueError):
        return None
    if changelogs <= 0 or seconds <= 0 or stores <= 0 or after > target_seconds:
        return None
    return max(1, long_tail // _LEAST_SHARE, int((target_seconds - after) / (seconds / changelogs * stores)))


_ALWAYS = Schedule()


def decide(
    version: int,
    asked: Asked | None,
    last: Last,
    *,
    long_tail: int,
    now_seconds: float,
    schedule: Schedule = _ALWAYS,
    sweep: tuple[float, float] | None = None,
    has_died: bool = False,
) -> Ask | Wait:
    """Decide whether a query whose head is `version` is due. Pure.

    `schedule`: when a run may start. `sweep`: the time since the newest run, and after which the next one follows, also
    without new versions, in seconds. `has_died`: the newest run did not end by itself.
    """
    if asked is None:
        asked = _NEVER
    new = version - asked.version
    if last is Last.ACTIVE:
        return Wait(asked, new, last.value)
    if closed := closed_because(schedule, asked.at_seconds, now_seconds):
        return Wait(asked, new, closed)
    if asked == _NEVER:
        return Ask(Asked(version, 1, now_seconds), version, "first run of the query")
    if last is Last.FAILED or (last is Last.NONE and asked.attempts):
        # Also a nightly run that failed is retried before the next night.
        attempts = max(asked.attempts, 1)
        pause = pause_seconds(attempts, has_died=has_died)
        left = asked.at_seconds + pause - now_seconds
        # If the clock was set back, `left` exceeds the pause: do not wait.
        if 0 < left <= pause:
            return Wait(asked, new, f"failed runs: {attempts}; next attempt in {left:,.0f} s")
        return Ask(Asked(version, attempts + 1, now_seconds), new, f"attempt {attempts + 1} after failed runs")
    if new < 0:
        return Ask(Asked(version, 1, now_seconds), new, f"the query was rolled back from batch {asked.version - 1}")
    if new >= long_tail:
        return Ask(Asked(version, 1, now_seconds), new, f"{new:,} new batches; the policy's limit is {long_tail:,}")
    if asked.versions is not None and new >= asked.versions:
        return Ask(Asked(version, 1, now_seconds), new, f"{new:,} new batches; their replay exceeds the restore target")
    if sweep is not None and not 0 <= sweep[0] < sweep[1]:
        return Ask(Asked(version, 1, now_seconds), new, f"the newest run was {sweep[0]:,.0f} s ago")
    limit = min(long_tail, asked.versions or long_tail)
    return Wait(replace(asked, attempts=0), new, f"{new:,} new batches of {limit:,}")


def closed_because(schedule: Schedule, newest_seconds: float, now_seconds: float) -> str | None:
    """Return why no run may start at a time; None if one may. `newest_seconds`: start of the newest run; 0 without one.
    Pure."""
    if schedule.window is not None:
        since, length = _since_opening(schedule.window, now_seconds)
        if since >= length:
            left = _MINUTES_OF_A_DAY - since
            return f"outside of schedule.window {window_text(schedule.window)} UTC, which opens in {left:,.0f} minutes"
    left = newest_seconds + schedule.min_interval_seconds - now_seconds
    # If the clock was set back, `left` exceeds the interval: do not wait.
    if 0 < left <= schedule.min_interval_seconds:
        return f"schedule.min_interval allows the next run in {left:,.0f} s"
    return None


def latest_seconds(schedule: Schedule, *, newest_seconds: float, visited_seconds: float, sweep_seconds: float) -> float:
    """Return the latest time at which the next run becomes due: by its age, and as soon as its schedule allows it. Pure.

    `newest_seconds`, `visited_seconds`: start and end of the newest run. `sweep_seconds`: see `decide`.
    """
    at = max(visited_seconds + sweep_seconds, newest_seconds + schedule.min_interval_seconds)
    if schedule.window is None:
        return at
    since, length = _since_opening(schedule.window, at)
    if since == 0 or since <= length - _LEAST_OPEN_MINUTES:
        return at
    return at + (_MINUTES_OF_A_DAY - since) * 60


def _since_opening(window: tuple[int, int], at_seconds: float) -> tuple[float, float]:
    """Return the minutes from the newest opening of a window to a time, and the length of the window in minutes."""
    start, end = window
    # The end may be on the next day.
    length = (end - start) % _MINUTES_OF_A_DAY or _MINUTES_OF_A_DAY
    return (at_seconds / 60 - start) % _MINUTES_OF_A_DAY, length


def failed(asked: Asked) -> Asked:
    """Return a request whose run has failed, also if the nightly sweep or a person requested that run."""
    return replace(asked, attempts=max(asked.attempts, 1))


def batches(asks: Mapping[str, Ask], died: Mapping[str, int], *, most: int) -> list[dict[str, Ask]]:
    """Return the queries of the next runs, in each run those with the most new versions first. Pure.

    At most `most` queries share a run; the others are due at the next look. `died`: the attempts of the queries with which
    a run died. One of them may be the cause. So they get runs of their own, and each time fewer of them share one. Queries
    with which more runs died do not make the runs of the others smaller: a machine that was restarted kills the runs of
    all queries.
    """
    worst_first = sorted(asks.items(), key=lambda item: -item[1].new)
    chosen = [[(name, ask) for name, ask in worst_first if name not in died][:most]]
    shares = {name: max(1, most // _FEWER ** died[name]) for name in asks if name in died}
    for share in sorted(set(shares.values()), reverse=True):
        suspects = [(name, ask) for name, ask in worst_first if shares.get(name) == share]
        chosen += [suspects[start : start + share] for start in range(0, len(suspects), share)][:_RUNS_OF_SUSPECTS]
    return [dict(one) for one in chosen if one]


def pause_seconds(attempts: int, *, has_died: bool = False) -> float:
    """The pause after so many failed runs: 1 minute, 4 minutes, 16 minutes, then 1 hour. If the newest one died, it is at
    most 4 minutes after up to six of them."""
    longest = _PAUSE_AFTER_DEATHS_SECONDS if has_died and attempts <= _DEATHS else _LONGEST_PAUSE_SECONDS
    return min(_FIRST_PAUSE_SECONDS * 4.0 ** (attempts - 1), longest)
