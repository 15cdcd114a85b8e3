"""A Python job on real Spark that continues on the rows of another job's savepoint, which is in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.storage import open_storage
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.s3_server import S3Server
from tests.support.spark_on_s3a import environment
from tests.support.streams import Stream
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark

LAYOUTS = [pytest.param(LogLayout.STORES, marks=pytest.mark.slow), LogLayout.BATCH]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_job_continues_from_a_loaded_savepoint_like_the_job_that_made_it(
    layout: LogLayout,
    session: SparkSession,
    s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment(s3_server).items():
        monkeypatch.setenv(name, value)
    saved, scratch = f"s3://{s3_server.make_bucket()}/orders-rows", ("--scratch", str(tmp_path / "scratch"))
    twin, job = (Stream(session, tmp_path / name, ROWS) for name in ("twin", "job"))
    job.log = twin.log = layout
    twin.append(rows_of(*((key, 1) for key in range(40))))
    twin.append(rows_of(*((key, 2) for key in range(0, 40, 3))))
    twin.run(adding())
    statekeeper("savepoint", str(twin.root), saved, "--rows", *scratch)
    # The first batch of the new job gives its root the schemas. Its state is replaced.
    job.append(rows_of((1, 1000), (99, 1000)))
    job.run(adding(), partitions=5)
    before = job.output()
    load = ("load", saved, str(job.root), "--replace-state", "--apply", "--confirm-stopped", *scratch)
    statekeeper(*load)
    assert job.state() == twin.state() != {}
    so_far = twin.output()
    for one, partitions in ((twin, 2), (job, 5)):
        for number in range(2):
            one.append(rows_of(*((key, number) for key in range(7, 60, 2 + number))))
        assert len(one.run(adding(), partitions=partitions)) == 2
    assert job.state() == twin.state()
    assert _later(job.output(), before) == _later(twin.output(), so_far) != []
    statekeeper("snapshot", str(job.root), "--at-head", *scratch)
    clean(open_storage(str(job.root)), tmp_path / "scratch")


def _later(rows: list[dict[str, object]], before: list[dict[str, object]]) -> list[dict[str, object]]:
    """The rows of the sink that are not in it `before`."""
    rest = list(rows)
    for row in before:
        rest.remove(row)
    return rest
