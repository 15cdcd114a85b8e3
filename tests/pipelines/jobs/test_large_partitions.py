"""A partition far larger than a worker's memory, and a key far larger than a piece."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.progress import BatchReport
from statekeeper.pipelines.operator.declaration import Pieces, StatefulOperator, Update
from statekeeper.pipelines.sinks.sink import AtLeastOnceSink
from statekeeper.statestore.base.errors import HotKey
from statekeeper.statestore.format.names import VersionId
from tests.support.streams import Stream

pytestmark = pytest.mark.spark

# Spark's workers need not find this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 1024 * 1024
ROWS = pa.schema([("key", pa.int64()), ("place", pa.int64()), ("value", pa.int64())])
STATE = pa.schema([("count", pa.int64()), ("total", pa.int64()), ("newest", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), *STATE])


def add_up(rows: pa.Table, state: pa.Table) -> Update:
    """Count rows, and compute sum and newest place by key. They differ if a row is lost, doubled or out of order."""
    named = rows.select(["key", "value", "place"]).append_column("one", pa.array(np.ones(rows.num_rows, np.int64)))
    now = named.group_by("key", use_threads=False).aggregate([("one", "sum"), ("value", "sum"), ("place", "last")])
    now = now.rename_columns(OUTPUT.names).cast(OUTPUT)
    both = pa.concat_tables([state.cast(OUTPUT), now]).group_by("key", use_threads=False)
    new = both.aggregate([("count", "sum"), ("total", "sum"), ("newest", "last")]).rename_columns(OUTPUT.names)
    return Update(new, new)


def rows_of(count: int, keys: int, seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    columns = [chance.integers(0, keys, count), np.arange(count) + seed * count, chance.integers(0, 1000, count)]
    return pa.table([pa.array(column) for column in columns], schema=ROWS)


def expected(tables: list[pa.Table]) -> pa.Table:
    empty = pa.table({name: pa.array([], pa.int64()) for name in OUTPUT.names}, schema=OUTPUT)
    rows = pa.concat_tables(tables).sort_by([("key", "ascending"), ("place", "ascending")])
    return add_up(rows, empty).state.sort_by("key")


def state_of(stream: Stream) -> pa.Table:
    """Return the state that Spark's reader shows. Raises `AssertionError` for a duplicate key."""
    stream.session._jsparkSession.sessionState().streamingQueryManager()
    found = stream.session.read.format("statestore").load(str(stream.root)).selectExpr("key.key", "value.*").toArrow()
    found = found.cast(OUTPUT).sort_by("key")
    assert len(pc.unique(found.column("key"))) == found.num_rows
    return found


def operator(**limits: int | bool) -> StatefulOperator:
    return StatefulOperator(["key"], ["place"], state=STATE, output=OUTPUT, update=add_up, pieces=Pieces(**limits))


@pytest.fixture
def fresh_workers(delta_session: SparkSession) -> Iterator[SparkSession]:
    """Start each task in its own worker, because the peak memory of a worker covers its whole life."""
    settings = delta_session._jvm.org.apache.spark.SparkEnv.get().conf()
    settings.set("spark.python.worker.reuse", "false")
    yield delta_session
    settings.set("spark.python.worker.reuse", "true")


def run_in_one_partition(stream: Stream, tables: list[pa.Table], **limits: int | bool) -> list[BatchReport]:
    for table in tables:
        stream.append(table)
    written = AtLeastOnceSink(lambda rows, batch: rows.write.format("noop").mode("append").save())
    return stream.run(operator(**limits), partitions=1, sink=written)


@pytest.mark.parametrize(
    ("count", "keys", "bound_bytes"),
    [
        pytest.param(1_000_000, 600_000, 430 * MIB, id="1 million rows", marks=pytest.mark.slow),
        pytest.param(
            5_000_000, 3_000_000, 512 * MIB, id="5 million rows", marks=[pytest.mark.slow, pytest.mark.timeout(2400)]
        ),
    ],
)
def test_a_partition_of_millions_of_rows_and_keys_is_processed_in_bounded_memory(
    fresh_workers, tmp_path, count, keys, bound_bytes, record_property
):
    stream = Stream(fresh_workers, tmp_path, ROWS)
    tables = [rows_of(count, keys, seed) for seed in (1, 2)]
    reports = run_in_one_partition(stream, tables)
    for report, table in zip(reports, tables, strict=True):
        [partition] = report.partitions
        print(f"{partition.rows_in:,} rows, {partition.peak_memory_bytes / MIB:.0f} MiB, {partition.stores[0]}")
        record_property("peak_memory_bytes", partition.peak_memory_bytes)
        changed = len(pc.unique(table.column("key")))
        assert partition.rows_in == count
        assert partition.stores[0].commit.changed_keys == changed > keys // 2
        assert 50 * MIB < partition.peak_memory_bytes < bound_bytes
    assert reports[1].partitions[0].stores[0].load.replayed_keys > keys // 2, "the second batch replays the first"
    assert state_of(stream).equals(expected(tables))


def test_a_key_with_more_rows_than_the_limit_is_rejected_or_split_if_configured(fresh_workers, tmp_path):
    count = 52_000
    stream = Stream(fresh_workers, tmp_path, ROWS)
    chance = np.random.default_rng(7)
    rows = pa.table(
        {
            "key": np.where(np.arange(count + 1_000) % 1_001 == 0, np.arange(count + 1_000), 7),
            "place": chance.permutation(count + 1_000),
            "value": chance.integers(0, 1000, count + 1_000),
        },
        schema=ROWS,
    )
    with pytest.raises(HotKey, match=r"a key has more than 50,000 rows in a batch: \{'key': 7\}") as refused:
        run_in_one_partition(stream, [rows], hot_key_rows=50_000)
    assert "Pieces(split_hot_keys=True)" in str(refused.value)
    assert stream.committed() == []
    [report] = run_in_one_partition(stream, [], hot_key_rows=50_000, split_hot_keys=True)
    [partition] = report.partitions
    assert partition.rows_in == rows.num_rows
    assert partition.stores[0].new == VersionId(1, partition.stores[0].new.id)
    assert state_of(stream).equals(expected([rows]))
