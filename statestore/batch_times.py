"""The times of a batch: processing time and watermark.

They come from the logs of the root. So each attempt at a batch has the same times, also after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass


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
