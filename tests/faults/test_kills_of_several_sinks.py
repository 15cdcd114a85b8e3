"""A job with a merging sink, a sink whose files the tasks write, and batch logs: `kill -9` in each phase in turn.

Every run of the job is a process of its own. The next run continues what the dead one left, and dies one phase later.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.statestore.storage import open_storage
from tests.support.counting import MERGING_AND_FILES, Job, command_of, in_a_process, variant
from tests.support.processes import in_session, kill
from tests.support.twins import clean

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

RANDOM_KILLS = 6
LONGEST_SECONDS = 25.0


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return variant(tmp_path, MERGING_AND_FILES)


def batches_in(table: Path) -> list[int]:
    """Return the batches that the commits of a table name, oldest first."""
    notes = [commit["userMetadata"] for commit in DeltaTable(str(table)).history() if "userMetadata" in commit]
    return [json.loads(note)["statekeeper"]["batch"] for note in reversed(notes)]


def assert_each_batch_is_there_once(job: Job, session: SparkSession) -> None:
    job.assert_right(job.fed, session)
    for table in ("output", "again"):
        assert batches_in(job.folder / table) == list(range(job.fed)), table
    clean(open_storage(str(job.root)), job.folder / "scratch")


def test_a_job_that_is_killed_in_each_phase_has_each_batch_once_in_state_and_both_sinks(
    job: Job, delta_session: SparkSession
) -> None:
    job.feed(1)
    in_a_process(job)
    for phase in Phase:
        job.feed(1)
        in_a_process(job, "--kill-at", str(job.fed - 1), phase.name, code=-signal.SIGKILL)
    job.feed(1)
    in_a_process(job, "--kill-between-sinks-of", str(job.fed - 1), code=-signal.SIGKILL)
    assert [batches_in(job.folder / table)[-1] for table in ("output", "again")] == [job.fed - 1, job.fed - 2]
    job.feed(1)
    in_a_process(job)
    assert_each_batch_is_there_once(job, delta_session)


def test_a_job_that_is_killed_at_any_moment_has_each_batch_once_in_state_and_both_sinks(
    job: Job, delta_session: SparkSession
) -> None:
    """With all processes of its session, at a random time."""
    chance = random.Random(7)
    for _ in range(RANDOM_KILLS):
        job.feed(2)
        started = subprocess.Popen(
            command_of(job), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            started.wait(chance.uniform(3.0, LONGEST_SECONDS))
        except subprocess.TimeoutExpired:
            kill([process.id for process in in_session(started.pid)])
            started.wait(60)
        while left := in_session(started.pid):
            kill([process.id for process in left])
            time.sleep(0.02)
    job.feed(1).run(delta_session)
    assert_each_batch_is_there_once(job, delta_session)
