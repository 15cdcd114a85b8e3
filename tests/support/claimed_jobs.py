"""A job whose checkpoint was lost, and made again by a claim."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.statestore.base.errors import ForeignRoot
from tests.support.counting import Job, once
from tests.support.twins import statekeeper


def claimed_after_a_loss(job: Job, session: SparkSession) -> None:
    """Let the job die in its third batch, between the commits of sink and root. Lose the checkpoint, and claim the root."""
    job.feed(3)
    with pytest.raises(ZeroDivisionError):
        job.run(session, once(2, Phase.SINK_WRITTEN, lambda: 1 // 0))
    shutil.rmtree(job.checkpoint)
    with pytest.raises(ForeignRoot, match="statekeeper claim"):
        job.run(session)
    shutil.rmtree(job.checkpoint)
    statekeeper("claim", str(job.root), "--checkpoint", str(job.checkpoint), "--apply", "--confirm-stopped")
