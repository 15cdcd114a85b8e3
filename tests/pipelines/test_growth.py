"""The memory, requests and messages of a job do not grow with its batches, nor per task with its partitions."""

from __future__ import annotations

import gc
import pickletools
import uuid

import pytest
from pyspark.accumulators import _accumulatorRegistry
from pyspark.cloudpickle import dumps

from pipelines.assignments import Assignments
from pipelines.progress import BatchReport
from pipelines.reports import PartitionReport
from statestore.format.names import StorePath, VersionId
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.streams import Seen, Stream


@pytest.fixture
def stream(delta_session, tmp_path):
    return Stream(delta_session, tmp_path, ROWS)


class Keeping(Seen):
    """Counts what this process keeps after each batch, and keeps nothing of the batch itself."""

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
    # What earlier tests of this process left may go meanwhile; what comes with a batch must go with it.
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
    # What it receives grows, and is copied without being looked at: not a tenth of a kilobyte a version.
    assert len(dumps(_assigned(1000))) < 100 * 2 * 4 * 1000
