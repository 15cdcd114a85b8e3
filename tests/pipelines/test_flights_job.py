"""The flights job as a process of its own: ended, and started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.flights_runs import batches_of_a_run

DAYS = 2


@pytest.mark.spark
def test_a_job_that_has_read_all_that_was_fed_ends_at_once_when_started_again_and_goes_on_with_more(tmp_path: Path):
    assert batches_of_a_run(tmp_path, DAYS) == list(range(DAYS))
    assert batches_of_a_run(tmp_path, DAYS) == []
    assert batches_of_a_run(tmp_path, DAYS + 1) == list(range(DAYS, DAYS + 1))
