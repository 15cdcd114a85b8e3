"""The Spark releases that write and read checkpoints: how to tell them apart, and where their formats differ."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from statekeeper.statestore.format.logs import ENCODING

MERGES = "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion"
_KEY_ORDER = "spark.sql.dropDuplicates.deterministicKeyOrder.enabled"

RETAINED_VERSIONS = 100
"""Number of versions that Spark's cleanup keeps by default (spark.sql.streaming.minBatchesToRetain). The checkpoint
does not record this conf."""


class Spark(Enum):
    """A minor release of Spark."""

    V3_5 = "3.5"
    V4_0 = "4.0"
    V4_1 = "4.1"
    V4_2 = "4.2"
    V4_3 = "4.3"

    @property
    def knows_v2(self) -> bool:
        """Whether this release supports structure V2."""
        return self is not Spark.V3_5

    @property
    def header(self) -> str:
        """The header of `metadata` in snapshots of structure V2. 4.0 reads and writes only its own header, and the
        other releases reject it (`Expected v1, but found v2`)."""
        return "v2" if self is Spark.V4_0 else "v1"


def writers(conf: Mapping[str, str]) -> tuple[Spark, ...]:
    """Return the releases that may have written a batch, by the confs in its offset log.

    Each release adds all confs that it knows, also for a query that was first started with an older release. 4.0 and
    4.1 write the same confs: `with_checksums` tells them apart. A release before 3.5 is reported as 3.5, one after 4.3
    as 4.3. (Observed by running each release.)
    """
    if ENCODING not in conf:
        return (Spark.V3_5,)
    if MERGES not in conf:
        return (Spark.V4_0, Spark.V4_1)
    return (Spark.V4_3,) if _KEY_ORDER in conf else (Spark.V4_2,)


def with_checksums(found: tuple[Spark, ...]) -> tuple[Spark, ...]:
    """Filter the releases that write sidecars beside changelogs: all but 4.0. Sidecars can be disabled, so their
    absence proves nothing."""
    return tuple(spark for spark in found if spark is not Spark.V4_0)
