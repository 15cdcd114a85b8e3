"""The flights job in its own process, stopped and restarted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import UnsupportedEnvironment
from tests.support.flights_runs import batches_of_a_run

DAYS = 2


@pytest.mark.spark
@pytest.mark.slow
def test_a_restarted_job_ends_at_once_without_new_input_and_processes_new_input(tmp_path: Path):
    assert batches_of_a_run(tmp_path, DAYS) == list(range(DAYS))
    assert batches_of_a_run(tmp_path, DAYS) == []
    assert batches_of_a_run(tmp_path, DAYS + 1) == list(range(DAYS, DAYS + 1))


def test_a_first_start_without_a_network_names_the_jars_that_it_cannot_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    no_network = "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=1 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Duser.home={tmp_path} {no_network}")
    command = [
        sys.executable,
        "-m",
        "statekeeper.pipelines.flights.job",
        "--no-ui",
        "--folder",
        str(tmp_path / "flights"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == UnsupportedEnvironment.exit_code
    assert "it could not fetch Delta's jars -> unless they are in ~/.ivy2.5.2" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
