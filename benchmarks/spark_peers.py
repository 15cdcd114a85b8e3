"""Count and sum per key, for the operator of `pipelines` and for each of Spark's own operators.

Contains the computations and the start of their queries. Spark's follow its documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from statekeeper.pipelines.batch.progress import Observer
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.sinks.sink import NoSink, Sink
from statekeeper.pipelines.startup.query import start
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.host import Host

INPUT = "key bigint, value bigint"
OUTPUT = "key bigint, count bigint, sum bigint"
STATE = "count bigint, sum bigint"

Peer = Callable[[DataFrame], DataFrame]
"""Computes the counts from the rows, in update mode."""


def count_and_sum(rows: pa.Table, state: pa.Table) -> Update:
    """Update count and sum of each key."""
    batch = rows.group_by("key", use_threads=False).aggregate([([], "count_all"), ("value", "sum")])
    partial = pa.concat_tables([batch.rename_columns(state.column_names), state])
    total = partial.group_by("key", use_threads=False).aggregate([("count", "sum"), ("sum", "sum")])
    counts = total.rename_columns(state.column_names)
    return Update(counts, counts)


OPERATOR = StatefulOperator(
    keys=["key"],
    order_by=[],
    state=pa.schema([("count", pa.int64()), ("sum", pa.int64())]),
    output=pa.schema([("key", pa.int64()), ("count", pa.int64()), ("sum", pa.int64())]),
    update=count_and_sum,
)


NO_SINK = NoSink()


def start_ours(
    rows: DataFrame,
    folder: Path,
    partitions: int,
    observer: Observer | None = None,
    *,
    sink: Sink = NO_SINK,
    log: LogLayout | None = None,
    key_groups: int = 128,
    tasks: int | None = None,
    operator: StatefulOperator = OPERATOR,
    tick: str | None = None,
    host: Host | None = None,
) -> StreamingQuery:
    """Start a query with the operator of `pipelines`."""
    query = start(
        operator,
        rows,
        root=str(folder / "state"),
        checkpoint=str(folder / "checkpoint"),
        sink=sink,
        log=log,
        partitions=partitions,
        key_groups=key_groups,
        tasks=tasks,
        host=host or Host(str(folder / "local")),
        observer=observer,
        tick=tick,
        trigger={"processingTime": "0 seconds"},
    )
    return query.streaming_query


def start_floor(rows: DataFrame, folder: Path, partitions: int) -> StreamingQuery:
    """Start the lower bound of the operator: the same Spark job on the same rows, without state and computation."""

    def batch(given: DataFrame, _: int) -> None:
        routed = given.repartitionById(partitions, F.expr(f"CAST(pmod(hash(key), {partitions}) AS INT)"))
        routed.mapInArrow(_count, "rows bigint").collect()

    checkpoint = str(folder / "checkpoint")
    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime="0 seconds").start()


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})


def start_peer(peer: Peer, rows: DataFrame, folder: Path, mode: str = "update") -> StreamingQuery:
    """Start a query with one of Spark's operators. Its output is discarded."""
    return (
        peer(rows)
        .writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )


def start_into_delta(peer: Peer, rows: DataFrame, folder: Path) -> StreamingQuery:
    """Start a query with one of Spark's operators and an idempotent append to a Delta table, per Delta's documentation."""
    table = str(folder / "output")

    def append(output: DataFrame, batch: int) -> None:
        writer = output.write.format("delta").mode("append").option("txnAppId", "peer").option("txnVersion", batch)
        writer.save(table)

    writer = peer(rows).writeStream.foreachBatch(append).outputMode("update")
    checkpoint = str(folder / "checkpoint")
    return writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()


def native_aggregation(rows: DataFrame) -> DataFrame:
    """Aggregate with Spark's own operator in the JVM."""
    return rows.groupBy("key").agg(F.count("*").alias("count"), F.sum("value").alias("sum"))


def apply_in_pandas_with_state(rows: DataFrame) -> DataFrame:
    """Aggregate with `applyInPandasWithState`."""

    def update(key: tuple[int], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        count, total = state.get if state.exists else (0, 0)
        for frame in frames:
            count += len(frame)
            total += int(frame["value"].sum())
        state.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "sum": [total]})

    return rows.groupBy("key").applyInPandasWithState(update, OUTPUT, STATE, "update", "NoTimeout")


class CountRows(StatefulProcessor):
    """Processor of rows, for `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("counts", STATE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        count, total = self._state.get() or (0, 0)
        for row in rows:
            count += 1
            total += row.value
        self._state.update((count, total))
        yield Row(key=key[0], count=count, sum=total)


class CountFrames(CountRows):
    """Processor of pandas frames, for `transformWithStateInPandas`."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        import pandas as pd

        count, total = self._state.get() or (0, 0)
        for frame in rows:
            count += len(frame)
            total += int(frame["value"].sum())
        self._state.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "sum": [total]})


def transform_with_state(rows: DataFrame) -> DataFrame:
    """Aggregate with `transformWithState` of Python, row by row."""
    return rows.groupBy("key").transformWithState(CountRows(), OUTPUT, "Update", "None")


def transform_with_state_in_pandas(rows: DataFrame) -> DataFrame:
    """Aggregate with `transformWithStateInPandas`."""
    return rows.groupBy("key").transformWithStateInPandas(CountFrames(), OUTPUT, "Update", "None")


def stream(session: SparkSession, folder: Path) -> DataFrame:
    """Read the files in `folder` as a stream, one file per batch."""
    return session.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).parquet(str(folder))
