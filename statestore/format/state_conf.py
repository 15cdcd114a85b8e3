"""The confs of a query that determine the bytes of its state, as its offset log records them.

Spark writes these confs into `offsets/N` when a query first starts, and then uses them regardless of later sessions or
releases. So they are read from the log and never guessed from the version.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from statekeeper.statestore.base.errors import RESTORE, CorruptFile, UnknownFormatVersion, UnsupportedProvider
from statekeeper.statestore.format.logs import CODEC, ENCODING, SHUFFLE_PARTITIONS, OffsetLog
from statekeeper.statestore.format.names import MOST_PARTITIONS
from statekeeper.statestore.format.provider import PROVIDER, Provider, provider_of
from statekeeper.statestore.format.sparks import MERGES, Spark, writers

SETTINGS_OF_STATE = (
    PROVIDER,
    SHUFFLE_PARTITIONS,
    CODEC,
    ENCODING,
    MERGES,
    "spark.sql.streaming.stateStore.rowChecksum.enabled",
    "spark.sql.streaming.statefulOperator.useStrictDistribution",
    "spark.sql.streaming.aggregation.stateFormatVersion",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
    "spark.sql.streaming.join.stateFormatVersion",
)
"""The confs that determine where a row is, and its bytes. A query keeps them from its first batch on."""

_ROW_CHECKSUMS = "spark.sql.streaming.stateStore.rowChecksum.enabled"
_STRICT_DISTRIBUTION = "spark.sql.streaming.statefulOperator.useStrictDistribution"
_DELIMITERS = {"1": b",", "2": b""}

AVRO = "avro"
"""Rows as `avro_rows` decodes them; only of transformWithState."""
UNSAFE_ROW = "unsaferow"
"""Rows as `unsafe_row` decodes them; the default of queries that name no encoding."""


@dataclass(frozen=True, kw_only=True)
class StateConf:
    """The confs of the state.

    `merge_delimiter` separates merged values; `row_checksums`: whether every record has a checksum; `encoding`: how
    rows are encoded, by Spark's name; `written_by`: the releases that may have written the state;
    `is_strictly_distributed`: whether each operator partitions its rows by all columns of its key (SPARK-38204). If not,
    Spark may have partitioned them by some of the columns.
    `provider`: of the state files.
    """

    merge_delimiter: bytes = b""
    row_checksums: bool = False
    encoding: str = UNSAFE_ROW
    written_by: tuple[Spark, ...] = ()
    is_strictly_distributed: bool = True
    provider: Provider = Provider.ROCKSDB


def shuffle_partitions(log: OffsetLog, path: str) -> int | None:
    """Return the number of partitions of a query's stateful operators, except those that have only one; None if the log
    lacks it.

    The query keeps the number of its first start. Raises `CorruptFile` for an invalid number.
    """
    text = log.conf.get(SHUFFLE_PARTITIONS)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and 0 < int(text) <= MOST_PARTITIONS):
        raise CorruptFile(
            f"sets {SHUFFLE_PARTITIONS} to the invalid value {text[:40]!r}",
            path=path,
            hint=RESTORE,
        )
    return int(text)


OURS = StateConf()
"""The confs of Statekeeper's roots."""


def state_conf(log: OffsetLog, path: str) -> StateConf:
    """Return the confs of a query's state. Raises `UnsupportedProvider` for a provider of another library, and
    `UnknownFormatVersion` for an unknown merge operator."""
    provider = provider_of(log.conf)
    if provider is None:
        raise UnsupportedProvider(
            f"the query's state store provider is {log.conf[PROVIDER]}; Statekeeper supports only the providers of Spark",
            path=path,
            hint=f"start the query with {PROVIDER}={Provider.ROCKSDB.class_name} and a new checkpoint",
        )
    # Spark before 4.2 lacks this conf and merges with a comma. A query that was first started there keeps the comma.
    version = log.conf.get(MERGES, "1")
    if version not in _DELIMITERS:
        raise UnknownFormatVersion(
            f"sets {MERGES}={version}; only 1 and 2 are supported",
            path=path,
            hint="nothing was changed; upgrade Statekeeper",
        )
    row_checksums = log.conf.get(_ROW_CHECKSUMS, "false") == "true"
    # The default provider ignores the encoding.
    encoding = log.conf.get(ENCODING, UNSAFE_ROW) if provider is Provider.ROCKSDB else UNSAFE_ROW
    return StateConf(
        merge_delimiter=_DELIMITERS[version],
        row_checksums=row_checksums,
        encoding=encoding,
        written_by=writers(log.conf),
        # Queries that were first started before Spark 3.3 lack it.
        is_strictly_distributed=log.conf.get(_STRICT_DISTRIBUTION, "false") == "true",
        provider=provider,
    )


ROCKSDB = (Provider.ROCKSDB,)
"""What a command supports unless it says otherwise."""


def require_provider(conf: StateConf, supported: Collection[Provider], path: str) -> None:
    """Raise `UnsupportedProvider` if a command does not support the provider."""
    if conf.provider not in supported:
        raise UnsupportedProvider(
            f"the query's state store provider is {conf.provider.value}, Spark's default, which this command does not "
            "support; nothing was changed",
            path=path,
            hint="stop the query, then run: statekeeper convert ROOT --to rocksdb",
        )
