"""The Spark releases that write and read checkpoints: how to tell them apart, and where their formats differ."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from statekeeper.statestore.format.logs import ENCODING
from statekeeper.statestore.format.names import LARGEST_VERSION, parse_store_file
from statekeeper.statestore.format.provider import Provider

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


_ZIP = ".zip"
_PARSED = (_ZIP, ".changelog")
_SNAPSHOT = ".snapshot"


def stops_loads(name: str, provider: Provider = Provider.ROCKSDB) -> bool:
    """Return whether a file with this name in a V1 store's folder makes Spark unable to load the store.

    Spark parses each name that ends in `.zip`, hidden or not, as the number of a version. With the default provider, it
    does so since 4.2 for each name that ends in `.snapshot`.
    """
    if "/" in name or not name.endswith(_SNAPSHOT if provider is Provider.HDFS_BACKED else _ZIP):
        return False
    parsed = parse_store_file(name, provider)
    return parsed is None or parsed.version.id is not None


def counted_as(name: str, provider: Provider = Provider.ROCKSDB) -> int | None:
    """Return the version that Spark's cleanup assigns to a file with this name; None if it does not count it as a
    snapshot."""
    if provider is Provider.HDFS_BACKED:
        return None  # only files with its own names
    number = name.removesuffix(_ZIP).partition("_")[0]
    is_taken = name.endswith(_ZIP) and "/" not in name and not stops_cleanup(name)
    return int(number) if is_taken else None


def stops_cleanup(name: str, provider: Provider = Provider.ROCKSDB) -> bool:
    """Return whether a file with this name in a store's folder makes Spark's cleanup of the store fail, silently and
    each time.

    Spark expects a number, optionally followed by one word. With the default provider, it expects a number before the dot
    of each name with exactly one dot.
    """
    if "/" in name:
        return False
    if provider is Provider.HDFS_BACKED:
        return name.count(".") == 1 and not _is_version(name.partition(".")[0])
    base, dot, kind = name.rpartition(".")
    number, *words = base.split("_")
    return f"{dot}{kind}" in _PARSED and (len(words) > 1 or not _is_version(number))


def _is_version(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) <= LARGEST_VERSION
