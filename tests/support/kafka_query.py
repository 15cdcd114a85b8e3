"""A query of Spark over a Kafka topic: `python -m tests.support.kafka_query SERVERS TOPIC FOLDER`. It counts the values,
ten records a batch, and stops when it has read all of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from tests.support.kafka_server import SOURCE
from tests.support.native import ONLY_CHANGELOGS


def main(servers: str, topic: str, folder: str) -> None:
    """Start the query with its checkpoint in that folder, and wait until it stops."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(map(str, SOURCE.glob("*.jar"))))
    for key, value in {**ONLY_CHANGELOGS, "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    rows = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 10)
        .load()
    )
    counts = rows.groupBy(fn.col("value").cast("string").alias("value")).count()
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(Path(folder) / "checkpoint"))
    query = writer.trigger(availableNow=True).format("noop").start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
