"""The Sparks that write checkpoints and go on from them: how to tell them apart, and where what they read differs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from statestore.format.logs import ENCODING

MERGES = "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion"
_KEY_ORDER = "spark.sql.dropDuplicates.deterministicKeyOrder.enabled"

RETAINED_VERSIONS = 100
"""So many versions Spark's clean-up keeps, unless it is told otherwise (spark.sql.streaming.minBatchesToRetain): the
checkpoint does not tell."""


class Spark(Enum):
    """A minor release of Spark."""

    V3_5 = "3.5"
    V4_0 = "4.0"
    V4_1 = "4.1"
    V4_2 = "4.2"
    V4_3 = "4.3"

    @property
    def knows_v2(self) -> bool:
        """Whether there is structure V2 in it."""
        return self is not Spark.V3_5

    @property
    def header(self) -> str:
        """Of the metadata in snapshots of structure V2. 4.0 writes and reads its own; the others refuse it (`Expected v1,
        but found v2`), as it does theirs."""
        return "v2" if self is Spark.V4_0 else "v1"


def writers(conf: Mapping[str, str]) -> tuple[Spark, ...]:
    """Which Sparks may have written a batch, by the confs in its offset log: each release puts in all that it knows, also
    for a query that began with an older one. 4.0 and 4.1 write the same: `with_checksums` tells them apart.

    One older than 3.5 is taken for 3.5, one newer than 4.3 for 4.3. (Seen by running each.)
    """
    if ENCODING not in conf:
        return (Spark.V3_5,)
    if MERGES not in conf:
        return (Spark.V4_0, Spark.V4_1)
    return (Spark.V4_3,) if _KEY_ORDER in conf else (Spark.V4_2,)


def with_checksums(found: tuple[Spark, ...]) -> tuple[Spark, ...]:
    """Which of these puts sidecars beside changelogs: 4.0 has none. They can be switched off, so that nothing follows from
    there being none."""
    return tuple(spark for spark in found if spark is not Spark.V4_0)
