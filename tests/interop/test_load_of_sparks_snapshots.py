"""The store loads snapshots and changelogs of structure V2 that Spark wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import StoreFileKind, StorePath, VersionId
from statekeeper.statestore.format.state_rows import decode_values
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.store.state_store import StateStore, StoreAddress
from tests.support.streams import Stream

pytestmark = pytest.mark.spark

CHANGELOGS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
VALUE = pa.schema([("n", pa.int64()), ("total", pa.int64())])
PARTITIONS = 2


@pytest.fixture
def native_checkpoint(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """An aggregation of Spark's own: three versions with a snapshot each, then three with changelogs only."""
    stream = Stream(spark, tmp_path, pa.schema([("k", pa.string()), ("x", pa.int64())]))
    before = spark.conf.get(CHANGELOGS)
    for run, changelogs in enumerate(("false", "true")):
        spark.conf.set(CHANGELOGS, changelogs)
        for batch in range(3):
            keys = [f"key {i % 50}" for i in range(run * 10 + batch, 100)]
            stream.append({"k": keys, "x": list(range(len(keys)))})
        grouped = stream.rows().groupBy("k").agg(F.count("x").alias("n"), F.sum("x").alias("total"))
        query = (
            grouped.writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(stream.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    yield stream.checkpoint
    spark.conf.set(CHANGELOGS, before)


def test_a_load_of_sparks_snapshot_and_tail_equals_sparks_state(
    spark: SparkSession, native_checkpoint: Path, tmp_path: Path
) -> None:
    storage = open_storage(str(native_checkpoint))
    expected = spark.read.format("statestore").load(str(native_checkpoint))
    by_partition = {
        partition: sorted(tuple(row.value) for row in expected.where(F.col("partition_id") == partition).collect())
        for partition in range(PARTITIONS)
    }
    head = 5
    ids = logs.parse_commit(storage.read(names.commits(head)), names.commits(head)).ids
    assert ids is not None
    for partition in range(PARTITIONS):
        path = StorePath(0, partition)
        snapshots = [
            parsed[1].version.version
            for entry in storage.list(path.folder)
            if (parsed := names.parse_store_path(entry.path)) and parsed[1].kind is StoreFileKind.SNAPSHOT
        ]
        assert max(snapshots) < head + 1, "Spark took a snapshot at the head: nothing would be replayed"
        target = VersionId(head + 1, ids[0][partition][0])
        address = StoreAddress(path, tmp_path / f"local {partition}")
        with StateStore.load(address, target, storage=storage, clock=SystemClock(), ids=RandomIds()) as store:
            values = pa.array([value for _, value in store.scan()], pa.large_binary())
            assert store.load_report.base is BaseKind.SNAPSHOT
            assert store.load_report.replayed_changelogs == head + 1 - max(snapshots)
        held = decode_values(values, VALUE).to_pylist()
        assert sorted((row["n"], row["total"]) for row in held) == by_partition[partition]
        assert held
