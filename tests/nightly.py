"""Runs what CI leaves out, within a number of hours, and prints one table: `make nightly HOURS=8`.

    python -m tests.nightly --hours 8 [--only PART ...] [--fresh]

Each part has a share of the hours. What a part does not use goes to the parts after it. A part whose time is over is
stopped, and the same command continues there as long as the commit is the same. Parts that play seeds get new seeds
on the next night. The exit code is 1 if anything failed. `var/nightly/` keeps the table, and the output of each part.

With `-p tests.nightly`, this module is also a plugin of pytest. It records results, and starts no test after the deadline.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
FOLDER = REPOSITORY / "var" / "nightly"
_MOST_GRACE_SECONDS = 600.0
_DEADLINE, _RESULTS = "STATEKEEPER_NIGHTLY_DEADLINE", "STATEKEEPER_NIGHTLY_RESULTS"
_TIME_IS_OVER, _AND_HAS = "the time of this part is over", "and has"

# -- parts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What is run under one name of the Makefile.

    share          its part of the hours, in relation to the others
    commands       in turn, as long as there is time; {seed} is the first seed that no night has played
    seeds          seeds that one command plays, or None if it ends the part
    counts         a pattern of the output with the groups `cases` and `failed`; without groups, each match is a case
    bad            with a pattern without groups: the cases that failed
    needs          targets of the Makefile, without which it is skipped; the tests of pytest say themselves what they lack
    least_seconds  it is skipped if it has less time
    tests          pytest runs these, instead of `commands`; `and_fast`: also those that CI runs
    """

    name: str
    share: float
    commands: tuple[str, ...] = ()
    seeds: int | None = None
    counts: str = ""
    bad: str = ""
    needs: tuple[str, ...] = ()
    least_seconds: float = 0.0
    tests: tuple[str, ...] = ()
    and_fast: bool = False


_CLOUDS = ("var/stores/.made",)
_HDFS = (".venv/.jars", "var/stores/hadoop-client-minicluster.jar")
_OWN_TESTS = {
    "interop-s3a": ("tests/interop/test_s3a.py",),
    "interop-stores": ("tests/storage",),
    "interop-hdfs": ("tests/interop/test_hdfs.py",),
    "interop-kafka": ("tests/interop/test_sources_after_rewinds.py",),
}
"""The rest of the slow tests is run as `slow-test`."""
_PYTHON = "{python} -m tests."

PARTS = (
    Part("slow-test", 35, tests=("tests",)),
    Part("interop-s3a", 3, tests=_OWN_TESTS["interop-s3a"], and_fast=True),
    Part("interop-stores", 3, tests=_OWN_TESTS["interop-stores"], and_fast=True, needs=(*_CLOUDS, *_HDFS)),
    Part("interop-hdfs", 3, tests=_OWN_TESTS["interop-hdfs"], and_fast=True, needs=_HDFS),
    Part("interop-kafka", 2, tests=_OWN_TESTS["interop-kafka"], and_fast=True, needs=("var/stores/kafka-source",)),
    Part(
        "simulate",
        6,
        commands=(
            f"{_PYTHON}faults.simulate --seeds 500 --first {{seed}}",
            f"{_PYTHON}faults.simulate --seeds 500 --first {{seed}} --log batch",
        ),
        seeds=500,
        counts=r"^seeds +(?P<cases>[\d,]+)$[\s\S]*?^seeds that failed +(?P<failed>[\d,]+)$",
    ),
    Part(
        "fuzz",
        6,
        commands=(f"{_PYTHON}faults.fuzz --cases 500 --seed {{seed}}",),
        seeds=1,
        counts=r"^(?P<cases>[\d,]+) cases, (?P<failed>[\d,]+) failed;",
    ),
    Part(
        "kill-test",
        8,
        commands=tuple(
            f"{_PYTHON}faults.kill_test --kills 16 --seed {{seed}}{options}"
            for options in ("", " --maintained", " --log batch")
        ),
        seeds=1,
        counts=r"^  together +(?P<cases>\d+)$",
    ),
    Part(
        "company-night",
        8,
        commands=(f"{_PYTHON}faults.company_night --minutes 10 --seed {{seed}}",),
        seeds=1,
        counts=r"^(?P<cases>\d+) damages and healthy queries, (?P<failed>\d+) violations$",
        least_seconds=2700,
    ),
    Part(
        "sequences",
        12,
        commands=(f"{_PYTHON}interop.sequences --seed {{seed}} --count 10",),
        seeds=10,
        counts=r"^(?P<cases>[\d,]+) sequences, (?P<failed>[\d,]+) failed,",
        needs=(".venv/.jars",),
    ),
    Part(
        "audit-oracle",
        6,
        commands=(f"{_PYTHON}interop.oracle --cases 50 --seed {{seed}}",),
        seeds=1,
        counts=r"^(?P<cases>\d+) cases, seed[\s\S]*^missed: (?P<failed>\d+)$",
    ),
    Part(
        "soak",
        6,
        commands=(f"{_PYTHON}interop.soak",),
        counts=r"^V[12], .+: ",
        least_seconds=1500,
    ),
    Part(
        "interop-matrix",
        15,
        commands=(f"{_PYTHON}interop.sparks",),
        counts=r"^ *[\d.]+ s  \S.*$",
        bad=r"^ *[\d.]+ s  \S.*  FAILED$",
        needs=("sparks",),
    ),
    # Whether each still runs. One round says nothing about speed. A night that stops them begins with the first again.
    Part(
        "benchmarks",
        20,
        commands=("{python} -m benchmarks --rounds 1",),
        counts=r"^  (on .+ cores, .+|\w+ failed)$",
        bad=r"^  \w+ failed$",
        least_seconds=3600,
    ),
)


def selected(part: Part) -> list[str]:
    """The arguments for pytest that select the tests of a part. A slow test is in one part."""
    if part.and_fast:
        return [*part.tests, "-m", "slow or not slow"]
    return [*part.tests, "-m", "slow", *(f"--ignore={path}" for paths in _OWN_TESTS.values() for path in paths)]


# -- results -----------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """The results of a part. `ended`: it is not continued."""

    cases: int = 0
    passed: int = 0
    failed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    ended: bool = False

    def skip(self, why: str, number: int = 1) -> None:
        self.cases += number
        self.skipped[why] = self.skipped.get(why, 0) + number


@dataclass
class Night:
    """The results on one commit, and the first seed of each part that no night has played."""

    commit: str
    rows: dict[str, Row] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)

    @classmethod
    def opened(cls, folder: Path, commit: str, parts: Sequence[Part], *, fresh: bool) -> Night:
        """Return the unfinished night, or a new one if these parts have ended or were run on another commit."""
        place = folder / "night.json"
        if not place.exists():
            return cls(commit)
        body = json.loads(place.read_text())
        rows = {name: Row(**row) for name, row in body["rows"].items()}
        has_ended = all(part.name in rows and rows[part.name].ended for part in parts)
        goes_on = body["commit"] == commit and not fresh and not has_ended
        return cls(commit, rows if goes_on else {}, body["seeds"])

    def keep(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / "night.json.new"
        new.write_text(json.dumps(asdict(self), indent=1))
        new.replace(folder / "night.json")

    def table(self) -> str:
        line = "{:<16}{:>8}{:>8}{:>8}{:>9}{:>9}  {}"
        lines = [line.format("part", "cases", "passed", "failed", "skipped", "seconds", "")]
        total = Row(seconds=0.0)
        for name, row in self.rows.items():
            note = "" if row.ended else "the next call continues it"
            numbers = (row.cases, row.passed, row.failed, sum(row.skipped.values()), round(row.seconds))
            lines.append(line.format(name, *numbers, note).rstrip())
            lines += [f"    {number} skipped: {why}" for why, number in sorted(row.skipped.items())]
            total = Row(
                total.cases + row.cases,
                total.passed + row.passed,
                total.failed + row.failed,
                total.skipped | {f"{name}: {why}": number for why, number in row.skipped.items()},
                total.seconds + row.seconds,
            )
        numbers = (total.cases, total.passed, total.failed, sum(total.skipped.values()), round(total.seconds))
        return "\n".join([*lines, line.format("together", *numbers, "").rstrip()])


# -- the run -----------------------------------------------------------------------------------------------------------


def run(parts: Sequence[Part], night: Night, folder: Path, *, seconds: float, tell: Callable[[str], None]) -> None:
    """Run the parts that have not ended, each within its share of the time that is left."""
    end = time.monotonic() + seconds
    left = [part for part in parts if not night.rows.setdefault(part.name, Row()).ended]
    (folder / "output").mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(left):
        budget = max(0.0, end - time.monotonic()) * part.share / sum(one.share for one in left[number:])
        tell(f"{part.name}: {budget:,.0f} s")
        begun = time.monotonic()
        row = night.rows[part.name]
        log = folder / "output" / f"{part.name}.log"
        row.cases -= sum(row.skipped.values())
        row.skipped.clear()
        lacking = _lacking(part, budget, log)
        budget = max(0.0, budget - (time.monotonic() - begun))
        if part.tests:
            _run_tests(part, row, folder, budget, log)
        elif lacking is not None:
            row.skip(lacking)
            # With more time, the next call runs it.
            row.ended = _AND_HAS not in lacking
        else:
            _run_commands(part, row, night, folder, budget, log)
        row.seconds += time.monotonic() - begun
        night.keep(folder)


def _lacking(part: Part, budget: float, log: Path) -> str | None:
    """Make what the part needs, within its time. Return why it cannot be run."""
    if budget < part.least_seconds:
        return f"it takes {part.least_seconds:,.0f} s, {_AND_HAS} {budget:,.0f} s"
    if not part.needs:
        return None
    code, output = _played(["make", "--silent", *part.needs], {}, budget, budget, log)
    if code is None:
        return f"make {' '.join(part.needs)} takes longer, {_AND_HAS} {budget:,.0f} s"
    said = [line for line in output.splitlines()[2:] if line and not line.startswith("make: ")]
    return None if code == 0 else f"make {' '.join(part.needs)}: {said[-1] if said else code}"


def _run_commands(part: Part, row: Row, night: Night, folder: Path, budget: float, log: Path) -> None:
    end, turn = time.monotonic() + budget, 0
    while True:
        seed = night.seeds.get(part.name, 1)
        command = part.commands[turn % len(part.commands)].format(python=sys.executable, seed=seed).split(" ")
        code, output = _played(command, {}, end - time.monotonic(), budget, log)
        cases, failed = _counted(part, output)
        was_stopped = code is None
        if code != 0 and not was_stopped:
            # A command that fails without a failed case ended with an error of its own.
            failed = max(failed, 1)
        row.cases += max(cases, failed)
        row.failed += failed
        row.passed += max(cases - failed, 0)
        turn += 1
        # All commands of a part play the same seeds.
        if (part.seeds is not None and turn % len(part.commands) == 0) or (was_stopped and part.seeds is not None):
            night.seeds[part.name] = seed + part.seeds
        night.keep(folder)
        if part.seeds is None:
            row.ended = not was_stopped
            return
        if was_stopped or time.monotonic() >= end:
            # It has no end; its time is what it was given.
            row.ended = row.cases > 0
            return


def _counted(part: Part, output: str) -> tuple[int, int]:
    """Return the cases that a command played, and those that failed."""
    found = list(re.finditer(part.counts, output, re.MULTILINE))
    if "cases" not in re.compile(part.counts).groupindex:
        return len(found), len(re.findall(part.bad, output, re.MULTILINE)) if part.bad else 0
    if not found:
        return 0, 0
    numbers = {name: int(text.replace(",", "")) for name, text in found[-1].groupdict().items()}
    return numbers["cases"], numbers.get("failed", 0)


def _run_tests(part: Part, row: Row, folder: Path, budget: float, log: Path) -> None:
    results = folder / f"{part.name}.jsonl"
    left = results.with_name(f"{results.name}.left")
    left.unlink(missing_ok=True)
    if not row.cases:
        results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.nightly", "-q", "--tb=short"]
    command += ["--numprocesses", str(os.cpu_count() or 2), "--dist", "loadgroup", *selected(part)]
    environment = {_DEADLINE: str(time.time() + budget), _RESULTS: str(results)}
    code, _ = _played(command, environment, budget, budget, log)
    row.cases = row.passed = row.failed = 0
    row.skipped.clear()
    for one in _known(results).values():
        if one["outcome"] == "skipped":
            row.skip(one["why"])
        else:
            row.cases += 1
            row.passed += one["outcome"] == "passed"
            row.failed += one["outcome"] == "failed"
    # 5: all its tests have a result from an earlier call.
    row.ended = code in (0, 1, 5) and not left.exists()
    if code not in (0, 1, 5, None) and not row.failed:
        row.cases, row.failed = row.cases + 1, 1


def _played(
    command: Sequence[str], environment: dict[str, str], seconds: float, budget: float, log: Path
) -> tuple[int | None, str]:
    """Run a command in its own session. When its time is over, ask it to end, and after a grace kill it. Returns its exit
    code, or None if it was stopped, and its output."""
    before = log.stat().st_size if log.exists() else 0
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(command)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    grace, was_stopped = min(_MOST_GRACE_SECONDS, budget), False
    # pytest itself starts no test after the deadline, and a test that runs is not failed.
    waits = [max(seconds, 0.1) + (grace if _DEADLINE in environment else 0), grace, grace]
    try:
        for wait, number in zip(waits, (signal.SIGTERM, signal.SIGKILL, None), strict=True):
            try:
                process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                was_stopped = True
                if number is not None:
                    _signal(process, number)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()
    return None if was_stopped else process.returncode, log.read_bytes()[before:].decode(errors="replace")


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Also the children of a command: a kill test, a session of Spark."""
    try:
        if number is signal.SIGTERM:
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


# -- the plugin of pytest ----------------------------------------------------------------------------------------------


def _results() -> Path | None:
    return Path(os.environ[_RESULTS]) if _RESULTS in os.environ else None


def _known(results: Path) -> dict[str, dict[str, str]]:
    """Return the result of each test. A failure at its end counts more than its success."""
    found: dict[str, dict[str, str]] = {}
    for line in results.read_text().splitlines() if results.exists() else []:
        one = json.loads(line)
        if found.get(one["test"], {}).get("outcome") != "failed":
            found[one["test"]] = one
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that have a result from an earlier call."""
    place = _results()
    if place is None:
        return
    known = _known(place)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid.split("@")[0] in known])
    items[:] = [item for item in items if item.nodeid.split("@")[0] not in known]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > float(os.environ.get(_DEADLINE, "inf")):
        pytest.skip(_TIME_IS_OVER)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record a result as soon as it is known. With several workers, only their controlling process gets all results."""
    place = _results()
    if place is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.skipped and report.when == "setup" and _TIME_IS_OVER in str(report.longrepr):
        place.with_name(f"{place.name}.left").touch()
        return
    if report.when != "call" and not report.failed and not report.skipped:
        return
    why = ""
    if report.skipped:
        is_expected = hasattr(report, "wasxfail")
        why = (
            str(report.wasxfail)
            if is_expected
            else str(report.longrepr[2] if isinstance(report.longrepr, tuple) else "")
        )
    body = {"test": report.nodeid.split("@")[0], "outcome": report.outcome, "why": why.removeprefix("Skipped: ")}
    with place.open("a") as file:
        file.write(json.dumps(body) + "\n")


# -- the command -------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=8.0, help="of all parts together")
    parser.add_argument("--only", nargs="*", choices=[part.name for part in PARTS], help="these parts; default: all")
    parser.add_argument("--fresh", action="store_true", help="repeat what has a result on this commit")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()
    chosen = [part for part in PARTS if not options.only or part.name in options.only]
    night = Night.opened(FOLDER, commit, chosen, fresh=options.fresh)
    # Stopped from outside, it stops the running part, and keeps what is known.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run(chosen, night, FOLDER, seconds=options.hours * 3600, tell=lambda text: print(text, flush=True))
    finally:
        night.keep(FOLDER)
        table = night.table()
        (FOLDER / "table.txt").write_text(f"{table}\n")
        print(f"\n{table}\n\nthe output of each part: {FOLDER / 'output'}", flush=True)
    return 1 if any(row.failed for row in night.rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
