"""Grounded aircraft: those that have not departed for 36 hours. Each of their stops is reported once.

What belongs here: the timer of an aircraft, and the row that it reports. Nothing about batches or where state is kept.
"""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operator.declaration import TIMER_COLUMN
from statekeeper.pipelines.operator.times import Ttl

GROUNDED_AFTER = timedelta(hours=36)

FORGOTTEN_AFTER = Ttl("30d", by="event", column="last_departed_at")
"""The state of an aircraft expires 30 days after its last departure. After a longer stop, its legs count from 1 again."""

_INSTANT = pa.timestamp("us", tz="UTC")

OUTPUT_SCHEMA = pa.schema(
    [
        pa.field("tailnum", pa.string(), nullable=False),
        pa.field("last_departed_at", _INSTANT, nullable=False),
        pa.field("grounded_at", _INSTANT, nullable=False),
        pa.field("legs", pa.int64(), nullable=False),
    ]
)
"""One row per stop, named by (tailnum, last_departed_at). `grounded_at` is 36 hours after the last departure."""


def timers(flown: pa.Table) -> pa.Table:
    """The timers of aircraft that flew; `flown` has the key column and those of `facts.STATE_SCHEMA`.

    An aircraft that flies again gets a new timer, which replaces the one that it has. So a stop that ends in the batch in
    which its timer would be due is not reported.
    """
    due = pc.add(flown["last_departed_at"], pa.scalar(GROUNDED_AFTER, pa.duration("us")))
    return pa.table({"tailnum": flown["tailnum"], TIMER_COLUMN: due})


def report(keys: pa.Table, state: pa.Table) -> pa.Table:
    """The rows of aircraft whose timers are due. They have state: it expires long after the timer."""
    known = state.take(pc.index_in(keys["tailnum"], value_set=state["tailnum"]))
    columns = [keys["tailnum"], known["last_departed_at"], keys[TIMER_COLUMN], known["legs"]]
    return pa.table(columns, schema=OUTPUT_SCHEMA)
