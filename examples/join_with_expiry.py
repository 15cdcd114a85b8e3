"""Join two streams within a time: each order with its payments within one hour. The state of an order then expires.

    python join_with_expiry.py FOLDER

The query reads the Delta tables FOLDER/orders (order, at, amount) and FOLDER/payments (order, at, paid).
"""

from __future__ import annotations

import sys
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from statekeeper.pipelines import DeltaSink, StatefulOperator, StatefulQuery, Ttl, Update, spark_session, start

# --8<-- [start:operator]
HOUR = timedelta(hours=1)
INSTANT = pa.timestamp("us", tz="UTC")
COLUMN = {"orders": "amount", "payments": "paid"}


def update(rows: pa.Table, state: dict[str, pa.Table]) -> Update:
    """Keep the rows of both inputs. Return the pairs of a new row of one input and a row of the other."""
    new, old, kept = {}, {}, {}
    for name, column in COLUMN.items():
        new[name] = rows.filter(pc.equal(rows["input"], name)).select(["order", "at", column])
        orders = state[name]["order"].take(pc.list_parent_indices(state[name]["at"]))
        lists = [pc.list_flatten(state[name][one]) for one in ("at", column)]
        old[name] = pa.table([orders, *lists], schema=new[name].schema)
        both = pa.concat_tables([old[name], new[name]]).group_by("order", use_threads=False)
        of_order = both.aggregate([("at", "list"), (column, "list"), ("at", "max")])
        kept[name] = of_order.rename_columns(["order", "at", column, "last_at"])
    sides = [(new, new), (new, old), (old, new)]
    pairs = pa.concat_tables(
        orders["orders"].join(payments["payments"], "order", join_type="inner", right_suffix="_paid")
        for orders, payments in sides
    )
    apart = pc.abs(pc.subtract(pairs["at_paid"].cast(pa.int64()), pairs["at"].cast(pa.int64())))
    return Update(output=pairs.filter(pc.less_equal(apart, HOUR // timedelta(microseconds=1))), state=kept)


OPERATOR = StatefulOperator(
    keys=["order"],
    order_by=["input", "at"],
    state={
        name: pa.schema([("at", pa.list_(INSTANT)), (column, pa.list_(pa.int64())), ("last_at", INSTANT)])
        for name, column in COLUMN.items()
    },
    output=pa.schema(
        [("order", pa.string()), ("at", INSTANT), ("amount", pa.int64()), ("at_paid", INSTANT), ("paid", pa.int64())]
    ),
    update=update,
    event_time="at",
    allowed_lateness="10m",
    ttl={name: Ttl(HOUR, by="event", column="last_at") for name in COLUMN},
)
# --8<-- [end:operator]


def run(spark: SparkSession, folder: str) -> StatefulQuery:
    """Start the query. It continues from its last batch if it has run before."""
    return start(
        OPERATOR,
        inputs={name: spark.readStream.format("delta").load(f"{folder}/{name}") for name in COLUMN},
        root=f"{folder}/state",
        checkpoint=f"{folder}/checkpoint",
        sink=DeltaSink(f"{folder}/pairs"),
        partitions=4,
    )


if __name__ == "__main__":
    run(spark_session("pairs"), sys.argv[1]).await_termination()
