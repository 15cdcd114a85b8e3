"""Tasks of several partitions: each partition has its own rows, whatever the number of tasks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.task.partitioning import Partitioning
from statekeeper.statestore.base.errors import UnsupportedEnvironment
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.streams import Seen, Stream

GROUP = pa.schema([("row", pa.int64()), ("group", pa.int32())])


@st.composite
def partitionings(draw):
    key_groups = draw(st.integers(1, 300))
    partitions = draw(st.integers(1, key_groups))
    return Partitioning(partitions, key_groups, draw(st.integers(1, partitions)))


@given(partitionings())
def test_each_partition_is_of_one_task_and_no_task_is_empty(partitioning):
    tasks = [list(partitioning.partitions_of(task)) for task in range(partitioning.tasks)]
    assert [partition for task in tasks for partition in task] == list(range(partitioning.partitions))
    assert max(map(len, tasks)) - min(map(len, tasks)) <= 1


@given(partitionings(), st.integers(0, 2**32), st.integers(1, 50), st.integers(1, 20))
def test_the_rows_of_a_task_are_split_into_groups_of_adjacent_partitions(partitioning, seed, rows_per_batch, together):
    groups = np.sort(np.random.default_rng(seed).integers(0, partitioning.key_groups, 100))
    partition_of = groups * partitioning.partitions // partitioning.key_groups
    found = {}
    for task in range(partitioning.tasks):
        mine = np.isin(partition_of, list(partitioning.partitions_of(task)))
        table = pa.table([np.flatnonzero(mine), groups[mine].astype(np.int32)], schema=GROUP)
        batches = table.to_batches(max_chunksize=rows_per_batch)
        for group, rows in partitioning.split(batches, task, 1, together=together):
            assert 1 <= len(group) <= together
            found[group] = [row for batch in rows for row in batch.column("row").to_pylist()]
    assert [partition for group in found for partition in group] == list(range(partitioning.partitions))
    assert found == {group: np.flatnonzero(np.isin(partition_of, list(group))).tolist() for group in found}


def test_rows_of_another_task_are_an_error():
    partitioning = Partitioning(4, 4, 2)
    batch = pa.record_batch([[1, 2], pa.array([0, 3], pa.int32())], schema=GROUP)
    with pytest.raises(AssertionError, match="task 0 has rows of partition 3"):
        [list(batches) for _, batches in partitioning.split([batch], 0, 1)]


@pytest.fixture
def stream(delta_session, tmp_path):
    stream = Stream(delta_session, tmp_path, ROWS)
    for value in range(3):
        stream.append(rows_of(*((key, value) for key in range(20))))
    return stream


@pytest.mark.spark
def test_output_and_state_do_not_depend_on_the_number_of_tasks(stream, delta_session, tmp_path):
    twin = Stream(delta_session, tmp_path / "twin", ROWS)
    twin.table = stream.table
    tracker = delta_session.sparkContext.statusTracker()
    started = {}

    def count(batch, phase):
        if phase is Phase.COMPUTED:
            group = delta_session.sparkContext.getLocalProperty("spark.jobGroup.id")
            stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
            infos = [tracker.getStageInfo(stage) for stage in sorted(stages)]
            started[batch] = [info.numTasks for info in infos if info is not None]

    reports = stream.run(adding(), partitions=7, tasks=3, seen=Seen(count))
    assert [len(report.partitions) for report in reports] == [7, 7, 7]
    assert [started[batch][-1] for batch in range(3)] == [3, 3, 3], started
    twin.run(adding(), partitions=7, tasks=7)
    assert stream.output() == twin.output() != []
    assert stream.state() == twin.state() != {}


@pytest.mark.spark
def test_a_restarted_query_continues_with_another_number_of_tasks(stream):
    stream.run(adding(), partitions=7, tasks=1)
    stream.append(rows_of(*((key, 10) for key in range(20))))
    stream.run(adding(), partitions=7, tasks=100)
    stream.append(rows_of((1, 10)))
    [report] = stream.run(adding(), partitions=7)
    assert [of.partition for of in report.partitions] == list(range(7))
    assert len(stream.output()) == 4 * 20 + 1


@pytest.mark.spark
@pytest.mark.parametrize("asked", [0, -1])
def test_fewer_tasks_than_one_are_rejected(stream, asked):
    with pytest.raises(UnsupportedEnvironment, match=f"{asked} is less than 1 -> use at least 1 task"):
        stream.run(adding(), tasks=asked)
