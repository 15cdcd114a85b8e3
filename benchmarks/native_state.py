"""A native query that counts and sums the rows of Parquet files by key, so that its state has a known number of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.format.provider import PROVIDER, Provider

_FILES = 4


def of(provider: Provider, partitions: int) -> Mapping[str, str]:
    """The confs of the query: structure V1 with changelogs."""
    return {
        PROVIDER: provider.class_name,
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }


def write_input(spark: SparkSession, folder: Path, rows: int, keys: int) -> None:
    """Write `rows` rows with these keys, which the query reads in one batch."""
    # A multiplier that shares no factor with the number of keys spreads the keys over the files.
    key = F.expr(f"pmod(id * 7919, {keys})").alias("key")
    spark.range(0, rows, numPartitions=_FILES).select(key, F.col("id").alias("value")).write.parquet(str(folder))


def run_query(
    spark: SparkSession, source: Path, checkpoint: Path, confs: Mapping[str, str], more: Sequence[str] = ()
) -> float:
    """Run the query over all files, and return the seconds from its start until it has ended. `more`: SQL of further
    aggregates."""
    for name, value in confs.items():
        spark.conf.set(name, value)
    stream = spark.readStream.schema("key long, value long").parquet(str(source))
    counts = stream.groupBy("key").agg(F.count("value").alias("n"), F.sum("value").alias("total"), *map(F.expr, more))
    writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    started = perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = perf_counter() - started
    # The instances of the state stores keep the state in memory and on local disk until the JVM ends.
    with suppress(AttributeError):
        spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
    return seconds
