"""A batch whose tasks write the files of a Delta table: one Spark job, and the output and state of Spark's writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.pipelines import DeltaSink, NoSink
from statekeeper.pipelines.batch.progress import Outcome, Phase
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.base.errors import HotKey
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.streams import Seen, Stream

pytestmark = pytest.mark.spark


@pytest.fixture(
    params=[pytest.param(LogLayout.STORES, marks=pytest.mark.slow), LogLayout.BATCH], ids=lambda log: log.value
)
def stream(delta_session, tmp_path, request):
    stream = Stream(delta_session, tmp_path, ROWS)
    stream.log, stream.writer = request.param, Writer.TASKS
    return stream


def test_output_and_state_of_files_equal_those_of_rows_and_each_batch_is_one_job(stream, delta_session, tmp_path):
    twin = Stream(delta_session, tmp_path / "twin", ROWS)
    for job in (stream, twin):
        for value in range(3):
            job.append(rows_of(*((key % 7, value) for key in range(20))))
    sinks = [DeltaSink(job.facts, writer=job.writer, partition_by=["key"]) for job in (stream, twin)]
    jobs: dict[tuple[int, Phase], set[int]] = {}
    tracker = delta_session.sparkContext.statusTracker()

    def look(batch, phase):
        run = delta_session.sparkContext.getLocalProperty("spark.jobGroup.id")
        jobs[batch, phase] = set(tracker.getJobIdsForGroup(run))

    stream.run(adding(), seen=Seen(look), sink=sinks[0])
    of_batch = [jobs[batch, Phase.COMMITTED] - jobs[batch, Phase.STARTED] for batch in range(3)]
    assert [len(found) for found in of_batch] == [1, 1, 1]
    twin.run(adding(), sink=sinks[1])
    assert stream.output() == twin.output() != []
    assert stream.state() == twin.state() != {}
    read = [delta_session.read.format("delta").load(job.facts) for job in (stream, twin)]
    assert [frame.where("key = 3").count() for frame in read] == [3, 3]
    assert read[0].schema == read[1].schema


@pytest.mark.parametrize("dies_at", [Phase.COMPUTED, Phase.PENDING_WRITTEN, Phase.SINK_WRITTEN])
def test_a_driver_that_dies_around_the_commit_of_files_leaves_state_and_sink_equal(stream, dies_at):
    for value in (10, -1):
        stream.append(rows_of((1, value), (2, value)))

    def died(batch, phase):
        if (batch, phase) == (1, dies_at):
            raise RuntimeError("the driver died")

    with pytest.raises(Exception, match="died"):
        stream.run(adding(), seen=Seen(died))
    reports = stream.run(adding())
    taken = dies_at is Phase.SINK_WRITTEN
    assert [report.outcome for report in reports] == [Outcome.TAKEN_FROM_SINK if taken else Outcome.COMPUTED]
    assert stream.state() == {(1,): (2, 9), (2,): (2, 9)}
    assert [row["total"] for row in stream.output()] == [10, 9, 10, 9]


def test_an_error_of_a_task_is_raised_by_name_and_leaves_no_file(stream):
    def fails(rows, state):
        raise HotKey("too many rows", hint="split it")

    stream.append(rows_of((1, 1)))
    with pytest.raises(HotKey, match="too many rows"):
        stream.run(adding(fails))
    assert stream.output() == []
    stream.run(adding())
    assert stream.state() == {(1,): (1, 1)}


@pytest.mark.parametrize(
    "dies_at",
    [
        pytest.param(Phase.COMPUTED, marks=pytest.mark.slow),
        pytest.param(Phase.PENDING_WRITTEN, marks=pytest.mark.slow),
        Phase.SINK_WRITTEN,
    ],
)
def test_a_job_without_a_sink_has_the_state_of_a_job_with_one(stream, delta_session, tmp_path, dies_at, caplog):
    twin = Stream(delta_session, tmp_path / "twin", ROWS)
    for job in (stream, twin):
        for value in range(3):
            job.append(rows_of(*((key % 7, value) for key in range(20))))

    def died(batch, phase):
        if (batch, phase) == (1, dies_at):
            raise RuntimeError("the driver died")

    with pytest.raises(Exception, match="died"):
        stream.run(adding(), seen=Seen(died), sink=NoSink())
    reports = stream.run(adding(), sink=NoSink())
    assert [report.outcome for report in reports] == [Outcome.COMPUTED, Outcome.COMPUTED]
    twin.run(adding())
    assert stream.state() == twin.state() != {}
    assert not Path(stream.facts).exists()
    assert "at-least-once" not in caplog.text
