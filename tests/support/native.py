"""Native stateful queries, one for each operator of Spark.

A query reads rows from folders of Parquet files, one file per batch, so that two queries can get the same batches. Its
output is recorded by batch. Spark's `statestore` source reads its state.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
except ImportError:  # Spark 3.5 has none, and the queries without one run there, too
    StatefulProcessor = object

STATE_STORE = "spark.sql.streaming.stateStore."
_PROVIDER = f"{STATE_STORE}providerClass"
FORMAT = f"{STATE_STORE}checkpointFormatVersion"
CHANGELOGS = f"{STATE_STORE}rocksdb.changelogCheckpointing.enabled"
NAMED_SINKS = "spark.sql.streaming.queryEvolution.enableSinkEvolution"
"""Spark 4.2: sinks have names, and commit logs contain them, in their own log version."""
ONLY_CHANGELOGS: Mapping[str, str] = {
    _PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    CHANGELOGS: "true",
    f"{STATE_STORE}minDeltasForSnapshot": "2147483647",
    f"{STATE_STORE}forceSnapshotUploadOnLag": "false",
}
"""The settings of a query whose snapshots Statekeeper makes."""

DEFAULT_PROVIDER: Mapping[str, str] = {
    _PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    FORMAT: "1",
}
"""The settings of a query with Spark's default provider; only structure V1."""

_EXPIRES = re.compile(r"ttlExpirationMs=\d+")
"""Expiry times depend on the time of day at which a twin ran."""

SCHEMA = "k string, at timestamp, x bigint"
ROWS = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])
START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
KEYS = 12
MINUTE = dt.timedelta(minutes=1)


def rows(batch: int, side: str = "left") -> pa.Table:
    """Return the rows of a batch: four minutes with new keys, returning keys and absent keys."""
    shift = 0 if side == "left" else 1
    found = []
    for n in range(24):
        key = (n * (batch + 1) + shift) % KEYS if n % 5 else (batch * 7 + n) % (4 * KEYS)
        at = START + MINUTE * (4 * batch) + dt.timedelta(seconds=10 * n)
        found.append({"k": f"key {key}", "at": at, "x": batch * 100 + n + shift})
    return pa.Table.from_pylist(found, schema=ROWS)


Query = Callable[[DataFrame, DataFrame], DataFrame]


@dataclass(frozen=True)
class Operator:
    """A stateful operator of Spark: its query over a left and a right stream, output mode and settings.

    `views`: options of Spark's reader, one mapping for each part of the state. `since`, `until`: the first and the last
    Spark release that runs it; `since_v2`: the first release that runs it in structure V2.
    """

    query: Query
    mode: str = "append"
    confs: Mapping[str, str] = field(default_factory=dict)
    views: Sequence[Mapping[str, str]] = ({},)
    since: str = "3.5"
    until: str = "4.3"
    since_v2: str = "4.0"

    def runs_on(self, minor: str, structure: str = "1") -> bool:
        """Return whether this Spark release runs the operator."""
        since = self.since if structure == "1" else max(self.since, self.since_v2)
        return since <= minor <= self.until


def _aggregation(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.groupBy("k").agg(F.count("x").alias("n"), F.sum("x").alias("total"))


def _windows(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.withWatermark("at", "2 minutes").groupBy(F.window("at", "3 minutes"), "k").agg(F.max("x").alias("most"))


def _distinct(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.dropDuplicates(["k"])


def _distinct_for_a_while(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.withWatermark("at", "3 minutes").dropDuplicatesWithinWatermark(["k"])


def _sessions(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.withWatermark("at", "1 minute").groupBy(F.session_window("at", "40 seconds"), "k").count()


def _running_sums(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    total = state.get[0] if state.exists else 0
    total += sum(int(frame["x"].sum()) for frame in frames)
    if total % 7 == 0:
        state.remove()
    else:
        state.update((total,))
    yield pd.DataFrame({"k": [key[0]], "total": [total]})


def _apply_in_pandas(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.groupBy("k").applyInPandasWithState(
        _running_sums, "k string, total bigint", "total bigint", "update", GroupStateTimeout.NoTimeout
    )


def _of_all_rows(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.agg(F.count("x").alias("n"), F.sum("x").alias("total"))


def _limited(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.limit(100)


def _join(left: DataFrame, right: DataFrame, how: str = "leftOuter") -> DataFrame:
    ours = left.withWatermark("at", "2 minutes").select("k", F.col("at").alias("a"), F.col("x").alias("l"))
    theirs = right.withWatermark("at", "2 minutes").select(
        F.col("k").alias("rk"), F.col("at").alias("b"), F.col("x").alias("r")
    )
    soon = (
        (F.col("k") == F.col("rk"))
        & (F.col("b") >= F.col("a") - F.expr("interval 1 minute"))
        & (F.col("b") <= F.col("a") + F.expr("interval 3 minutes"))
    )
    return ours.join(theirs, soon, how)


def _inner_join(left: DataFrame, right: DataFrame) -> DataFrame:
    return _join(left, right, "inner")


class _Everything(StatefulProcessor):
    """Uses a value, a list, a map, a timer and a time to live."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "total bigint")
        self._seen = handle.getListState("seen", "x bigint")
        self._by_minute = handle.getMapState("by_minute", "minute bigint", "n bigint")
        self._lately = handle.getValueState("lately", "x bigint", 3_600_000)

    def handleInputRows(  # noqa: N802 - Spark's name
        self, key: Any, frames: Iterator[pd.DataFrame], timer_values: Any
    ) -> Iterator[pd.DataFrame]:
        total = self._total.get()[0] if self._total.exists() else 0
        for frame in frames:
            total += int(frame["x"].sum())
            for x in frame["x"].tolist():
                self._seen.appendValue((int(x),))
            for minute in frame["at"].dt.minute.tolist():
                before = self._by_minute.getValue((minute,)) if self._by_minute.containsKey((minute,)) else (0,)
                self._by_minute.updateValue((minute,), (before[0] + 1,))
        if total % 7 == 0:
            self._seen.clear()
        self._total.update((total,))
        self._lately.update((total,))
        if not list(self._handle.listTimers()):
            self._handle.registerTimer(4_000_000_000_000)
        seen = [x for (x,) in self._seen.get()] if self._seen.exists() else []
        minutes = sorted((m, n) for (m,), (n,) in self._by_minute.iterator())
        yield pd.DataFrame({"k": [key[0]], "total": [total], "seen": [str(sorted(seen))], "minutes": [str(minutes)]})

    def close(self) -> None:
        pass


def _transform(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.groupBy("k").transformWithStateInPandas(
        _Everything(), "k string, total bigint, seen string, minutes string", "update", "ProcessingTime"
    )


def _two_operators(left: DataFrame, right: DataFrame) -> DataFrame:
    return _distinct_for_a_while(left, right).groupBy(F.window("at", "3 minutes")).agg(F.count("k").alias("n"))


_JOIN_STORES = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
_JOIN_VIEWS = [*({"storeName": store} for store in _JOIN_STORES), {"joinSide": "left"}, {"joinSide": "right"}]
_VARIABLES = [
    {"stateVarName": "total"},
    {"stateVarName": "lately"},
    {"stateVarName": "by_minute"},
    {"stateVarName": "seen", "flattenCollectionTypes": "true"},
    {"readRegisteredTimers": "true"},
]
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
OPERATORS: Mapping[str, Operator] = {
    "aggregation": Operator(_aggregation, "update"),
    "windows": Operator(_windows),
    "dropDuplicates": Operator(_distinct),
    "dropDuplicatesWithinWatermark": Operator(_distinct_for_a_while),
    "sessions": Operator(_sessions),
    "applyInPandasWithState": Operator(_apply_in_pandas, "update"),
    # In structure V2, Spark 4.0 asserts that each operator has `spark.sql.shuffle.partitions` partitions.
    "aggregation of all rows": Operator(_of_all_rows, "update", since_v2="4.1"),
    "limit": Operator(_limited, since_v2="4.1"),
    # No Spark release runs outer joins in this format. From 4.0, Spark cannot write its schema and runs no join in it.
    "join 1": Operator(_inner_join, confs={JOIN_FORMAT: "1"}, views=_JOIN_VIEWS, until="3.5"),
    "join 2": Operator(_join, confs={JOIN_FORMAT: "2"}, views=_JOIN_VIEWS),
    "join 3": Operator(_join, confs={JOIN_FORMAT: "3"}, views=_JOIN_VIEWS, since="4.1"),
    "join 4": Operator(
        _join,
        confs={JOIN_FORMAT: "4", "spark.sql.streaming.join.stateFormatV4.enabled": "true"},
        views=_JOIN_VIEWS[-2:],
        since="4.2",
    ),
    # With processing-time timers, Spark would never stop running batches without data.
    "transformWithState": Operator(
        _transform, "update", {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}, _VARIABLES, "4.0"
    ),
    "two operators": Operator(_two_operators, views=({"operatorId": "0"}, {"operatorId": "1"})),
}

HERE = tuple(name for name, operator in OPERATORS.items() if operator.runs_on("4.2"))
"""The operators that Spark 4.2 runs, the release in the environment."""

ON_DEFAULT_PROVIDER = tuple(name for name in HERE if name not in ("join 3", "join 4", "transformWithState"))
"""Those that it runs with its default provider, which has no column families."""


class NativeQuery:
    """One query with its own checkpoint below `folder`, which has no spaces in its path.

    Its twin is the same query in the same folder at another time, because checkpoints contain the absolute paths of inputs
    and schemas. `saved` copies the checkpoint, `restored` puts the copy back.
    """

    def __init__(self, spark: SparkSession, folder: Path, operator: Operator, confs: Mapping[str, str]) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.outputs: dict[int, Counter[str]] = {}
        self.progress: list[StreamingQueryProgress] = []
        self.operator = operator
        self.confs = {**ONLY_CHANGELOGS, **operator.confs, **confs}
        self.batches = 0
        self._saved: dict[str, tuple[int, dict[int, Counter[str]]]] = {}
        for side in ("left", "right"):
            (folder / side).mkdir(parents=True, exist_ok=True)

    @property
    def root(self) -> str:
        """The URL of the checkpoint for Statekeeper."""
        return str(self.checkpoint)

    def repartition(self, partitions: int) -> None:
        """Repartition the state with the offline tool of Spark 4.2."""
        with configured(self.spark, self.confs):
            manager = self.spark._jsparkSession.streamingCheckpointManager()
            manager.repartition(str(self.checkpoint), partitions, True)

    def add_input(self, batches: int) -> None:
        """Add the input of this number of further batches."""
        for batch in range(self.batches, self.batches + batches):
            for side in ("left", "right"):
                path = self.folder / side / f"{batch:05}.parquet"
                pq.write_table(rows(batch, side), path, coerce_timestamps="us")
                # Spark reads files in the order of their modification times.
                os.utime(path, (batch, batch))
        self.batches += batches

    def run(self, batches: int) -> None:
        """Run this number of further batches from the checkpoint, each with fresh input. The query starts and ends."""
        self.add_input(batches)
        with configured(self.spark, self.confs):
            streams = [
                self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self.folder / side))
                for side in ("left", "right")
            ]
            writer = (
                self.with_sink(self.operator.query(*streams))
                .outputMode(self.operator.mode)
                .option("checkpointLocation", str(self.checkpoint))
                .trigger(availableNow=True)
            )
            if self.confs.get(NAMED_SINKS) == "true":
                writer._jwrite.name("the_sink")
            query = writer.start()
            query.awaitTermination()
            self.progress = query.recentProgress

    def with_sink(self, rows: DataFrame) -> DataStreamWriter:
        """The writer of the output, which records the rows of each batch."""

        def keep(frame: DataFrame, batch: int) -> None:
            self.outputs[batch] = Counter(map(str, frame.collect()))

        return rows.writeStream.foreachBatch(keep)

    def saved(self, name: str) -> None:
        """Save the checkpoint, the outputs and the number of batches under a name."""
        self._keep(name)
        self._saved[name] = (self.batches, dict(self.outputs))

    def restored(self, name: str) -> None:
        """Restore the checkpoint, the outputs and the number of batches of this name."""
        self._take_back(name)
        self.batches, outputs = self._saved[name]
        self.outputs = dict(outputs)
        # A run reads all input files, and a twin may have written later ones.
        for side in ("left", "right"):
            for path in (self.folder / side).glob("*.parquet"):
                if int(path.stem) >= self.batches:
                    path.unlink()

    def _keep(self, name: str) -> None:
        shutil.copytree(self.checkpoint, self.folder / name)

    def _take_back(self, name: str) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self.folder / name, self.checkpoint)


@contextmanager
def configured(spark: SparkSession, confs: Mapping[str, str]) -> Iterator[None]:
    """Change the configuration of the session until the block ends."""
    before = {name: spark.conf.get(name, None) for name in confs}
    for name, value in confs.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def views(query: NativeQuery, *, batch: int | None = None) -> dict[str, list[Row]]:
    """Return the rows of each view that Spark's reader shows, of the newest batch by default."""
    return {str(options): view.collect() for options, view in _views(query, batch)}


def state(query: NativeQuery, *, batch: int | None = None) -> dict[str, Counter[str]]:
    """Return the views as text without expiry times, so that two runs can be compared."""
    shown = views(query, batch=batch)
    return {view: Counter(_EXPIRES.sub("", str(row)) for row in found) for view, found in shown.items()}


def views_as_json(query: NativeQuery, *, batch: int | None = None) -> dict[str, list[str]]:
    """Return the views with each row as Spark's JSON, which omits nulls, by the options as JSON."""
    found = {}
    for options, view in _views(query, batch):
        # Rows of a join side have one column more than their schema, and `to_json` fails on it.
        parts = [_by_columns(view, part) for part in view.columns] if "joinSide" in options else ["*"]
        as_json = view.select(F.to_json(F.struct(*parts)))
        found[json.dumps(dict(options))] = [row[0] for row in as_json.collect()]
    return found


def _by_columns(view: DataFrame, name: str) -> Column:
    kind = view.schema[name].dataType
    if not isinstance(kind, StructType):
        return F.col(name)
    return F.struct(*(F.col(f"{name}.{column}") for column in kind.names)).alias(name)


def _views(query: NativeQuery, batch: int | None) -> Iterator[tuple[Mapping[str, str], DataFrame]]:
    session = query.spark.newSession()
    for name, value in {**query.confs, "spark.sql.session.timeZone": "UTC"}.items():
        session.conf.set(name, value)
    # Spark 4.2 uses the state store coordinator, which only the query manager starts.
    session._jsparkSession.sessionState().streamingQueryManager()
    for options in query.operator.views:
        reader = session.read.format("statestore").options(**options)
        if batch is not None:
            reader = reader.option("batchId", batch)
        yield options, reader.load(str(query.checkpoint))
