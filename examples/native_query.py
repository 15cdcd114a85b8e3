"""Adopt a native Spark query: leave its code unchanged and add the settings below.

Run it with Spark 4.2, then maintain its checkpoint while the query runs:

    spark-submit native_query.py s3a://bucket/orders/input s3a://bucket/orders/checkpoint
    statekeeper snapshot s3://bucket/orders/checkpoint --mode snapshots
    statekeeper gc       s3://bucket/orders/checkpoint --mode full --apply
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

STATE_STORE = "spark.sql.streaming.stateStore."
SETTINGS = {
    f"{STATE_STORE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE_STORE}rocksdb.changelogCheckpointing.enabled": "true",
    # Statekeeper makes the snapshots. In structure V2 use 250, because a query stops after about 800 changelogs.
    f"{STATE_STORE}minDeltasForSnapshot": "2147483647",
    f"{STATE_STORE}forceSnapshotUploadOnLag": "false",
    # Statekeeper deletes old files. Leave this setting out if you do not run `statekeeper gc`.
    "spark.sql.streaming.minBatchesToRetain": "1000000",
}


def start(spark: SparkSession, orders: str, checkpoint: str) -> StreamingQuery:
    """Count the orders of each customer in the Parquet files at `orders`."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    rows = spark.readStream.schema("customer string, amount double").parquet(orders)
    counts = rows.groupBy("customer").count()
    return counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint).start()


if __name__ == "__main__":
    start(SparkSession.builder.appName("orders").getOrCreate(), *sys.argv[1:]).awaitTermination()
