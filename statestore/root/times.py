"""The times of a batch: processing time and watermark.

They come from the logs of the root. So each attempt at a batch has the same times, also after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statekeeper.statestore.format import prefix_columns
from statekeeper.statestore.root.columns import StoreSchema


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """In ms since the epoch. A watermark is 0 until a batch has seen an event time, as in Spark.

    time_ms            when Spark planned the batch (batchTimestampMs)
    watermark_ms       the latest event time of earlier batches less the allowed lateness: timers up to it are due
    late_watermark_ms  the watermark of the previous batch. A row with an event time up to it is late (SPARK-40925)
    """

    batch: int
    time_ms: int
    watermark_ms: int = 0
    late_watermark_ms: int = 0


TIMERS = "timers"
TIMERS_DUE = "timers_due"
EXPIRES_AT = "expires_at"
FIRES_AT = "fires_at"
_EXPIRIES = "_expiries"


def expiries(store: str) -> str:
    """Return the name of the index of a store's expiries."""
    return f"{store}{_EXPIRIES}"


def is_index(name: str) -> bool:
    """Return whether a store with this name is an index, which only the job writes."""
    return name == TIMERS_DUE or name.endswith(_EXPIRIES)


def index_of(stores: Sequence[StoreSchema], name: str) -> str | None:
    """Return the index of the times in a store's rows; None for a store without times. An index is its own index. So is a
    state whose keys contain the times."""
    indexes = [store.name for store in stores if store.prefix_columns == prefix_columns.OF_DUE_KEYS]
    wanted = (name, expiries(name), *([TIMERS_DUE] if name == TIMERS else []))
    return next((index for index in indexes if index in wanted), None)
