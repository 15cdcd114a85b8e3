"""Snapshots of Statekeeper: Spark reads the state from them alone, and the job continues from them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy, Taken, execute, gather, plan
from statekeeper.statestore.storage import open_storage
from tests.support.streams import Stream

pytestmark = pytest.mark.spark

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = pa.schema([("key", pa.string()), ("value", pa.int64())])
STATE = pa.schema([("total", pa.int64())])


def add_up(rows: pa.Table, state: pa.Table) -> Update:
    both = pa.concat_tables([rows, state.rename_columns(["key", "value"])])
    totals = both.group_by("key", use_threads=False).aggregate([("value", "sum")]).rename_columns(["key", "total"])
    return Update(totals, totals)


OPERATOR = StatefulOperator(["key"], [], state=STATE, output=pa.schema([("key", pa.string()), *STATE]), update=add_up)


def snapshot_all(root: Path, scratch: Path) -> list[Taken]:
    storage = open_storage(str(root))
    actions = plan(gather(storage), SnapshotPolicy(), take_all=True).take
    return [execute(storage, action, scratch=scratch, clock=SystemClock(), ids=RandomIds()) for action in actions]


def remove_changelogs(root: Path) -> None:
    for pattern in ("*.changelog", ".*.changelog.crc"):
        for path in root.glob(f"state/*/*/{pattern}"):
            path.unlink()


def test_spark_reads_the_state_and_the_job_continues_from_snapshots_alone(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, ROWS)
    expected: dict[tuple[str], tuple[int]] = {}

    def feed(batches: int) -> None:
        for _ in range(batches):
            rows = {"key": [f"key {n % 37}" for n in range(len(expected), len(expected) + 60)], "value": [1] * 60}
            stream.append(rows)
            for key in rows["key"]:
                expected[(key,)] = (expected.get((key,), (0,))[0] + 1,)

    feed(3)
    stream.run(OPERATOR)
    assert stream.state() == expected
    for taken in snapshot_all(stream.root, tmp_path):
        assert taken.keys > 0
    remove_changelogs(stream.root)
    assert stream.state() == expected

    shutil.rmtree(tmp_path / "local")
    feed(2)
    reports = stream.run(OPERATOR)
    loads = [store.load for partition in reports[0].partitions for store in partition.stores]
    assert {(load.base, load.replayed_changelogs) for load in loads} == {(BaseKind.SNAPSHOT, 0)}
    # Lineage starts at the snapshot: no version before it is needed, by Spark's reader neither.
    assert stream.state() == expected

    incremental = snapshot_all(stream.root, tmp_path)
    assert {taken.new_tables for taken in incremental} == {1}
    remove_changelogs(stream.root)
    assert stream.state() == expected
    expected.popitem()
    assert stream.state() != expected
