"""Deduplication within the watermark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, TimeKind, Ttl
from statekeeper.pipelines.operators.partial import without

_FIRST_AT = "first_at"


def first_rows(
    columns: pa.Schema, keys: Sequence[str], event_time: str, *, within: str | dt.timedelta
) -> StatefulOperator:
    """Return an operator whose output are the rows without duplicates: of the rows of a key, the first one.

    columns     the columns of the rows, with their types; all are in the output
    event_time  the column with the event time
    within      the allowed lateness of rows, and the TTL of a key from the event time of its first row, such as "10m"

    It is `withWatermark(event_time, within).dropDuplicatesWithinWatermark(keys)` of Spark. Rows of a key are dropped until
    the watermark of the previous batch reaches the expiry of the key.
    """

    def update(rows: pa.Table, state: pa.Table) -> Update:
        fresh = without(rows, state, keys)
        # The rows of a key are sorted by event time.
        places = fresh.select(list(keys)).append_column("row", pa.array(np.arange(fresh.num_rows)))
        found = fresh.take(places.group_by(list(keys), use_threads=False).aggregate([("row", "min")])["row_min"])
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
