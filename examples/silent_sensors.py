"""Report sensors that fall silent: a timer by event time, and state that expires.

    python silent_sensors.py FOLDER

The query reads the Delta table FOLDER/readings (sensor, at, value).
"""

from __future__ import annotations

import sys
from datetime import timedelta

import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession

from statekeeper.pipelines import (
    Batch,
    DeltaSink,
    Frames,
    StatefulOperator,
    StatefulQuery,
    Ttl,
    Update,
    spark_session,
    start,
)

# --8<-- [start:operator]
INSTANT = pa.timestamp("us", tz="UTC")
OUTPUT = pa.schema([("sensor", pa.string()), ("silent_since", INSTANT), ("last_value", pa.float64())])
STATE = pa.schema([("last_at", INSTANT), ("last_value", pa.float64())])
NOTHING = OUTPUT.empty_table()


def update(rows: pd.DataFrame, state: pd.DataFrame) -> Update:
    """Keep the newest reading of each sensor, and set its timer to one hour later."""
    readings = pd.concat([state, rows.rename(columns={"at": "last_at", "value": "last_value"})])
    newest = readings.sort_values("last_at").drop_duplicates("sensor", keep="last")
    timers = newest[["sensor"]].assign(at=newest["last_at"] + timedelta(hours=1))
    return Update(NOTHING, state=newest, timers=timers)


def on_timer(keys: pd.DataFrame, state: pd.DataFrame, batch: Batch) -> Update:
    """Report the sensors whose timer is due."""
    return Update(state.rename(columns={"last_at": "silent_since"}))


OPERATOR = StatefulOperator(
    keys=["sensor"],
    order_by=["at"],
    state=STATE,
    output=OUTPUT,
    update=update,
    frames=Frames.PANDAS,
    event_time="at",
    allowed_lateness="10m",
    timers="event",
    on_timer=on_timer,
    ttl=Ttl("30d", by="event", column="last_at"),
)
# --8<-- [end:operator]


# --8<-- [start:start]
def run(spark: SparkSession, folder: str) -> StatefulQuery:
    """Start the query. A batch runs at least every 10 seconds, also without readings."""
    return start(
        OPERATOR,
        spark.readStream.format("delta").load(f"{folder}/readings"),
        root=f"{folder}/state",
        checkpoint=f"{folder}/checkpoint",
        sink=DeltaSink(f"{folder}/silent"),
        partitions=2,
        tick="10s",
    )


# --8<-- [end:start]


if __name__ == "__main__":
    run(spark_session("silent-sensors"), sys.argv[1]).await_termination()
