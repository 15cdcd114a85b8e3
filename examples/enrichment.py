"""Enrich a stream: add to each order the newest tier of its customer that is known when the order arrives.

    python enrichment.py FOLDER

The query reads the Delta tables FOLDER/customers (customer, at, tier) and FOLDER/orders (customer, at, id).
"""

from __future__ import annotations

import sys

import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession

from statekeeper.pipelines import DeltaSink, Frames, StatefulOperator, StatefulQuery, Update, spark_session, start

# --8<-- [start:operator]
TIER = pa.schema([("tier", pa.string())])


def update(rows: pd.DataFrame, state: pd.DataFrame) -> Update:
    """Fill the tier of each row with that of the row before it, and of the first rows with that of the state."""
    known = rows.merge(state, on="customer", how="left", suffixes=("", "_before"))
    known["tier"] = known.groupby("customer", dropna=False)["tier"].ffill().fillna(known["tier_before"])
    orders = known[known["input"] == "orders"]
    newest = known.dropna(subset=["tier"]).drop_duplicates("customer", keep="last")
    return Update(output=orders, state=newest)


OPERATOR = StatefulOperator(
    keys=["customer"],
    order_by=["at", "input"],
    state=TIER,
    output=pa.schema([("customer", pa.string()), ("id", pa.int64()), *TIER]),
    update=update,
    frames=Frames.PANDAS,
)
# --8<-- [end:operator]


def run(spark: SparkSession, folder: str) -> StatefulQuery:
    """Start the query. It continues from its last batch if it has run before."""
    inputs = {name: spark.readStream.format("delta").load(f"{folder}/{name}") for name in ("customers", "orders")}
    return start(
        OPERATOR,
        inputs=inputs,
        root=f"{folder}/state",
        checkpoint=f"{folder}/checkpoint",
        sink=DeltaSink(f"{folder}/orders_with_tier"),
        partitions=4,
    )


if __name__ == "__main__":
    run(spark_session("enrichment"), sys.argv[1]).await_termination()
