"""Running aggregates of each key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import Ttl
from statekeeper.pipelines.operators.merging import merged
from statekeeper.pipelines.operators.partial import Aggregates, of_rows, result_columns


def running_aggregates(
    columns: pa.Schema, keys: Sequence[str], aggregates: Aggregates, *, ttl: Ttl | None = None
) -> StatefulOperator:
    """Return an operator whose output has the aggregates of each key with rows in the batch.

    columns     the columns of the rows that it uses, with their types
    aggregates  see `Aggregates`
    ttl         how long a key without rows keeps its aggregates, by processing time; None: forever

    It is `groupBy(keys).agg(...)` of Spark in the output mode `update`.
    """
    results = result_columns(columns, aggregates)

    def update(rows: pa.Table, state: pa.Table) -> Update:
        new = merged([state, of_rows(rows, keys, aggregates, results)], keys, aggregates)
        return Update(output=new, state=new)

    output = pa.schema([*(columns.field(key) for key in keys), *results])
    return StatefulOperator(keys, [], state=results, output=output, update=update, ttl=ttl)
