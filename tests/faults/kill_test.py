"""Kills the flights job repeatedly with SIGKILL, and compares the final state with pandas.

    python -m tests.faults.kill_test --kills 40 --seed 7 [--folder FOLDER] [--days N | --all] [--small | --point POINT]
        [--maintained] [--resume] [--log batch]

Each run of the job is killed at one point (`kill_points`), and the next run continues. After the last kill, a run processes
the rest of the input. Then the facts, the grounded aircraft, and the state and timers that Spark's reader shows, must equal
an independent computation in pandas over the whole input. The logs must be complete.

With --log batch, a batch is one Spark job. Its tasks write the files of the table and one object with all changelogs.

With --maintained, snapshots, audits and retention run in a loop at the same time, and are killed, too. Then each retained
version must be unchanged, the audit must be clean, and the size on disk must stay bounded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from statekeeper.pipelines import LogLayout
from statekeeper.pipelines.batch.progress import Outcome
from statekeeper.pipelines.flights.job import Places
from statekeeper.statestore.base.errors import SparkDied
from tests.faults.disk_plot import draw
from tests.faults.flights_under_fire import changelogs, commits_of_sinks
from tests.faults.kill_points import SHORT, Point, Shot, outcomes_after, shots
from tests.faults.maintenance_loop import RETAIN, MaintenanceLoop
from tests.support import quick_spark
from tests.support.final_files import Findings, examine
from tests.support.processes import in_session, kill

_RUN_SECONDS = 400.0
_DAY_SECONDS = 15.0
_GONE_SECONDS = 20.0
_DAYS_OF_A_YEAR = 366
_FED_AHEAD = 3
_FEWEST_DAYS = 120


class Broken(Exception):
    """A run violated a requirement. The text describes it and contains the end of the output."""


@dataclass
class Campaign:
    """Runs of the job in one folder, over the first `days` of the year, and their results."""

    folder: Path
    days: int
    log: LogLayout = LogLayout.STORES
    kills: Counter[Point] = field(default_factory=Counter)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    missed: int = 0
    runs: int = 0
    _expected: tuple[int, tuple[Outcome, ...], Point] | None = None

    @property
    def places(self) -> Places:
        return Places(self.folder / "flights")

    def run(self, shot: Shot | None) -> bool:
        """One run of the job, to its death or end; whether the shot hit. Raises `Broken`."""
        self.runs += 1
        lines_before = len(self._lines())
        log = self.folder / f"run-{self.runs:03}.log"
        job = self._start(shot, log)
        try:
            # The last run processes the rest of the input.
            limit = _RUN_SECONDS + (0 if shot else _DAY_SECONDS * self.days)
            code = job.wait(limit)
        except subprocess.TimeoutExpired:
            raise self._broken(f"run {self.runs} ({shot}) neither died nor ended in {limit:.0f} s", log) from None
        finally:
            self._leave_nothing(job.pid)
        return self._judged(shot, code, self._lines()[lines_before:], log)

    def _start(self, shot: Shot | None, log: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faults.flights_under_fire"]
        command += ["--folder", str(self.places.folder), "--days", str(self.days)]
        command += ["--log", self.log.value, *(["--shot", shot.encode()] if shot else [])]
        scratch = self.folder / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        # The leftovers of a killed Spark are in the folder of the campaign, and are deleted with it.
        environment = os.environ | {
            "TMPDIR": str(scratch),
            "SPARK_LOCAL_DIRS": str(scratch),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={scratch}",
            "JDK_JAVA_OPTIONS": quick_spark.java_options(),
        }
        with log.open("wb") as output:
            return subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def _leave_nothing(self, session: int) -> None:
        """After the death of the driver, wait until its child processes end, or kill them."""
        end = time.monotonic() + _GONE_SECONDS
        while left := in_session(session):
            if time.monotonic() > end:
                raise Broken(f"cannot be stopped: {left}")
            kill([process.id for process in left])
            time.sleep(0.02)
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)

    def _judged(self, shot: Shot | None, code: int, lines: list[dict[str, Any]], log: Path) -> bool:
        done = [line for line in lines if "outcome" in line]
        fired = next((line for line in lines if "kill" in line), None)
        self._compare_with_expected(done, log)
        self.outcomes.update(Outcome[str(line["outcome"])] for line in done)
        if fired is None:
            if code != 0:
                raise self._broken(f"run {self.runs} ended with {code} and was not shot", log)
            self.missed += shot is not None
            return False
        assert shot is not None
        may_end_by_itself = shot.point in (Point.ONE_WORKER, Point.JVM)
        if code != -signal.SIGKILL and not may_end_by_itself:
            raise self._broken(f"run {self.runs} ended with {code} after it was shot at {shot.point.value!r}", log)
        if may_end_by_itself and not fired["victims"]:
            self.missed += 1
            return False
        if shot.point is Point.JVM and (code != SparkDied.exit_code or SparkDied.code not in log.read_text()):
            raise self._broken(f"run {self.runs} lost its JVM and did not say so, it ended with {code}", log)
        if shot.point is Point.ONE_SINK and commits_of_sinks(self.places) != [fired["batch"] + 1, fired["batch"]]:
            self.missed += 1
            return False
        if shot.point is Point.FIRST_CHANGELOG:
            after = changelogs(self.places, fired["batch"] + 1)
            before: list[int] = fired["before"]
            written = sum(now > then for now, then in zip(after, before, strict=True))
            if written == len(after):
                self.missed += 1
                return False
        self.kills[shot.point] += 1
        expected = outcomes_after(shot.point)
        if expected is not None:
            # A shot between two batches is found by the next one, all others by the batch that was shot.
            batch = fired["batch"] + (shot.point is Point.IDLE)
            self._expected = (batch, expected, shot.point)
        return True

    def _compare_with_expected(self, done: list[dict[str, Any]], log: Path) -> None:
        if self._expected is None or not done:
            return
        batch, outcomes, point = self._expected
        found = (done[0]["batch"], Outcome[str(done[0]["outcome"])])
        if found[0] != batch or found[1] not in outcomes:
            raise self._broken(f"after {point.value!r} in batch {batch} the restart found {found}", log)
        self._expected = None

    def _lines(self) -> list[dict[str, Any]]:
        path = self.places.folder / "fire.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _broken(self, what: str, log: Path) -> Broken:
        return Broken(f"{what}\n{log.read_text(errors='replace')[-4000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="a folder that is not there yet, kept at the end")
    parser.add_argument("--days", type=int, help="how many days are fed (default: enough for all kills)")
    parser.add_argument("--all", action="store_true", help="go on to the end of the year")
    parser.add_argument("--resume", action="store_true", help="go on in a folder where a campaign was interrupted")
    parser.add_argument("--maintained", action="store_true", help="with maintenance beside the job, killed as well")
    parser.add_argument("--plot", type=Path, help="with --maintained: draw the bytes on disk into this file")
    parser.add_argument("--log", type=LogLayout, default=LogLayout.STORES, help="objects of the changelogs")
    parser.add_argument("--small", action="store_true", help="two kills over a few batches")
    parser.add_argument("--point", type=Point, help="all kills at this point, over a few batches")
    chosen = parser.parse_args()
    assert isinstance(sys.stdout, TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    chance = random.Random(chosen.seed)
    # Tasks leave no changelog of their own in a batch log. Their files are committed to both sinks within milliseconds.
    without = {Point.FIRST_CHANGELOG, Point.ONE_SINK} if chosen.log is LogLayout.BATCH else set()
    points = SHORT if chosen.small else (chosen.point,) if chosen.point else ()
    if points:
        kills = len(SHORT) if chosen.small else chosen.kills
        planned = shots(kills, chance, points=points, most_batches=2)
    else:
        planned = shots(chosen.kills, chance, without=without)
    days = _DAYS_OF_A_YEAR if chosen.all else chosen.days or _days_for(planned, 0 if points else _FEWEST_DAYS)
    folder = (chosen.folder or Path(tempfile.mkdtemp(prefix="statekeeper-kill-test-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not chosen.resume:
        parser.error(f"{folder} is not empty")
    started = time.monotonic()
    campaign = Campaign(folder, days, chosen.log)
    maintenance = None
    if chosen.maintained:
        root = Path(campaign.places.state)
        maintenance = MaintenanceLoop(root, folder / "maintenance", random.Random(chosen.seed))
        maintenance.start()
    findings = None
    # Stopped from outside, it still takes the running job with it and says how far it came.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _shoot(campaign, planned, started)
        if maintenance is not None:
            _settle(maintenance)
        findings = examine(campaign.places, campaign.days, retained=RETAIN if maintenance else None)
    except (Broken, AssertionError) as error:
        print(f"BROKEN (seed {chosen.seed}, all is kept in {folder}): {error}")
        return 1
    finally:
        if maintenance is not None:
            maintenance.stop()
            _print_maintenance(maintenance)
        _print(campaign, findings, chosen.seed, time.monotonic() - started)
    if maintenance is not None and chosen.plot is not None:
        draw(maintenance.samples, chosen.plot)
    if chosen.folder is None:
        shutil.rmtree(folder)
    return 0


def _settle(maintenance: MaintenanceLoop) -> None:
    """The last round, undisturbed: the audit is clean, retention leaves nothing that it would delete, disk is bounded."""
    maintenance.stop()
    if maintenance.unexpected:
        raise Broken(f"{len(maintenance.unexpected)} verbs failed, the first: {maintenance.unexpected[0]}")
    maintenance.once("lease", "--break")
    maintenance.once("snapshot", "--all")
    maintenance.once("gc")
    maintenance.once("audit")
    time.sleep(6)  # the files of the last run are younger than the grace period
    maintenance.once("gc")
    left = [file for file in maintenance.once("gc")["files"] if "_statekeeper" not in file["path"]]
    if left:
        raise Broken(f"retention leaves what it would delete: {left[:5]}")
    late = [sample.files for sample in maintenance.samples if sample.batches > maintenance.samples[-1].batches // 2]
    early = [sample.files for sample in maintenance.samples if sample.batches <= maintenance.samples[-1].batches // 2]
    if early and max(late) > 2 * max(early):
        raise Broken(f"files grow without bound: {max(early)} in the first half, {max(late)} in the second")


def _days_for(planned: list[Shot], fewest: int) -> int:
    """Return the days that all shots need, including their progress and a margin, and a few final days without a
    shot."""
    needed = sum(shot.batches for shot in planned if shot.point is not Point.JVM_START) + len(planned) // 2
    return min(_DAYS_OF_A_YEAR, max(fewest, needed + _FED_AHEAD + 2))


def _shoot(campaign: Campaign, planned: list[Shot], started: float) -> None:
    tries = 3 * len(planned)
    left = list(planned)
    while left and campaign.runs < tries:
        shot = left.pop(0)
        hit = campaign.run(shot)
        if not hit:
            left.append(shot)
            campaign.days = min(_DAYS_OF_A_YEAR, campaign.days + shot.batches + _FED_AHEAD)
        seconds = time.monotonic() - started
        done = sum(campaign.kills.values())
        print(f"{seconds:6.0f} s  {done:3}/{len(planned)}  {shot.point.value}{'' if hit else '  (missed)'}")
    if left:
        raise Broken(f"{len(left)} shots never hit, the first: {left[0]}; feed more days")
    campaign.run(None)


def _print_maintenance(maintenance: MaintenanceLoop) -> None:
    print("\nmaintenance beside it")
    for verb in sorted({*maintenance.ended, *maintenance.killed}):
        print(f"  {verb:<42}{maintenance.ended[verb]:>4} ended, {maintenance.killed[verb]} killed")
    if maintenance.samples:
        most = max(maintenance.samples, key=lambda sample: sample.files)
        newest = maintenance.samples[-1]
        print(
            f"  at most {most.files:,} files below state/, at the end {newest.files:,} with {newest.size_bytes:,} bytes"
        )


def _print(campaign: Campaign, findings: Findings | None, seed: int, seconds: float) -> None:
    print("\nkills")
    for point in Point:
        if campaign.kills[point]:
            print(f"  {point.value:<42}{campaign.kills[point]:>4}")
    print(f"  {'together':<42}{campaign.kills.total():>4}")
    rows = {
        "runs of the job": campaign.runs,
        "shots that came too late and were repeated": campaign.missed,
        "batches that ended": campaign.outcomes.total(),
        "  computed": campaign.outcomes[Outcome.COMPUTED],
        "  found in the sink on restart": campaign.outcomes[Outcome.TAKEN_FROM_SINK],
        "  found done on restart": campaign.outcomes[Outcome.DONE_BEFORE],
    }
    if findings is not None:
        rows |= {
            "batches in the commit log": findings.batches,
            "facts, equal to pandas": findings.facts,
            "stops of aircraft, equal to pandas": findings.grounded,
            "rows of state read by Spark, equal to pandas": findings.state_rows,
            "timers read by Spark, equal to pandas": findings.timers,
            "ids in the commit log, each with its changelog": findings.ids,
            "changelogs of dead attempts": findings.orphan_changelogs,
            "pending attempts that lost": findings.lost_attempts,
            "older versions read by Spark, equal to pandas": findings.restored_versions,
            "negative controls that turned red": findings.controls,
        }
    rows |= {"seconds": round(seconds), "seed": seed}
    print()
    for name, value in rows.items():
        print(f"{name:<48}{value:>10}")


if __name__ == "__main__":
    sys.exit(main())
