"""Keep a running total per customer with the stateful operator. State and sink agree after each crash.

    python stateful_operator.py FOLDER      # reads FOLDER/orders, a Delta table with the columns customer, id and amount

Maintain the state with `statekeeper snapshot FOLDER/state` and `statekeeper gc FOLDER/state --apply`.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from pyspark.sql import SparkSession

from statekeeper.pipelines import DeltaSink, StatefulOperator, StatefulQuery, Update, spark_session, start

TOTALS = pa.schema([("orders", pa.int64()), ("total", pa.float64())])


def update(rows: pa.Table, state: pa.Table) -> Update:
    """Add the orders of a batch to the totals of their customers."""
    batch = rows.group_by("customer", use_threads=False).aggregate([([], "count_all"), ("amount", "sum")])
    partial = pa.concat_tables([batch.rename_columns(state.column_names), state])
    totals = partial.group_by("customer", use_threads=False).aggregate([("orders", "sum"), ("total", "sum")])
    totals = totals.rename_columns(state.column_names)
    return Update(output=totals, state=totals)


OPERATOR = StatefulOperator(
    keys=["customer"],
    order_by=["id"],
    state=TOTALS,
    output=pa.schema([("customer", pa.string()), *TOTALS]),
    update=update,
)


def run(spark: SparkSession, folder: str) -> StatefulQuery:
    """Start the query. It continues from its last batch if it has run before."""
    return start(
        OPERATOR,
        spark.readStream.format("delta").load(f"{folder}/orders"),
        root=f"{folder}/state",
        checkpoint=f"{folder}/checkpoint",
        sink=DeltaSink(f"{folder}/totals"),
        partitions=4,
    )


if __name__ == "__main__":
    run(spark_session("orders"), sys.argv[1]).await_termination()
