"""Claims, mirrors, clones and rewinds of jobs whose query has an offset log of v2 (Spark 4.2), with named sources and
without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from statekeeper.pipelines.batch.progress import Outcome
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.statestore.format import names
from statekeeper.statestore.format.logs import OffsetLog, parse_offsets
from tests.support.claimed_jobs import claimed_after_a_loss
from tests.support.counting import Job
from tests.support.native import configured
from tests.support.twins import statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]

V2 = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
NAMES = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}


class NamedJob(Job):
    """Its source is named."""

    def reader(self, session: SparkSession) -> DataStreamReader:
        return super().reader(session).name("orders")


def offsets(folder: Path, batch: int) -> OffsetLog:
    path = names.offsets(batch)
    return parse_offsets((folder / path).read_bytes(), path)


@pytest.fixture(params=["named", "unnamed"])
def job(request: pytest.FixtureRequest, session: SparkSession, tmp_path: Path) -> Iterator[Job]:
    is_named = request.param == "named"
    with configured(session, {**V2, **(NAMES if is_named else {})}):
        yield (NamedJob if is_named else Job)(tmp_path)


def source_of(job: Job) -> str:
    return "orders" if isinstance(job, NamedJob) else "0"


def test_a_claim_makes_a_checkpoint_from_which_a_job_continues(job: Job, session: SparkSession) -> None:
    """The job died between the sink's commit and its own."""
    claimed_after_a_loss(job, session)
    for batch in (1, 2):
        assert offsets(job.checkpoint, batch).source_metadata is not None
        assert offsets(job.checkpoint, batch).by_source == offsets(job.root, batch).by_source
        assert list(offsets(job.checkpoint, batch).by_source) == [source_of(job)]
    reports = job.feed(2).run(session)
    assert [(report.batch, report.outcome) for report in reports] == [
        (2, Outcome.TAKEN_FROM_SINK),
        (3, Outcome.COMPUTED),
        (4, Outcome.COMPUTED),
    ]
    assert offsets(job.checkpoint, 4).source_metadata is not None
    job.assert_right(5)


def shown(*arguments: str) -> dict[str, Any]:
    """Run a command, and return its JSON."""
    done = statekeeper(*arguments, "--output", "json")
    return dict(json.loads(done[done.index("{") :]))


def test_a_job_continues_from_clones_of_its_mirrors(job: Job, session: SparkSession) -> None:
    mirrors = [str(job.folder / f"mirror of {folder.name}") for folder in (job.checkpoint, job.root)]
    for batches in (1, 2):
        job.feed(1).run(session)
        for folder, mirror in zip((job.checkpoint, job.root), mirrors, strict=True):
            assert shown("mirror", str(folder), mirror)["batch"] == batches - 1
    shutil.rmtree(job.checkpoint)
    shutil.rmtree(job.root)
    shutil.rmtree(job.folder / "local")
    query_id = shown("clone", mirrors[0], str(job.checkpoint), "--new-query")["query_id"]
    statekeeper("clone", mirrors[1], str(job.root), "--query-id", query_id)
    job.sink = DeltaSink(str(job.folder / "output"), continue_at_batch=2)
    job.feed(2).run(session)
    assert list(offsets(job.checkpoint, 3).by_source) == [source_of(job)]
    job.assert_right(4)


def test_a_job_continues_after_a_rewind_and_after_its_undo(job: Job, session: SparkSession) -> None:
    job.feed(4).run(session)
    table = str(job.folder / "output")
    goal = ("--to-batch", "1", "--apply", "--confirm-stopped")
    for is_undone in (True, False):
        of_root = shown("rewind", str(job.root), *goal, "--sink", table)
        of_checkpoint = shown("rewind", str(job.checkpoint), *goal, "--query-id", of_root["query_id"])
        if is_undone:
            statekeeper("rewind", str(job.root), "--undo", of_root["run"], "--confirm-stopped")
            statekeeper("rewind", str(job.checkpoint), "--undo", of_checkpoint["run"], "--confirm-stopped")
            assert job.run(session) == []
    session.sql(of_root["sink"]["command"])
    job.sink = DeltaSink(table, continue_at_batch=2)
    job.run(session)
    assert list(offsets(job.checkpoint, 3).by_source) == [source_of(job)]
    job.assert_right(4)
