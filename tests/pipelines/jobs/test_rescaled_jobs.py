"""A Python job on real Spark whose state root is rescaled between batches. pandas computes its output and its state."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.host import Host
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import StorageSpec, open_storage
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.counting import ONE_JOB, V2, Job, variant
from tests.support.s3_server import S3Server
from tests.support.spark_on_s3a import environment
from tests.support.streams import Stream
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark

DECLARED = 8
"""The job declares this number in each run, also after a rescale."""


@pytest.fixture(params=[pytest.param(V2, marks=pytest.mark.slow), ONE_JOB])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    job = variant(tmp_path, request.param)
    job.partitions = DECLARED
    return job


def rescale(job: Job, partitions: int) -> None:
    given = ("--partitions", str(partitions), "--apply", "--confirm-stopped", "--scratch", str(job.folder / "scratch"))
    statekeeper("rescale", str(job.root), *given)
    assert read_binding(open_storage(str(job.root)))[0].partitions == partitions


def collect(job: Job) -> None:
    """Take snapshots, and delete all files that only older batches need."""
    options = ("--mode", "full", "--apply", "--scratch", str(job.folder / "scratch"))
    statekeeper("snapshot", str(job.root), "--at-head", "--scratch", str(job.folder / "scratch"))
    statekeeper("gc", str(job.root), "--retain", "1", "--grace", "0s", *options)


def test_a_job_continues_after_each_rescale_with_the_output_and_state_of_pandas(
    job: Job, session: SparkSession
) -> None:
    job.feed(2).run(session)
    for partitions in (20, 3, DECLARED):
        rescale(job, partitions)
        job.assert_right(job.fed)
        reports = job.feed(2).run(session)
        assert [len(report.partitions) for report in reports] == [partitions] * 2
        job.assert_right(job.fed)
    job.assert_right(8, session)
    ignored = [text for text in job.warnings if "are ignored" in text]
    assert len(ignored) == 2, "in the runs with 20 and 3 partitions"
    clean(open_storage(str(job.root)), job.folder / "scratch")


@pytest.mark.slow
def test_a_job_continues_on_a_new_host_from_a_rescaled_and_collected_root(job: Job, session: SparkSession) -> None:
    job.feed(2).run(session)
    for partitions in (3, 20):
        rescale(job, partitions)
        job.feed(2).run(session)
        collect(job)
        shutil.rmtree(job.folder / "local")
        job.feed(1).run(session)
        job.assert_right(job.fed)
    job.assert_right(8, session)
    clean(open_storage(str(job.root)), job.folder / "scratch")


@pytest.mark.slow
def test_a_job_in_a_bucket_continues_on_a_new_host_after_each_rescale(
    session: SparkSession, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(s3_server).items():
        monkeypatch.setenv(name, value)
    spec = StorageSpec(f"s3://{s3_server.make_bucket()}/state", tuple(s3_server.options.items()))
    job, twin = (Stream(session, tmp_path / name, ROWS) for name in ("job", "twin"))
    job.log = LogLayout.BATCH
    for number, partitions in enumerate((8, 2, 5)):
        for one in (job, twin):
            one.append(rows_of(*((key % 7, number) for key in range(20))))
        job.run(adding(), root=spec, partitions=5, host=Host(str(tmp_path / f"host {number}")))
        twin.run(adding(), partitions=5)
        given = (
            "--partitions",
            str(partitions),
            "--apply",
            "--confirm-stopped",
            "--scratch",
            str(tmp_path / "scratch"),
        )
        statekeeper("rescale", spec.url, *given)
    root = open_storage(spec)
    for entry in root.list(""):
        target = job.root / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(root.read(entry.path))
    assert job.output() == twin.output() != []
    assert job.state() == twin.state() != {}
