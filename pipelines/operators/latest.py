"""The latest row of each key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import Ttl


def latest_rows(
    columns: pa.Schema, keys: Sequence[str], order_by: Sequence[str], *, ttl: Ttl | None = None
) -> StatefulOperator:
    """Return an operator that keeps the latest row of each key. Its output has the latest row of each key with a new latest
    row in the batch.

    columns   all columns of the rows that it keeps, with their types
    order_by  the columns that tell which row of a key is the latest; null is before all values, as in Spark's order
    ttl       how long a key keeps its row, by processing time, since it became the latest; None: forever

    With a sink that merges by key (`DeltaSink(path, merge_on=keys)`), the table has the latest row of each key.
    """
    names = [*keys, *(name for name in columns.names if name not in keys)]

    def update(rows: pa.Table, state: pa.Table) -> Update:
        rows = rows.select(names)
        both = pa.concat_tables([state.select(names).cast(rows.schema), rows])
        is_new = pa.array([False] * state.num_rows + [True] * rows.num_rows)
        by_key = both.append_column("is new", is_new).append_column("row", pa.array(range(both.num_rows)))
        # Arrow sorts nulls after all values.
        sorted_by = []
        for number, name in enumerate(order_by):
            if by_key[name].null_count:
                sorted_by.append(f"has value {number}")
                by_key = by_key.append_column(sorted_by[-1], by_key[name].is_valid())
            sorted_by.append(name)
        # Of equal rows the last one wins, which is a new one.
        ordered = by_key.sort_by([(name, "ascending") for name in (*sorted_by, "row")])
        last = ordered.group_by(list(keys), use_threads=False).aggregate([("row", "last"), ("is new", "last")])
        latest = both.take(last.filter(last["is new_last"])["row_last"])
        return Update(output=latest, state=latest)

    values = pa.schema([field for field in columns if field.name not in keys])
    output = pa.schema([columns.field(name) for name in names])
    return StatefulOperator(keys, order_by, state=values, output=output, update=update, ttl=ttl)
