"""Aggregates of tumbling and sliding windows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch, TimeKind
from statekeeper.pipelines.operators.merging import merged
from statekeeper.pipelines.operators.partial import Aggregates, of_rows, result_columns

START, END = "window_start", "window_end"


def with_windows(stream: DataFrame, event_time: str, size: str, slide: str | None = None) -> DataFrame:
    """Add the columns `window_start` and `window_end`. With a `slide`, a row is in several windows. The durations are
    those of Spark's `window`, such as "10 minutes"."""
    window = F.window(event_time, size, slide)
    placed = stream.withColumn("__window", window)
    return placed.withColumns({START: F.col("__window.start"), END: F.col("__window.end")}).drop("__window")


def windows(
    columns: pa.Schema,
    keys: Sequence[str],
    event_time: str,
    aggregates: Aggregates,
    *,
    allowed_lateness: str | dt.timedelta,
) -> StatefulOperator:
    """Return an operator whose output has the aggregates of each key and window, once, when the watermark reaches the end
    of the window.

    event_time        the column with the event time
    allowed_lateness  see `StatefulOperator`

    Pass the stream through `with_windows` first. Other arguments as in `running_aggregates`. It is
    `withWatermark(event_time, allowed_lateness).groupBy(window(...), keys).agg(...)` of Spark in the output mode `append`.
    """
    results = result_columns(columns, aggregates)
    of_window = [*keys, START, END]

    def update(rows: pa.Table, state: pa.Table) -> Update:
        new = merged([state, of_rows(rows, of_window, aggregates, results)], of_window, aggregates)
        return Update(output=output.empty_table(), state=new)

    def on_timer(due: pa.Table, state: pa.Table, batch: Batch) -> Update:
        del due, batch
        return Update(output=state)

    placed = [pa.field(name, TIMESTAMP) for name in (START, END)]
    output = pa.schema([*(columns.field(key) for key in keys), *placed, *results])
    return StatefulOperator(
        of_window,
        [],
        state=results,
        output=output,
        update=update,
        event_time=event_time,
        allowed_lateness=allowed_lateness,
        late_by=END,
        accepts_initial=False,
        timers=TimeKind.EVENT,
        timer_key=END,
        on_timer=on_timer,
    )
