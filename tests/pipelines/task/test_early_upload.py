"""A task uploads a large changelog while the update function runs. The tests call the task without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statekeeper.pipelines.batch.progress import BatchReport, Outcome
from statekeeper.pipelines.operator.declaration import Pieces, StatefulOperator, Update
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.batch_log import LogLayout, part_of
from statekeeper.pipelines.task.partitioning import GROUP_COLUMN, Partitioning
from statekeeper.pipelines.task.reports import PartitionReport, TaskReport
from statekeeper.pipelines.task.task_outputs import TaskOutputs
from statekeeper.pipelines.task.work import Task, TaskPlan, Worker
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.format.state_rows import decode_values
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.times import BatchTimes
from statekeeper.statestore.storage import TEMP_FOLDER, StorageSpec, open_storage
from statekeeper.statestore.storage.query_metrics import QueryMetrics
from statekeeper.statestore.store.engine.sweep import SweepLimits
from statekeeper.statestore.store.state_store import StateStore, StoreAddress, StoreLimits
from tests.support.s3_server import S3Server, Wire

PART_BYTES = 64 * 1024
KEYS = 2_000
ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64())])
STATE = pa.schema([("blob", pa.binary())])
OUTPUT = pa.schema([("key", pa.int64())])
STORE = StorePath(0, 0)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART_BYTES)


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket()


@pytest.fixture(params=["local", "s3"])
def spec(request: pytest.FixtureRequest, tmp_path: Path, s3_server: S3Server, bucket: str) -> StorageSpec:
    if request.param == "local":
        return StorageSpec(str(tmp_path / "root"))
    return StorageSpec(f"s3://{bucket}/root", tuple(s3_server.options.items()))


class Reports:
    def __init__(self) -> None:
        self.all: list[PartitionReport] = []

    def add(self, report: TaskReport) -> None:
        self.all += report.partitions


def of_batch(outcome: Outcome, *partitions: PartitionReport) -> BatchReport:
    return BatchReport(
        batch=0,
        outcome=outcome,
        attempts=len(partitions),
        partitions=partitions,
        milliseconds={},
        driver_requests=0,
        metrics=QueryMetrics(batches=1, seconds=1.0),
    )


def run(
    spec: StorageSpec, folder: Path, called: Callable[[int], None], *, structure: Structure, in_batch_log: bool = False
) -> PartitionReport:
    """Run a task of one partition, which calls the update function ten times. `called` gets the number of the call."""
    calls = iter(range(1000))

    def update(rows: pa.Table, state: pa.Table) -> Update:
        called(next(calls))
        keys = rows.column("key").to_pylist()
        blobs = [random.Random(key).randbytes(500) for key in keys]
        new = pa.table({"key": pa.array(keys, pa.int64()), "blob": pa.array(blobs, pa.binary())})
        return Update(new.select(["key"]), new)

    operator = StatefulOperator(
        ["key"], ["value"], state=STATE, output=OUTPUT, update=update, pieces=Pieces(rows=KEYS // 10)
    )
    reports = Reports()
    plan = TaskPlan(
        root=spec,
        root_id="root",
        local_folder=str(folder / "local"),
        operator=operator,
        row_columns=ROWS,
        partitioning=Partitioning(1, 1, 1),
        assignments=Assignments.of({0: (EMPTY,)}, {}),
        rewrites={},
        structure=structure,
        batch_log=part_of(LogLayout.BATCH, RandomIds().fresh(), 1) if in_batch_log else None,
        limits=StoreLimits(part_bytes=PART_BYTES),
        times=BatchTimes(batch=0, time_ms=0),
        sweep=SweepLimits(),
        output=TaskOutputs(rows=operator.outputs, reporter=reports),
    )
    numbers = pa.array(np.arange(KEYS))
    rows = pa.table([numbers, numbers], schema=ROWS).append_column(GROUP_COLUMN, pa.array(np.zeros(KEYS, np.int32)))
    for _ in Task(plan, 0, Worker.of(plan)).run(iter(rows.to_batches(max_chunksize=KEYS // 10))):
        pass
    (report,) = reports.all
    return report


def values(spec: StorageSpec, folder: Path, report: PartitionReport) -> Iterator[bytes]:
    """Read the state of a version on a host without local copies."""
    store = StateStore.load(
        StoreAddress(STORE, folder),
        report.stores[0].new,
        storage=open_storage(spec),
        clock=SystemClock(),
        ids=RandomIds(),
        structure=Structure.V1 if report.stores[0].new.id is None else Structure.V2,
    )
    with store:
        for _, value in store.scan():
            yield decode_values(pa.array([value], pa.large_binary()), STATE).column("blob")[0].as_py()


@pytest.mark.parametrize("in_batch_log", [False, True])
def test_most_bytes_of_a_large_changelog_are_in_storage_before_the_commit(
    spec: StorageSpec, tmp_path: Path, structure: Structure, in_batch_log: bool
) -> None:
    if in_batch_log and structure is Structure.V1:
        pytest.skip("structure V1 has no batch logs")
    storage = open_storage(spec)
    sizes: list[int] = []

    def called(number: int) -> None:
        assert storage.list(STORE.folder) == [], "nothing is visible before the commit"
        parts = [*storage.unfinished_uploads(), *storage.list(TEMP_FOLDER)]
        sizes.append(sum(one.size_bytes for one in parts))

    report = run(spec, tmp_path, called, structure=structure, in_batch_log=in_batch_log)
    assert sizes[0] == 0 < sizes[5] < sizes[9], "parts arrive while the update function runs"
    (store,) = report.stores
    assert store.commit.uploaded_bytes > 15 * PART_BYTES
    assert store.commit.early_bytes >= 0.8 * store.commit.uploaded_bytes
    batch = of_batch(Outcome.COMPUTED, report)
    assert batch.early_upload_share == store.commit.early_bytes / store.commit.uploaded_bytes
    assert batch.back_pressure_seconds == store.commit.back_pressure_seconds >= 0
    assert store.member is None
    assert set(values(spec, tmp_path / "other host", report)) == {random.Random(n).randbytes(500) for n in range(KEYS)}
    assert storage.unfinished_uploads() == [] == storage.list(TEMP_FOLDER)


def test_an_update_function_that_fails_leaves_nothing(spec: StorageSpec, tmp_path: Path, structure: Structure) -> None:
    storage = open_storage(spec)

    def called(number: int) -> None:
        if number == 9:
            assert [*storage.unfinished_uploads(), *storage.list(TEMP_FOLDER)] != []
            raise RuntimeError("of the update function")

    with pytest.raises(RuntimeError, match="of the update function"):
        run(spec, tmp_path, called, structure=structure)
    assert storage.list("") == [] == storage.unfinished_uploads() == storage.list(TEMP_FOLDER)
    assert list((tmp_path / "local").glob("**/*.tmp")) == []


@pytest.mark.parametrize("wire", [Wire.REFUSE, Wire.LOSE_REPLY, Wire.NO_UPLOAD])
@pytest.mark.parametrize(
    ("method", "part_of_url"),
    [("POST", "?uploads"), ("PUT", "partNumber=1"), ("PUT", "partNumber=9"), ("POST", "?uploadId")],
)
def test_a_fault_of_the_network_loses_nothing(
    s3_server: S3Server, bucket: str, tmp_path: Path, method: str, part_of_url: str, wire: Wire
) -> None:
    spec = StorageSpec(f"s3://{bucket}/root", tuple(s3_server.options.items()))
    s3_server.next(method, part_of_url, wire)
    report = run(spec, tmp_path, lambda _: None, structure=Structure.V2)
    assert len(set(values(spec, tmp_path / "other host", report))) == KEYS
    lost_begin = wire is Wire.LOSE_REPLY and part_of_url == "?uploads"
    assert s3_server.open_uploads(bucket) == lost_begin, "retention aborts an upload whose id is unknown"


def test_a_batch_without_own_files_has_no_share(tmp_path: Path) -> None:
    batch = of_batch(Outcome.DONE_BEFORE)
    assert batch.early_upload_share is None
    assert batch.back_pressure_seconds == 0
