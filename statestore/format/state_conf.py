"""What of a query's confs its state's bytes depend on, as its offset log pins them.

Spark writes these confs into `offsets/N` when a query first starts, and obeys them from then on, whatever a later session
or a later Spark would choose. So they are read there, never guessed by version.
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.errors import CorruptFile, UnknownFormatVersion
from statestore.format.logs import ENCODING, PROVIDER, ROCKSDB_PROVIDER, SHUFFLE_PARTITIONS, OffsetLog
from statestore.format.names import MOST_PARTITIONS
from statestore.format.sparks import MERGES, Spark, writers

_ROW_CHECKSUMS = "spark.sql.streaming.stateStore.rowChecksum.enabled"
_DELIMITERS = {"1": b",", "2": b""}

UNSAFE_ROW = "unsaferow"
"""Rows as `unsafe_row` reads them; what a query has that names no encoding."""


@dataclass(frozen=True)
class StateConf:
    """`merge_delimiter` stands between what is merged into one value; `row_checksums`: whether every record has one;
    `encoding`: how rows become bytes, in Spark's word; `written_by`: the Sparks that may have written this."""

    merge_delimiter: bytes = b""
    row_checksums: bool = False
    encoding: str = UNSAFE_ROW
    written_by: tuple[Spark, ...] = ()


def shuffle_partitions(log: OffsetLog, path: str) -> int | None:
    """How many partitions a query's stateful operators have, those that have not just one; None where the log does not say.

    The query keeps to what it began with. Raises `CorruptFile` for what is no such number.
    """
    text = log.conf.get(SHUFFLE_PARTITIONS)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and 0 < int(text) <= MOST_PARTITIONS):
        raise CorruptFile(f"{SHUFFLE_PARTITIONS} is {text[:40]!r}", path=path, hint="restore the file from a backup")
    return int(text)


OURS = StateConf()
"""Of our own roots."""


def state_conf(log: OffsetLog, path: str) -> StateConf:
    """The confs of a query's state. Raises `UnknownFormatVersion` for a state store that is not RocksDB, or for a way to
    merge that this release does not know."""
    provider = log.conf.get(PROVIDER, "")
    if provider != ROCKSDB_PROVIDER:
        raise UnknownFormatVersion(
            f"the query's state store is {provider.rpartition('.')[2] or 'not named'}, this release knows Spark's RocksDB",
            path=path,
            hint=f"queries that start with {PROVIDER}={ROCKSDB_PROVIDER} can be maintained",
        )
    # Spark before 4.2 has no such conf, and merges with the comma; a query that began there stays with it.
    version = log.conf.get(MERGES, "1")
    if version not in _DELIMITERS:
        raise UnknownFormatVersion(f"{MERGES} is {version}: known are 1 and 2", path=path, hint="nothing was changed")
    row_checksums = log.conf.get(_ROW_CHECKSUMS, "false") == "true"
    encoding = log.conf.get(ENCODING, UNSAFE_ROW)
    return StateConf(_DELIMITERS[version], row_checksums, encoding, writers(log.conf))
