"""State roots read by Spark's own `statestore` source: the oracle for every row that Python wrote."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import SparkSession

from statestore.format.logs import PROVIDER, ROCKSDB_PROVIDER

_CONF = {
    PROVIDER: ROCKSDB_PROVIDER,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}


def read_state(spark: SparkSession, root: str, *, operator: int = 0, batch: int | None = None) -> pd.DataFrame:
    """One row per key of an operator's store, after the newest batch or `batch`: the columns of key and value, and
    `partition_id`."""
    session = spark.newSession()
    for name, value in _CONF.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    # Spark 4.2 asks for the coordinator of the state stores before anything has started it.
    session._jsparkSession.sessionState().streamingQueryManager()
    reader = session.read.format("statestore").option("operatorId", operator)
    if batch is not None:
        reader = reader.option("batchId", batch)
    return reader.load(root).select("partition_id", "key.*", "value.*").toPandas()
