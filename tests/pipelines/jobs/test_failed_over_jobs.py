"""The failover drill of a Python job with a Delta sink: checkpoint and state root vanish during a batch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.statestore.base.errors import SinkChanged, StatekeeperError
from tests.support.counting import Job, Watching
from tests.support.twins import statekeeper

pytestmark = pytest.mark.spark
MIRRORED, LOST, BATCHES = 1, 3, 4


class FailedOver(Job):
    """The job with the clones of both mirrors."""

    @property
    def root(self) -> Path:
        return self.folder / "new root"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "new checkpoint"


def mirrored(job: Job) -> None:
    """Mirror the checkpoint, then the state root at the same batch."""
    done = statekeeper("mirror", str(job.checkpoint), str(job.folder / "mirror of checkpoint"), "--output", "json")
    batch = json.loads(done[done.index("{") :])["batch"]
    assert batch == MIRRORED
    statekeeper("mirror", str(job.root), str(job.folder / "mirror of root"), "--batch", str(batch))


@pytest.mark.slow
def test_a_job_continues_from_the_mirrors_and_writes_each_row_once_after_a_restore_of_its_table(
    job: Job, session: SparkSession
) -> None:
    def act(batch: int, phase: Phase) -> None:
        if (batch, phase) == (MIRRORED + 1, next(iter(Phase))):
            mirrored(job)
        elif batch == LOST:
            shutil.rmtree(job.checkpoint, ignore_errors=True)
            shutil.rmtree(job.root, ignore_errors=True)
            raise OSError("the bucket does not exist")

    with pytest.raises((StatekeeperError, StreamingQueryException, OSError)):
        job.feed(BATCHES).run(session, Watching(act))
    shutil.rmtree(job.folder / "local", ignore_errors=True)
    new = FailedOver(job.folder, structure=job.structure, log=job.log, writer=job.writer)
    done = statekeeper(
        *("clone", str(job.folder / "mirror of checkpoint"), str(new.checkpoint), "--new-query", "--output", "json")
    )
    query_id = json.loads(done[done.index("{") :])["query_id"]
    statekeeper("clone", str(job.folder / "mirror of root"), str(new.root), "--query-id", query_id)
    table = str(job.folder / "output")
    # Version 0 creates the table.
    versions = session.sql(f"DESCRIBE HISTORY delta.`{table}`").select("version").collect()
    assert len(versions) > MIRRORED + 1
    session.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {MIRRORED + len(versions) - LOST}")
    with pytest.raises(SinkChanged, match=f"continue_at_batch={MIRRORED + 1}"):
        new.run(session)
    new.sink = DeltaSink(table, continue_at_batch=MIRRORED + 1, writer=new.writer)
    new.run(session)
    new.assert_right(BATCHES)
