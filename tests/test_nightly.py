"""`make nightly` runs all that CI leaves out, within its time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import nightly
from tests.nightly import PARTS, REPOSITORY, Night, Part, Row, run, selected

NO_TESTS = {"env", "run", "platform", "lint", "lock", "sparks", "pictures", "docs", "docs-serve"}
OF_CI = {"test"}


def test_each_target_of_the_makefile_that_tests_is_a_part_of_the_night() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert targets - NO_TESTS - OF_CI - {"nightly"} == {part.name for part in PARTS}


def test_each_file_with_a_slow_test_belongs_to_one_part() -> None:
    files = [path for path in (REPOSITORY / "tests").rglob("*.py") if re.search(r"mark\.slow|= SLOW", path.read_text())]
    assert len(files) > 60
    for file in files:
        homes = []
        for part in PARTS:
            chosen = selected(part) if part.tests else []
            ignored = [one.removeprefix("--ignore=") for one in chosen if one.startswith("--ignore=")]
            is_in = any(file.is_relative_to(REPOSITORY / path) for path in part.tests)
            if is_in and not any(file.is_relative_to(REPOSITORY / path) for path in ignored):
                homes.append(part.name)
        assert len(homes) == 1, (file, homes)


def test_each_module_and_file_that_a_part_names_exists() -> None:
    for part in PARTS:
        for path in part.tests:
            assert (REPOSITORY / path).exists(), path
        for command in part.commands:
            module = REPOSITORY / command.split()[2].replace(".", "/")
            assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), command


def _python(code: str) -> str:
    return "{python} -c " + code


COUNTED = r"^(?P<cases>\d+) of (?P<failed>\d+)$"


def test_a_part_plays_new_seeds_until_its_time_is_over_and_the_table_counts_its_cases(tmp_path: Path) -> None:
    part = Part("many", 1, (_python("print({seed},'of',0)"),), seeds=3, counts=COUNTED)
    night = Night("a commit")
    run([part], night, tmp_path, seconds=0.5, tell=print)
    row = night.rows["many"]
    assert row.ended
    assert row.cases == row.passed >= 1
    played = re.findall(r"^(\d+) of 0$", (tmp_path / "output" / "many.log").read_text(), re.MULTILINE)
    assert [int(seed) for seed in played] == list(range(1, 3 * len(played), 3))
    again = Night.opened(tmp_path, "a later commit", [part], fresh=False)
    assert (again.rows, again.seeds) == ({}, {"many": 3 * len(played) + 1})


def test_a_part_that_takes_too_long_is_stopped_and_goes_on_with_the_next_call(tmp_path: Path) -> None:
    sleeps = Part("long", 1, (_python("import\ttime;print('a-case',flush=True);time.sleep(60)"),), counts=r"^a-case$")
    night, begun = Night("a commit"), time.monotonic()
    run([sleeps], night, tmp_path, seconds=0.5, tell=print)
    assert time.monotonic() - begun < 30
    assert night.rows["long"].cases == 1
    assert not night.rows["long"].ended
    assert "the next call continues it" in night.table()
    assert Night.opened(tmp_path, "a commit", [sleeps], fresh=False).rows == night.rows
    assert Night.opened(tmp_path, "a commit", [sleeps], fresh=True).rows == {}


def test_a_command_that_fails_and_a_tool_that_is_missing_are_in_the_table(tmp_path: Path) -> None:
    fails = Part("fails", 1, (_python("print(7,'of',2);exit(1)"),), counts=COUNTED)
    dies = Part("dies", 1, (_python("exit(3)"),), counts=COUNTED)
    lacks = Part("lacks", 1, (_python("pass"),), counts=COUNTED, needs=("no-such-target",))
    large = Part("large", 1, (_python("pass"),), counts=COUNTED, least_seconds=3600)
    night = Night("a commit")
    run([fails, dies, lacks, large], night, tmp_path, seconds=60, tell=print)
    assert night.rows["fails"] == Row(7, 5, 2, seconds=night.rows["fails"].seconds, ended=True)
    assert night.rows["dies"].failed == 1
    assert [list(night.rows[name].skipped.values()) for name in ("lacks", "large")] == [[1], [1]]
    lines = night.table().splitlines()
    assert lines[0].split() == ["part", "cases", "passed", "failed", "skipped", "seconds"]
    assert any("it takes 3,600 s" in line for line in lines)
    assert lines[-1].split()[:5] == ["together", "10", "5", "3", "2"]


TESTS = """
import pytest
def test_one(): pass
def test_two(): assert False
def test_three(): pytest.skip("no such tool")
@pytest.fixture
def broken():
    yield
    raise ValueError
def test_four(broken): pass
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_results_of_tests_are_kept_and_only_those_without_a_result_run_again(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    results = tmp_path / "results.jsonl"

    def pytest_runs(deadline: float) -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.nightly", "-p", "no:cacheprovider"]
        command += [f"--numprocesses={workers}", f"--rootdir={tmp_path}", str(tmp_path)]
        environment = {
            "PYTHONPATH": str(REPOSITORY),
            nightly._DEADLINE: str(time.time() + deadline),
            nightly._RESULTS: str(results),
        }
        done = subprocess.run(
            command, env={**_outside(), **environment}, cwd=tmp_path, capture_output=True, check=False
        )
        return done.returncode

    assert pytest_runs(-1) == 0
    assert not results.exists()
    assert results.with_name("results.jsonl.left").exists()
    assert pytest_runs(600) == 1
    found = {test.rpartition("::")[2]: one for test, one in nightly._known(results).items()}
    assert {name: one["outcome"] for name, one in found.items()} == {
        "test_one": "passed",
        "test_two": "failed",
        "test_three": "skipped",
        "test_four": "failed",
    }
    assert found["test_three"]["why"] == "no such tool"
    before = results.read_text()
    assert pytest_runs(600) == 5
    assert results.read_text() == before
    assert json.loads(before.splitlines()[0])


def _outside() -> dict[str, str]:
    """The environment without what pytest and its workers set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
