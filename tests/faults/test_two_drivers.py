"""Two drivers of one job in two processes, each with Spark of its own: one is paused in a batch, and continues later.

The paused one is a zombie: a driver that was suspended, while its successor went on. Whichever of both continues, no row is
lost or doubled, and the one that comes too late ends with an error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.storage import open_storage
from tests.support.counting import MERGING_AND_FILES, ONE_JOB, V2, Job, command_of, variant
from tests.support.processes import in_session, kill
from tests.support.twins import clean

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PAUSED_IN = 1
STARTS_WITHIN_SECONDS = 300


@pytest.fixture(params=[V2, ONE_JOB, MERGING_AND_FILES])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return variant(tmp_path, request.param)


class Paused:
    """A driver in its own process that is stopped when a batch enters a phase."""

    def __init__(self, job: Job, phase: Phase) -> None:
        job.local_folder = str(job.folder / "local of the zombie")
        command = command_of(job, "--stop-at", str(PAUSED_IN), phase.name)
        job.local_folder = ""
        self._said = (job.folder / "zombie.log").open("w")
        self._process = subprocess.Popen(command, stdout=self._said, stderr=self._said, start_new_session=True)
        end = time.monotonic() + STARTS_WITHIN_SECONDS
        while self._state() != "T":
            assert self._process.poll() is None, (job.folder / "zombie.log").read_text()[-4000:]
            assert time.monotonic() < end, "the driver did not get to its batch"
            time.sleep(0.05)

    def _state(self) -> str:
        stat = Path(f"/proc/{self._process.pid}/stat")
        return stat.read_text().rpartition(")")[2].split()[0]

    def continued(self) -> int:
        """Continue the driver to its end, and return its exit code."""
        os.kill(self._process.pid, signal.SIGCONT)
        return self._process.wait(300)

    def end(self) -> None:
        while left := in_session(self._process.pid):
            kill([process.id for process in left])
            time.sleep(0.02)
        self._process.wait(60)
        self._said.close()


@pytest.mark.parametrize("phase", [Phase.STARTED, Phase.COMPUTED, Phase.SINK_WRITING, Phase.SINK_WRITTEN])
def test_a_driver_that_continues_after_its_successor_changes_nothing(
    job: Job, delta_session: SparkSession, phase: Phase
) -> None:
    job.feed(2)
    zombie = Paused(job, phase)
    try:
        job.feed(2).run(delta_session)
        job.assert_right(4)
        assert zombie.continued() != 0
    finally:
        zombie.end()
    said = (job.folder / "zombie.log").read_text()
    assert "CONCURRENT_STREAM_LOG_UPDATE" in said, said[-4000:]
    job.feed(1).run(delta_session)
    job.assert_right(5, delta_session)
    clean(open_storage(str(job.root)), job.folder / "scratch")


@pytest.mark.parametrize("phase", [Phase.STARTED, Phase.COMPUTED, Phase.SINK_WRITTEN])
def test_a_successor_that_comes_while_the_first_driver_lives_on_leaves_each_row_once(
    job: Job, delta_session: SparkSession, phase: Phase
) -> None:
    """The successor ends first its batch, then the first driver its own, and then both run the same next batch."""
    job.feed(2)
    zombie = Paused(job, phase)
    try:
        job.run(delta_session)
        job.feed(2)
        zombie.continued()
        try:
            job.run(delta_session)
        except (StatekeeperError, StreamingQueryException) as error:
            print(error)
    finally:
        zombie.end()
    job.run(delta_session)
    job.assert_right(4, delta_session)
    clean(open_storage(str(job.root)), job.folder / "scratch")
