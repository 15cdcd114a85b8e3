"""The memory, requests and messages of a job do not grow with its batches, nor per task with its partitions."""

from __future__ import annotations

import gc
import pickletools
import uuid

import pytest
from pyspark.accumulators import _accumulatorRegistry
from pyspark.cloudpickle import dumps

from statekeeper.pipelines.batch.progress import BatchReport
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.reports import PartitionReport
from statekeeper.statestore.format.names import StorePath, VersionId
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.streams import Seen, Stream


@pytest.fixture
def stream(delta_session, tmp_path):
    return Stream(delta_session, tmp_path, ROWS)


class Keeping(Seen):
    """Counts the objects of this process after each batch, and keeps nothing of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.accumulators: list[int] = []
        self.reports: list[int] = []

    def finished(self, report: BatchReport) -> None:
        gc.collect()
        self.accumulators.append(len(_accumulatorRegistry))
        self.reports.append(sum(isinstance(one, PartitionReport) for one in gc.get_objects()))


@pytest.mark.spark
def test_a_driver_keeps_no_reports_of_the_batches_before(stream):
    """The reports of a task come by an accumulator, which PySpark keeps for as long as the driver lives."""
    for value in range(4):
        stream.append(rows_of((1, value), (2, value)))
    keeping = Keeping()
    stream.run(adding(), seen=keeping)
    assert len(keeping.reports) == 4
    # Objects of earlier tests may disappear meanwhile. Those of a batch must disappear with it.
    assert keeping.accumulators == sorted(keeping.accumulators, reverse=True)
    assert keeping.reports == sorted(keeping.reports, reverse=True)


def _assigned(partitions: int) -> Assignments:
    def version(number: int) -> VersionId:
        return VersionId(number, str(uuid.uuid4()))

    bases = {operator: tuple(version(900) for _ in range(partitions)) for operator in range(2)}
    snapshots = {
        StorePath(operator, partition): frozenset(version(number) for number in (700, 800, 850))
        for operator in range(2)
        for partition in range(partitions)
    }
    return Assignments.of(bases, snapshots)


def test_the_unpickled_objects_of_a_task_do_not_depend_on_the_number_of_partitions():
    few, many = (sum(1 for _ in pickletools.genops(dumps(_assigned(partitions)))) for partitions in (10, 1000))
    assert many <= 1.3 * few
    # The bytes that a task receives grow by less than 100 per version. They are copied and not parsed.
    assert len(dumps(_assigned(1000))) < 100 * 2 * 4 * 1000
