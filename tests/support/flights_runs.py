"""Runs of the flights job in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def batches_of_a_run(folder: Path, days: int, seconds: float = 180) -> list[int]:
    """Run the job until this number of days is read. Return the batches that this run finished."""
    command = [sys.executable, "-m", "tests.faults.flights_under_fire", "--folder", str(folder), "--days", str(days)]
    log = folder / "fire.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{days} of {days} days" in done.stdout
    return [json.loads(line)["batch"] for line in log.read_text().splitlines()[before:]]
