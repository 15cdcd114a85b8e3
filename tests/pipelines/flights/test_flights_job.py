"""The flights job in its own process, stopped and restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.flights_runs import batches_of_a_run

DAYS = 2


@pytest.mark.spark
@pytest.mark.slow
def test_a_restarted_job_ends_at_once_without_new_input_and_processes_new_input(tmp_path: Path):
    assert batches_of_a_run(tmp_path, DAYS) == list(range(DAYS))
    assert batches_of_a_run(tmp_path, DAYS) == []
    assert batches_of_a_run(tmp_path, DAYS + 1) == list(range(DAYS, DAYS + 1))
