"""Aggregates of sessions: rows of a key whose event times are at most a gap apart."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.pipelines.operator.declaration import TIMER_COLUMN, StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch, TimeKind
from statekeeper.pipelines.operators.open_sessions import END, OPEN, START, by_key, joined, one_by_one
from statekeeper.pipelines.operators.partial import Aggregates, of_rows, result_columns, without


def with_sessions(stream: DataFrame, event_time: str, gap: str) -> DataFrame:
    """Add the columns `session_start`, the event time of the row, and `session_end`, this time plus the gap. The operator
    merges sessions that overlap or touch. `gap`: a duration of Spark's `session_window`, such as "5 minutes"."""
    end = F.col(event_time) + F.expr(f"INTERVAL {gap}")
    return stream.withColumns({START: F.col(event_time), END: end})


def sessions(
    columns: pa.Schema,
    keys: Sequence[str],
    event_time: str,
    aggregates: Aggregates,
    *,
    allowed_lateness: str | dt.timedelta,
) -> StatefulOperator:
    """Return an operator whose output has the aggregates of each session, once, when the watermark reaches the end of the
    session.

    event_time        the column with the event time
    allowed_lateness  see `StatefulOperator`

    Pass the stream through `with_sessions` first. Other arguments as in `running_aggregates`. It is
    `withWatermark(event_time, allowed_lateness).groupBy(session_window(event_time, gap), keys).agg(...)` of Spark in the
    output mode `append`.
    """
    results = result_columns(columns, aggregates)
    bounds = {START: ("min", START), END: ("max", END)}
    placed = pa.schema([(START, TIMESTAMP), (END, TIMESTAMP), *results])
    open_ = pa.field(OPEN, pa.list_(pa.struct(list(placed))))
    output = pa.schema([*(columns.field(key) for key in keys), *placed])

    def kept(left: pa.Table, closed: pa.Table, gone: pa.Table | None = None) -> Update:
        next_end = left.group_by(list(keys), use_threads=False).aggregate([(END, "min")])
        timers = next_end.rename_columns({f"{END}_min": TIMER_COLUMN})
        return Update(closed, by_key(left, keys, open_), gone, timers)

    def update(rows: pa.Table, state: pa.Table) -> Update:
        new = of_rows(rows, keys, {**bounds, **aggregates}, placed)
        known = one_by_one(state, keys).cast(new.schema)
        return kept(joined(pa.concat_tables([known, new]), keys, aggregates), output.empty_table())

    def on_timer(due: pa.Table, state: pa.Table, batch: Batch) -> Update:
        known = one_by_one(state, keys)
        is_closed = pc.less_equal(known[END], pa.scalar(batch.watermark, TIMESTAMP))
        left = known.filter(pc.invert(is_closed))
        return kept(left, known.filter(is_closed), without(due.select(list(keys)), left, keys))

    return StatefulOperator(
        keys,
        [],
        state=pa.schema([open_]),
        output=output,
        update=update,
        event_time=event_time,
        allowed_lateness=allowed_lateness,
        late_by=END,
        accepts_initial=False,
        timers=TimeKind.EVENT,
        on_timer=on_timer,
    )
