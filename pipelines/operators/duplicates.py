"""Deduplication within the watermark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.operator import StatefulOperator, Update
from pipelines.times import TIMESTAMP, TimeKind, Ttl

_FIRST_AT = "first_at"


def first_rows(
    columns: pa.Schema, keys: Sequence[str], event_time: str, *, within: str | dt.timedelta
) -> StatefulOperator:
    """Return an operator whose output are the rows without duplicates: of the rows of a key, the first one.

    columns     the columns of the rows, with their types; all are in the output
    event_time  the column with the event time
    within      how far apart duplicates are at most, such as "10m"; rows that are later than that are late

    It is `withWatermark(event_time, within).dropDuplicatesWithinWatermark(keys)` of Spark. A key is kept until the
    watermark passes its first event time plus `within`.
    """

    def update(rows: pa.Table, state: pa.Table) -> Update:
        fresh = rows.join(state, list(keys), join_type="left anti") if state.num_rows else rows
        fresh = fresh.append_column("row", pa.array(np.arange(fresh.num_rows)))
        # The rows are sorted by event time. A join changes the order.
        fresh = fresh.sort_by([(event_time, "ascending"), ("row", "ascending")])
        places = pa.array(np.arange(fresh.num_rows))
        first = fresh.set_column(fresh.num_columns - 1, "row", places).group_by(list(keys), use_threads=False)
        found = fresh.take(first.aggregate([("row", "min")])["row_min"]).drop_columns("row")
        new = found.select(list(keys)).append_column(_FIRST_AT, pc.cast(found[event_time], TIMESTAMP))
        return Update(output=found, state=new)

    return StatefulOperator(
        keys,
        [event_time],
        state=pa.schema([(_FIRST_AT, TIMESTAMP)]),
        output=columns,
        update=update,
        event_time=event_time,
        allowed_lateness=within,
        ttl=Ttl(within, by=TimeKind.EVENT, column=_FIRST_AT),
    )
