"""Rows per second of the ready-made operators, and with a TTL and a timer for each key, beside Spark's own operators."""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from benchmarks import spark_peers
from benchmarks.measure import Spread, Table, flat, ratio, verdict
from benchmarks.operator_rows import COMMON, FLOOR, PARTITIONS, of_spark
from benchmarks.turns import Contender, Course, Start, batch_of_file, compared
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch, Ttl
from statekeeper.pipelines.operators import running_aggregates, sessions, windows, with_sessions, with_windows
from statekeeper.pipelines.startup.session import spark_session

OURS = "Statekeeper"
_ONLY_WITH_ROWS = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
"""Otherwise Spark's operators run batches without rows beside the batch that is measured, those with timers always."""
_ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("at", TIMESTAMP)])
_AGGREGATES = {"count": ("count", None), "sum": ("sum", "value")}
_OF_WINDOWS = (
    "Count and sum. The event time of a row is the time of its batch. The same job without state: see "
    "[operator_rows](#operator_rows); here its rows have the columns of the window. "
    "With 10,000 rows, most of a batch is Spark's work around the task. "
    "With 100,000 rows, the largest parts of a task are the reads of the keys, the scan of the closed windows, and changes "
    "that move to disk because memory has no space for them."
)
_OF_SESSIONS = (
    "Count and sum. A session is three batches with 5 seconds of event time between them, and the gap is 10 seconds. So "
    "the first measured batch of a round closes the sessions of all keys, and both continue a session. The same job "
    "without state: as for windows."
)
_OF_AGGREGATES = (
    "Count and sum with `running_aggregates`. The same job without state: see [operator_rows](#operator_rows). With 10,000 "
    "rows, most of a batch is Spark's work around the task."
)
_OF_TIMERS = (
    "Count and sum. Each row renews the TTL of its key, and moves its timer to one hour later. None is due. The peer lists "
    "and deletes the former timer of the key and registers the new one, because Spark's timers do not replace each other."
)
_HOUR = dt.timedelta(hours=1)
_HOUR_MS = 3_600_000
_WINDOWS = windows(_ROWS, ["key"], "at", _AGGREGATES, allowed_lateness="0s")
_SESSIONS = sessions(_ROWS, ["key"], "at", _AGGREGATES, allowed_lateness="0s")
_BATCHES_OF_SESSION = 3
_TOTALS = running_aggregates(_ROWS.remove(2), ["key"], _AGGREGATES)


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark. `options.large` also runs 100,000 keys per batch with a TTL and timers."""
    session = spark_session("benchmark", master="local[2]", conf=COMMON | _ONLY_WITH_ROWS)
    in_windows: Mapping[str, Start] = {
        OURS: _our_windows,
        FLOOR: _windows_without_state,
        "native windows (JVM)": of_spark(_spark_windows, "append"),
    }
    in_sessions: Mapping[str, Start] = {
        OURS: _our_sessions,
        FLOOR: _sessions_without_state,
        "native sessions (JVM)": of_spark(_spark_sessions, "append"),
    }
    totals: Mapping[str, Start] = {
        OURS: _our_totals,
        FLOOR: _totals_without_state,
        "native aggregation (JVM)": of_spark(spark_peers.native_aggregation),
    }
    with_times: Mapping[str, Start] = {
        OURS: _our_timers,
        "transformWithStateInPandas": of_spark(_spark_timers, "update"),
    }
    tables = []
    try:
        for what, note, starts in (
            ("Windows of 10 seconds", _OF_WINDOWS, in_windows),
            ("Sessions with a gap of 10 seconds", _OF_SESSIONS, in_sessions),
            ("Running aggregates", _OF_AGGREGATES, totals),
        ):
            for keys, target in ((10_000, 1.0), (100_000, 1.5)):
                course = Course(keys=keys, rounds=options.rounds)
                tables.append(_table(what, note, compared(session, starts, course), course, target))
        sizes = (10_000, 100_000) if options.large else (10_000,)
        for keys in sizes:
            course = Course(keys=keys, rounds=options.rounds if keys == sizes[0] else 2, measured=1, warm_up=2)
            timed = compared(session, with_times, course)
            tables.append(_table("TTL and a timer per key", _OF_TIMERS, timed, course, 10.0))
    finally:
        session.stop()
    return tables


def _table(what: str, note: str, contenders: list[Contender], course: Course, target: float) -> Table:
    ours, *floor, peer = contenders
    targets = [verdict(f"rows/s to {peer.name}", ratio(peer.rounds, ours.rounds), at_least=target)]
    for one in floor:
        limit = ratio(peer.rounds, one.rounds).shown(2, "x")
        targets.append(f"{peer.name} to {one.name}, the upper limit of the ratio: {limit}")
    rows = []
    for contender in contenders:
        every = flat(contender.rounds)
        speed = Spread.of([course.keys / took * 1000 for took in every])
        rows.append([contender.name, f"{len(every)}", f"{statistics.median(every):,.0f}", speed.shown()])
    return Table(
        title=f"{what}, {course.keys:,} rows of {course.keys:,} keys per batch",
        columns=["operator", "batches", "ms per batch", "rows/s"],
        rows=rows,
        targets=targets,
        notes=[
            f"One session, local[2], {PARTITIONS} partitions each, alternating rounds. No batches without rows. "
            "Statekeeper runs with `NoSink`, Spark's operators with the sink `noop`.",
            note,
        ],
    )


def _our_windows(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_ours(_in_windows(rows), folder, PARTITIONS, operator=_WINDOWS)


def _windows_without_state(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_floor(_in_windows(rows), folder, PARTITIONS)


def _in_windows(rows: DataFrame) -> DataFrame:
    return with_windows(_with_time(rows), "at", "10 seconds")


def _spark_windows(rows: DataFrame) -> DataFrame:
    timed = _with_time(rows).withWatermark("at", "0 seconds")
    return timed.groupBy("key", F.window("at", "10 seconds")).agg(
        F.count("*").alias("count"), F.sum("value").alias("sum")
    )


def _our_sessions(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_ours(_in_sessions(rows), folder, PARTITIONS, operator=_SESSIONS)


def _sessions_without_state(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_floor(_in_sessions(rows), folder, PARTITIONS)


def _in_sessions(rows: DataFrame) -> DataFrame:
    return with_sessions(_with_session_time(rows), "at", "10 seconds")


def _spark_sessions(rows: DataFrame) -> DataFrame:
    timed = _with_session_time(rows).withWatermark("at", "0 seconds")
    return timed.groupBy("key", F.session_window("at", "10 seconds")).agg(
        F.count("*").alias("count"), F.sum("value").alias("sum")
    )


def _with_session_time(rows: DataFrame) -> DataFrame:
    batch = batch_of_file()
    # A round has as many batches as a session.
    seconds = F.floor(batch / _BATCHES_OF_SESSION) * 60 + batch % _BATCHES_OF_SESSION * 5
    return rows.withColumn("at", F.timestamp_seconds(seconds + 1_000_000_000))


def _our_totals(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_ours(rows, folder, PARTITIONS, operator=_TOTALS)


def _totals_without_state(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_floor(rows, folder, PARTITIONS)


def _with_time(rows: DataFrame) -> DataFrame:
    # In a stream, it is the time of the batch.
    return rows.withColumn("at", F.current_timestamp())


def _count(rows: pa.Table, state: pa.Table, batch: Batch) -> Update:
    new = spark_peers.count_and_sum(rows, state).state
    times = pa.array([batch.time + _HOUR] * new.num_rows, TIMESTAMP)
    return Update(new, new, timers=new.select(["key"]).append_column("at", times))


def _on_timer(keys: pa.Table, state: pa.Table, batch: Batch) -> Update:
    del keys, batch
    return Update(state.slice(0, 0))


TIMED = StatefulOperator(
    keys=["key"],
    order_by=[],
    state=spark_peers.OPERATOR.stores["default"],
    output=spark_peers.OPERATOR.outputs["output"],
    update=_count,
    ttl=Ttl(_HOUR),
    timers="processing",
    on_timer=_on_timer,
)


def _our_timers(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_ours(rows, folder, PARTITIONS, operator=TIMED)


class _CountFrames(spark_peers.CountFrames):
    """With a TTL, and one timer that moves with each batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("counts", spark_peers.STATE, _HOUR_MS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + _HOUR_MS)
        yield from super().handleInputRows(key, rows, timerValues)


def _spark_timers(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithStateInPandas(
        _CountFrames(), spark_peers.OUTPUT, "Update", "ProcessingTime"
    )
