"""The points at which a run of the flights job is killed, their shares, and the state that a restart must find.

This module decides. `flights_under_fire` kills, and `kill_test` counts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from statekeeper.pipelines.batch.progress import Outcome


class Point(Enum):
    """A point at which the job is killed: in the order of the protocol, then concurrent activities."""

    JVM_START = "JVM start-up"
    STARTED = "started"
    OFFSETS_WRITTEN = "offsets written"
    COMPUTING = "computing, somewhere"
    FIRST_CHANGELOG = "computing, some changelogs are there"
    COMPUTED = "computed"
    PENDING_WRITTEN = "pending attempt written"
    SINK_WRITING = "writing to the sink"
    ONE_SINK = "one sink written, the other not"
    SINK_WRITTEN = "sinks written, not committed"
    COMMITTED = "committed, before Spark's own commit"
    IDLE = "idle between batches"
    LOCAL_COPY = "a local copy is being changed"
    FEEDER = "feeder appends a day"
    ONE_WORKER = "computing, one Python worker only"
    JVM = "computing, the JVM only"


_SHARES = {
    Point.LOCAL_COPY: 2,
    Point.FIRST_CHANGELOG: 2,
    Point.COMPUTING: 2,
    Point.ONE_WORKER: 2,
    Point.JVM: 2,
    Point.SINK_WRITING: 1,
    Point.ONE_SINK: 2,
}
_USUAL_SHARE = 3
SHORT = (Point.SINK_WRITTEN, Point.COMMITTED)
"""The points of the short test: where a loss or a doubling would be seen at once."""

_BY_RESTART = {
    Point.ONE_SINK: (Outcome.TAKEN_FROM_SINK,),
    Point.SINK_WRITTEN: (Outcome.TAKEN_FROM_SINK,),
    Point.COMMITTED: (Outcome.DONE_BEFORE,),
    # The kill came while Delta wrote: its commit is there or not.
    Point.SINK_WRITING: (Outcome.COMPUTED, Outcome.TAKEN_FROM_SINK),
}
_AT_ANY_MOMENT = {Point.JVM_START, Point.LOCAL_COPY, Point.FEEDER, Point.ONE_WORKER, Point.JVM}


@dataclass(frozen=True)
class Shot:
    """One kill: after this number of finished batches of the run, and at this fraction (0 to 1) of the next step."""

    point: Point
    batches: int
    fraction: float

    def encode(self) -> str:
        return json.dumps(asdict(self) | {"point": self.point.name})

    @classmethod
    def parse(cls, text: str) -> Shot:
        body = json.loads(text)
        return cls(Point[body["point"]], int(body["batches"]), float(body["fraction"]))


def outcomes_after(point: Point) -> tuple[Outcome, ...] | None:
    """How the first batch of the next run may end; None when that is left to chance."""
    if point in _AT_ANY_MOMENT:
        return None
    return _BY_RESTART.get(point, (Outcome.COMPUTED,))


def shots(
    kills: int,
    chance: random.Random,
    *,
    points: Sequence[Point] = (),
    without: Collection[Point] = (),
    most_batches: int = 6,
) -> list[Shot]:
    """Return `kills` shots in random order: `points` in turn, by default all except `without`, with the shares above."""
    every = [p for turn in range(_USUAL_SHARE) for p in Point if turn < _SHARES.get(p, _USUAL_SHARE)]
    deck = list(points) or [point for point in every if point not in without]
    chosen = [deck[number % len(deck)] for number in range(kills)]
    chance.shuffle(chosen)
    return [Shot(point, chance.randint(1, most_batches), chance.random()) for point in chosen]
