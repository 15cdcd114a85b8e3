"""A Python job whose checkpoint was deleted continues from a checkpoint that a claim has made from its state root."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.progress import Outcome
from statekeeper.pipelines.sinks.sink import DeltaSink
from tests.support.claimed_jobs import claimed_after_a_loss
from tests.support.counting import Job
from tests.support.twins import statekeeper

pytestmark = pytest.mark.spark


def test_a_job_continues_after_the_loss_of_its_checkpoint(job: Job, session: SparkSession) -> None:
    """The job died between the sink's commit and its own: the batch is taken from the sink, and not written again."""
    claimed_after_a_loss(job, session)
    reports = job.feed(2).run(session)
    assert [(report.batch, report.outcome) for report in reports] == [
        (2, Outcome.TAKEN_FROM_SINK),
        (3, Outcome.COMPUTED),
        (4, Outcome.COMPUTED),
    ]
    job.assert_right(5)


@pytest.mark.slow
def test_a_job_continues_with_another_query_id(job: Job, session: SparkSession) -> None:
    job.feed(3).run(session)
    shutil.rmtree(job.checkpoint)
    new = ("--query-id", "0badc0de-0000-4000-8000-00000000000a")
    statekeeper("claim", str(job.root), "--checkpoint", str(job.checkpoint), *new, "--apply", "--confirm-stopped")
    job.sink = DeltaSink(str(job.folder / "output"), continue_at_batch=3, writer=job.writer)
    job.feed(2).run(session)
    job.assert_right(5)
