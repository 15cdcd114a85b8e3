"""The same code audits native checkpoints, and writes nothing into them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, gather, judge
from statekeeper.statestore.storage import open_storage
from tests.support.streams import Stream

pytestmark = pytest.mark.spark

CONFS = {
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
}
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@pytest.mark.parametrize("structure", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_a_native_checkpoint_is_clean_until_a_file_is_deleted(
    spark: SparkSession, tmp_path: Path, structure: str
) -> None:
    stream = Stream(spark, tmp_path, pa.schema([("k", pa.string()), ("x", pa.int64())]))
    before = {name: spark.conf.get(name, None) for name in (*CONFS, FORMAT)}
    for name, value in {**CONFS, FORMAT: structure}.items():
        spark.conf.set(name, value)
    try:
        for batch in range(4):
            stream.append({"k": [f"key {i % 50}" for i in range(batch, 100)], "x": list(range(100 - batch))})
            query = (
                stream.rows()
                .groupBy("k")
                .agg(F.sum("x").alias("total"))
                .writeStream.outputMode("update")
                .format("noop")
                .option("checkpointLocation", str(stream.checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
    storage = open_storage(str(stream.checkpoint))
    files = storage.list("")
    for scratch in (None, tmp_path / "scratch"):
        audit = judge(gather(storage, scratch=scratch))
        assert audit.findings == ()
        assert (audit.batch, audit.restart.batch) == (3, 3)
        assert [store.commits_left is None for store in audit.stores] == [structure == "1"] * len(audit.stores)
    assert storage.list("") == files
    gone = next(
        entry.path
        for entry in files
        if entry.path.startswith(f"{StorePath(0, 0).folder}/4") and entry.path.endswith(".changelog")
    )
    storage.delete([gone, f"{gone.removesuffix('.changelog')}.zip"])
    audit = judge(gather(storage))
    assert [(finding.kind, finding.file) for finding in audit.findings] == [(FindingKind.CHANGELOG_MISSING, gone)]
    assert audit.restart.batch == 2
