"""Every verb on a few damaged checkpoints, in CI; `make fuzz` runs two thousand. The harness must detect failures.

It runs in its own process, because it forks for each case, and this process may have threads of RocksDB.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fuzz.controls import CONTROLS

CASES = 12
"""The first of the two thousand."""


def played(results: Path, *options: object) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    command = [sys.executable, "-m", "tests.faults.fuzz", "--results", results, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done, [json.loads(line) for line in results.read_text().splitlines()]


def test_with_any_damage_no_verb_crashes_hangs_writes_elsewhere_or_loses_a_head(tmp_path: Path) -> None:
    done, cases = played(tmp_path / "results", "--cases", CASES)
    assert done.returncode == 0, done.stdout
    assert sorted(one["case"] for one in cases) == list(range(CASES))
    assert sum(one["heads"] for one in cases) > CASES
    verbs = {verb for one in cases for verb, _ in one["calls"]}
    assert verbs >= {"inspect", "audit --deep", "dump", "diff", "gc", "snapshot", "repair", "switch"}


@pytest.mark.slow
def test_a_seed_and_number_reproduce_a_case_and_a_stopped_run_resumes(tmp_path: Path) -> None:
    def without_times(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**one, "seconds": None, "peak_bytes": None} for one in sorted(cases, key=lambda one: one["case"])]

    own = ("--roots", "own-v2", "--seed", "7")
    _, first = played(tmp_path / "first", "--cases", 2, *own)
    assert [one["case"] for one in first] == [0, 1]
    assert first[0]["done"] != first[1]["done"]
    _, again = played(tmp_path / "again", "--cases", 1, *own)
    done, again = played(tmp_path / "again", "--cases", 2, *own)
    assert "1 cases are known" in done.stdout
    assert without_times(again) == without_times(first)


_IN_CI = ("loss",)


@pytest.mark.parametrize(
    "fault", [fault if fault in _IN_CI else pytest.param(fault, marks=pytest.mark.slow) for fault in CONTROLS]
)
def test_a_fault_injected_into_the_library_is_found(fault: str, tmp_path: Path) -> None:
    done, cases = played(tmp_path / "results", "--cases", 1, "--roots", "own-v2", "--seed", "7", "--break", fault)
    assert done.returncode == 1
    *_, kind = CONTROLS[fault]
    assert kind in {found for one in cases for found, *_ in one["failures"]}
