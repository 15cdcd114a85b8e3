"""Join two streams: each order with each payment of its customer, when the later one of the two arrives.

    python join_of_streams.py FOLDER

The query reads the Delta tables FOLDER/orders (customer, id) and FOLDER/payments (customer, paid).
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from statekeeper.pipelines import DeltaSink, StatefulOperator, StatefulQuery, Update, spark_session, start

# --8<-- [start:operator]
COLUMN = {"orders": "id", "payments": "paid"}


def update(rows: pa.Table, state: dict[str, pa.Table]) -> Update:
    """Keep all rows of both inputs. Return the pairs of a new row of one input and a row of the other."""
    new, old, kept = {}, {}, {}
    for name, column in COLUMN.items():
        new[name] = rows.filter(pc.equal(rows["input"], name)).select(["customer", column])
        customers = state[name]["customer"].take(pc.list_parent_indices(state[name][column]))
        old[name] = pa.table([customers, pc.list_flatten(state[name][column])], schema=new[name].schema)
        both = pa.concat_tables([old[name], new[name]]).group_by("customer", use_threads=False)
        kept[name] = both.aggregate([(column, "list")]).rename_columns(["customer", column])
    sides = [(new, new), (new, old), (old, new)]
    pairs = [orders["orders"].join(payments["payments"], "customer", join_type="inner") for orders, payments in sides]
    return Update(output=pa.concat_tables(pairs), state=kept)


OPERATOR = StatefulOperator(
    keys=["customer"],
    order_by=["input", "id", "paid"],
    state={name: pa.schema([(column, pa.list_(pa.int64()))]) for name, column in COLUMN.items()},
    output=pa.schema([("customer", pa.string()), ("id", pa.int64()), ("paid", pa.int64())]),
    update=update,
)
# --8<-- [end:operator]


def run(spark: SparkSession, folder: str) -> StatefulQuery:
    """Start the query. It continues from its last batch if it has run before."""
    # --8<-- [start:start]
    inputs = {name: spark.readStream.format("delta").load(f"{folder}/{name}") for name in ("orders", "payments")}
    return start(
        OPERATOR,
        inputs=inputs,
        root=f"{folder}/state",
        checkpoint=f"{folder}/checkpoint",
        sink=DeltaSink(f"{folder}/pairs"),
        partitions=4,
    )
    # --8<-- [end:start]


if __name__ == "__main__":
    run(spark_session("pairs"), sys.argv[1]).await_termination()
