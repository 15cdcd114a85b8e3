"""The flights job as a process of its own: ended, and started again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DAYS = 2


def batches_of_a_run(folder: Path, days: int, seconds: float = 180) -> list[int]:
    """Run the job until so many days are read; the batches that this run finished."""
    command = [sys.executable, "-m", "tests.faults.flights_under_fire", "--folder", str(folder), "--days", str(days)]
    log = folder / "fire.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{days} of {days} days" in done.stdout
    return [json.loads(line)["batch"] for line in log.read_text().splitlines()[before:]]


@pytest.mark.spark
def test_a_job_that_has_read_all_that_was_fed_ends_at_once_when_started_again_and_goes_on_with_more(tmp_path: Path):
    assert batches_of_a_run(tmp_path, DAYS) == list(range(DAYS))
    assert batches_of_a_run(tmp_path, DAYS) == []
    assert batches_of_a_run(tmp_path, DAYS + 1) == list(range(DAYS, DAYS + 1))
