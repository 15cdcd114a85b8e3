"""State roots read by Spark's own `statestore` source: the oracle for every row that Python wrote."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from statekeeper.statestore.format.provider import PROVIDER, Provider
from statekeeper.statestore.format.structure import Structure

_CONF = {
    PROVIDER: Provider.ROCKSDB.class_name,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


def state_rows(
    spark: SparkSession,
    root: str,
    *,
    operator: int = 0,
    batch: int | None = None,
    structure: Structure = Structure.V2,
) -> DataFrame:
    """The state of an operator's store after the newest batch, or after `batch`: partition_id, key, value."""
    session = spark.newSession()
    for name, value in _CONF.items():
        session.conf.set(name, value)
    for name, value in structure.conf.items():
        session.conf.set(name, value)
    # Spark 4.2 asks for the coordinator of the state stores before anything has started it.
    session._jsparkSession.sessionState().streamingQueryManager()
    reader = session.read.format("statestore").option("operatorId", operator)
    if batch is not None:
        reader = reader.option("batchId", batch)
    return reader.load(root).select("partition_id", "key", "value")


def state_frame(spark: SparkSession, root: str, *, operator: int = 0, batch: int | None = None) -> pd.DataFrame:
    """The same in pandas: partition_id, and the columns of key and value. Instants are in UTC."""
    frame = (
        state_rows(spark, root, operator=operator, batch=batch).select("partition_id", "key.*", "value.*").toPandas()
    )
    for name in frame.select_dtypes("datetime64").columns:
        frame[name] = frame[name].dt.tz_localize("UTC")
    return frame
