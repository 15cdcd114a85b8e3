"""The flights job, killed from within at a selected point by an observer and a feeder.

    python -m tests.faults.flights_under_fire --folder FOLDER --days N [--shot JSON] [--log batch]

It writes one line of JSON to <folder>/fire.jsonl for each finished batch, and one before the kill. The job has no hooks
for this: an observer receives each phase, and this module watches files and locks from outside.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from statekeeper.pipelines import LogLayout, Writer
from statekeeper.pipelines.batch.progress import BatchReport, Outcome, Phase
from statekeeper.pipelines.flights import departures
from statekeeper.pipelines.flights.feeder import Feeder
from statekeeper.pipelines.flights.job import Places, run, start_query
from statekeeper.statestore.base.errors import StatekeeperError
from tests.faults.kill_points import Point, Shot
from tests.support.processes import any_lock_is_held, in_session, jvms, kill, python_workers

_FED_AHEAD = 3
_LOOK_SECONDS = 0.001
_JVM_START_SECONDS = 4.0
_IDLE_SECONDS = 0.8
_FIRST_GUESS_SECONDS = 0.5
_FEED_SECONDS = 0.03

WRITERS = {LogLayout.STORES: Writer.SPARK, LogLayout.BATCH: Writer.TASKS}
AT_ONCE = {
    Phase.STARTED: Point.STARTED,
    Phase.OFFSETS_WRITTEN: Point.OFFSETS_WRITTEN,
    Phase.COMPUTED: Point.COMPUTED,
    Phase.PENDING_WRITTEN: Point.PENDING_WRITTEN,
    Phase.SINK_WRITTEN: Point.SINK_WRITTEN,
    Phase.COMMITTED: Point.COMMITTED,
}
SOMEWHERE_IN = {
    Point.COMPUTING: Phase.COMPUTING,
    Point.FIRST_CHANGELOG: Phase.COMPUTING,
    Point.ONE_WORKER: Phase.COMPUTING,
    Point.JVM: Phase.COMPUTING,
    Point.SINK_WRITING: Phase.SINK_WRITING,
    Point.ONE_SINK: Phase.SINK_WRITING,
}


def changelogs(places: Places, version: int) -> list[int]:
    """How many changelogs of a version each partition's store has, orphans of dead attempts included."""
    stores = sorted((Path(places.state) / "state" / "0").glob("[0-9]*"))
    return [len(list(store.glob(f"{version}_*.changelog"))) for store in stores]


def commits_of_sinks(places: Places) -> list[int]:
    """How many batches the facts and the grounded aircraft have. The commit of batch 0 creates the table."""
    return [len(list(Path(table).glob("_delta_log/*.json"))) for table in (places.facts, places.grounded)]


class Gun:
    """An `Observer` that kills the session, or one process of it, once the shot's point is reached."""

    def __init__(self, places: Places, shot: Shot | None) -> None:
        self._places = places
        self._shot = shot
        self._log = (places.folder / "fire.jsonl").open("a", buffering=1)
        self._once = threading.Lock()
        self._now: tuple[int, Phase] | None = None
        self._seconds: dict[Phase, float] = {}
        self._watches_copies = False
        self.finished_batches = 0

    def point_is(self, point: Point) -> bool:
        """Whether this point is to be hit now: enough batches of the run are finished."""
        return self._shot is not None and self._shot.point is point and self.finished_batches >= self._shot.batches

    def phase(self, batch: int, phase: Phase) -> None:
        self._now = (batch, phase)
        at_once = AT_ONCE.get(phase)
        if at_once is not None and self.point_is(at_once):
            self.fire()
        for point, inside in SOMEWHERE_IN.items():
            if phase is inside and self.point_is(point):
                self._in_background(self._fire_inside, batch, point, inside, changelogs(self._places, batch + 1))

    def finished(self, report: BatchReport) -> None:
        if report.outcome is Outcome.COMPUTED:
            self._seconds = {phase: spent / 1000 for phase, spent in report.milliseconds.items()}
        self.finished_batches += 1
        self._write(batch=report.batch, outcome=report.outcome.name)
        if self.point_is(Point.IDLE):
            self._in_background(self._fire_when_idle, report.batch)
        if self.point_is(Point.LOCAL_COPY) and not self._watches_copies:
            self._watches_copies = True
            self._in_background(self._fire_while_a_copy_is_changed)

    def arm_for_jvm_start(self) -> None:
        """Fire some time after the JVM is seen; for the shot that needs no batch."""
        if self._shot is not None and self._shot.point is Point.JVM_START:
            self._in_background(self._fire_while_jvm_starts)

    def arm_for_append(self) -> None:
        """Fire during the append that starts now."""
        if self.point_is(Point.FEEDER):
            self._in_background(self._fire_after, _FEED_SECONDS)

    def fire(self, **about: object) -> None:
        """Kill the victim of the shot. If the victim is this process, this does not return."""
        assert self._shot is not None
        if not self._once.acquire(blocking=False):
            return
        members = in_session(os.getsid(0))
        victims = {Point.JVM: jvms, Point.ONE_WORKER: python_workers}.get(self._shot.point)
        batch, phase = self._now or (None, None)
        about |= {"kill": self._shot.point.name, "batch": batch, "phase": phase and phase.name}
        if victims is not None:
            running = victims(members)
            chosen = running[int(self._shot.fraction * len(running)) :][:1]
            if not chosen:
                self._once.release()  # no worker yet: the next batch is the next chance
                return
            self._write(**about, victims=chosen)
            kill(chosen)
            return
        self._write(**about)
        # All at once, and this process last: a driver that lives longer may see that its JVM is dead, and end by itself.
        # The caller kills the processes that are forked meanwhile.
        kill([process.id for process in members if process.id != os.getpid()])
        os.kill(os.getpid(), signal.SIGKILL)

    def _fire_inside(self, batch: int, point: Point, phase: Phase, before: list[int]) -> None:
        """Wait for the moment, and fire if the phase is still the same; else the next batch is the next chance."""
        assert self._shot is not None
        end = time.monotonic() + self._shot.fraction * self._seconds.get(phase, _FIRST_GUESS_SECONDS)

        def reached() -> bool:
            if point is Point.ONE_SINK:
                return commits_of_sinks(self._places) == [batch + 1, batch]
            if point is Point.FIRST_CHANGELOG:
                return sum(changelogs(self._places, batch + 1)) > sum(before)
            return time.monotonic() >= end

        while self._now == (batch, phase) and not reached():
            time.sleep(_LOOK_SECONDS)
        after = changelogs(self._places, batch + 1)
        too_late = point is Point.FIRST_CHANGELOG and all(now > then for now, then in zip(after, before, strict=False))
        if self._now == (batch, phase) and not too_late:
            self.fire(before=before)

    def _fire_when_idle(self, batch: int) -> None:
        assert self._shot is not None
        commit = Path(self._places.checkpoint) / "commits" / str(batch)
        while not commit.exists():
            time.sleep(_LOOK_SECONDS)
        time.sleep(self._shot.fraction * _IDLE_SECONDS)
        if self._now == (batch, Phase.COMMITTED):
            self.fire()

    def _fire_while_a_copy_is_changed(self) -> None:
        """Kill while a local copy moves forward in the background, during any phase of a batch.

        It watches the lock of RocksDB. A sweep also holds the lock of the folder.
        """
        local = Path(self._places.local)
        while not any_lock_is_held(list(local.glob("statekeeper-*/*/*/db-*/LOCK"))):
            time.sleep(_LOOK_SECONDS)
        self.fire()

    def _fire_while_jvm_starts(self) -> None:
        while not jvms(in_session(os.getsid(0))):
            time.sleep(0.01)
        self._fire_after(_JVM_START_SECONDS)

    def _fire_after(self, at_most_seconds: float) -> None:
        assert self._shot is not None
        time.sleep(self._shot.fraction * at_most_seconds)
        self.fire()

    def _in_background(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _write(self, **line: object) -> None:
        self._log.write(json.dumps(line) + "\n")


class FeederUnderFire(Feeder):
    """Feeds a few days ahead, reports each append to the gun, and pauses where the job must be idle."""

    def __init__(self, path: str, arrivals: pa.Table, gun: Gun) -> None:
        self._gun = gun
        super().__init__(path, arrivals)

    def run_ahead(
        self, stop: threading.Event, consumed: Callable[[], int], ahead: int, poll_seconds: float = 0.2
    ) -> None:
        def as_if_consumed() -> int:
            return -self.days if self._gun.point_is(Point.IDLE) else consumed()

        super().run_ahead(stop, as_if_consumed, min(ahead, _FED_AHEAD), poll_seconds)

    def _append(self, table: object, day: int) -> None:
        self._gun.arm_for_append()
        super()._append(table, day)


def main() -> int:
    parser = argparse.ArgumentParser(description="One run of the flights job, shot at.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--days", type=int, required=True, help="how many days there are to feed")
    parser.add_argument("--shot", type=Shot.parse)
    parser.add_argument(
        "--log", type=LogLayout, default=LogLayout.STORES, help="batch: one object and one job per batch"
    )
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    places, shot = Places(chosen.folder), chosen.shot
    gun = Gun(places, shot)
    gun.arm_for_jvm_start()
    arrivals = pa.concat_tables(departures.days(departures.departures())[: chosen.days])
    # A shot at one process may leave the job alive: then it stops by itself a little later.
    batches = shot.batches + 3 if shot is not None and shot.point in (Point.ONE_WORKER, Point.JVM) else None
    try:
        return run(
            places,
            batches=batches,
            console=Console(),
            observers=[gun],
            make_feeder=lambda path: FeederUnderFire(path, arrivals, gun),
            make_query=partial(start_query, log=chosen.log, writer=WRITERS[chosen.log]),
        )
    except StatekeeperError as error:
        print(f"{error.code}: {error}")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
