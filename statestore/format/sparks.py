"""The Sparks that can go on from a checkpoint, where what they read differs."""

from __future__ import annotations

from enum import Enum

RETAINED_VERSIONS = 100
"""So many versions Spark's clean-up keeps, unless it is told otherwise (spark.sql.streaming.minBatchesToRetain): the
checkpoint does not tell."""


class Spark(Enum):
    """A release of Spark that knows structure V2."""

    V4_0 = "4.0"
    V4_1 = "4.1"
    V4_2 = "4.2"
    V4_3 = "4.3"

    @property
    def header(self) -> str:
        """Of the metadata in snapshots of structure V2. 4.0 writes and reads its own; the others refuse it (`Expected v1,
        but found v2`), as it does theirs."""
        return "v2" if self is Spark.V4_0 else "v1"
