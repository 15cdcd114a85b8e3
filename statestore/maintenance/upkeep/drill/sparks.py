"""Compares restored rows with those that Spark's `statestore` reader shows, in a local session of PySpark.

Both sides digest decoded rows, in the workers of Spark: no rows are collected. Spark imports are in the functions: only
`--against-spark` needs PySpark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError, UnsupportedEnvironment
from statekeeper.statestore.base.extras import how_to_install, missing
from statekeeper.statestore.contents.rows import OpenStore
from statekeeper.statestore.format.names import DEFAULT_STORE, StorePath
from statekeeper.statestore.format.plain_values import plain_rows
from statekeeper.statestore.format.provider import PROVIDER
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep.drill.model import Against, Comparison, DrillStore
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.rows_digest import RowsDigest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIRST_WITH_A_READER = 4
_LONGEST_REASON = 300

_FILE = "file://"


def refusal(storage: Storage) -> StatekeeperError | None:
    """Return why rows cannot be compared with Spark here; None if they can."""
    if (package := missing("pyspark")) is not None:
        return UnsupportedEnvironment(
            f"--against-spark reads the state with Spark, and the package {package} is not installed; nothing was restored",
            hint=f"run: {how_to_install('spark')}. Or leave out --against-spark",
        )
    if not storage.url.startswith(_FILE):
        return RefusedAsUnsafe(
            "--against-spark reads a checkpoint on a local disk; nothing was restored",
            path=storage.url,
            hint="copy the checkpoint to a local disk: statekeeper clone ROOT DESTINATION. Then run drill on the copy, or "
            "leave out --against-spark",
        )
    return None


def shown_digest(opened: OpenStore) -> str:
    """Digest the decoded rows of a store without column families. Raises `CorruptFile`, `UnknownFormatVersion`."""
    digest = RowsDigest()
    for pairs in opened.pairs():
        rows = opened.decoded(pairs)
        digest.add(_as_texts(plain_rows(rows.keys), plain_rows(rows.values)))
    return str(digest)


def _as_texts(keys: Iterable[Any], values: Iterable[Any]) -> Iterator[tuple[bytes, bytes]]:
    for key, value in zip(keys, values, strict=True):
        yield json.dumps(key, sort_keys=True).encode(), json.dumps(value, sort_keys=True).encode()


Compared = dict[StorePath, Comparison]


def compare(
    storage: Storage,
    restored: Sequence[tuple[DrillStore, str | StatekeeperError]],
    conf: StateConf,
    structure: Structure,
) -> Compared:
    """Compare the digests of restored stores with those of Spark's reader. One Spark job for each operator and version.

    `restored`: the digest of `shown_digest`, or why there is none. Raises `UnsupportedEnvironment`.
    """
    found: Compared = {}
    groups: dict[tuple[int, str, int], dict[int, tuple[StorePath, str]]] = {}
    for action, digest in restored:
        store = action.store
        if isinstance(digest, StatekeeperError):
            found[store] = _unknown(f"Statekeeper does not decode its rows: {digest.what}")
        else:
            group = groups.setdefault((store.operator, store.store, action.version.version), {})
            group[store.partition] = (store, digest)
    if not groups:
        return found
    session = _session(conf, structure)
    for (operator, name, version), partitions in groups.items():
        try:
            by_spark = _digests(session, storage, operator, name, version, list(partitions))
        except Exception as error:  # noqa: BLE001 - Spark raises errors of many kinds, and each means: not compared
            first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            why = f"Spark's reader fails: {first_line[:_LONGEST_REASON]}"
            found |= {store: _unknown(why) for store, _ in partitions.values()}
            continue
        what = f"Spark's reader at batch {version - 1:,}"
        for partition, (store, digest) in partitions.items():
            theirs = by_spark.get(partition, str(RowsDigest()))
            found[store] = Comparison(against=Against.SPARK, what=what, is_equal=theirs == digest)
    return found


def _unknown(why: str) -> Comparison:
    return Comparison(against=Against.SPARK, what="", is_equal=None, why=why)


def _session(conf: StateConf, structure: Structure) -> SparkSession:
    """A session for this state: beside the active session of this process, otherwise a local one that stays."""
    import pyspark
    from pyspark.sql import SparkSession

    if int(pyspark.__version__.partition(".")[0]) < _FIRST_WITH_A_READER:
        raise UnsupportedEnvironment(
            f"--against-spark needs the reader of Spark 4.0 and later, and PySpark {pyspark.__version__} is installed",
            hint="install pyspark 4.0 or later, or leave out --against-spark",
        )
    started = SparkSession.builder.master("local[2]").appName("statekeeper drill")
    for name, value in {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}.items():
        started = started.config(name, value)
    session = started.getOrCreate().newSession()
    if not hasattr(session, "_jsparkSession"):
        raise UnsupportedEnvironment(
            "--against-spark needs a classic Spark session, and this process has one of Spark Connect",
            hint="run statekeeper in a process without SPARK_REMOTE",
        )
    confs = {
        PROVIDER: conf.provider.class_name,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        **structure.conf,
    }
    for name, value in confs.items():
        session.conf.set(name, value)
    # Spark 4.2 asks for the coordinator of the state stores before anything has started it.
    session._jsparkSession.sessionState().streamingQueryManager()  # noqa: SLF001 - Spark has no call for it
    return session


def _digests(
    session: SparkSession, storage: Storage, operator: int, name: str, version: int, partitions: Sequence[int]
) -> dict[int, str]:
    """Digest the rows that Spark shows of some partitions."""
    from pyspark.sql import functions

    reader = session.read.format("statestore").option("operatorId", operator).option("batchId", version - 1)
    if name != DEFAULT_STORE:
        reader = reader.option("storeName", name)
    rows = reader.load(unquote(storage.url.removeprefix(_FILE))).select("partition_id", "key", "value")
    some = rows.where(functions.col("partition_id").isin(list(partitions)))
    found: dict[int, RowsDigest] = {}
    for row in some.mapInArrow(_digested, "partition_id int, digest string").collect():
        found.setdefault(row["partition_id"], RowsDigest()).merge(RowsDigest.parse(row["digest"]))
    return {partition: str(digest) for partition, digest in found.items()}


def _digested(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Digest batches of rows by partition. Runs in a worker of Spark."""
    found: dict[int, RowsDigest] = {}
    for batch in batches:
        numbers = batch.column("partition_id").to_pylist()
        rows = plain_rows(pa.table({"key": batch.column("key"), "value": batch.column("value")}))
        pairs = _as_texts((row["key"] for row in rows), (row["value"] for row in rows))
        for number, pair in zip(numbers, pairs, strict=True):
            found.setdefault(number, RowsDigest()).add([pair])
    arrays = [pa.array(list(found), pa.int32()), pa.array(list(map(str, found.values())), pa.string())]
    yield pa.RecordBatch.from_arrays(arrays, names=["partition_id", "digest"])
