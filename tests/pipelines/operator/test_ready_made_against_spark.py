"""The ready-made operators return the rows of Spark's own operators, batch by batch, on shuffled and late data."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.operators import (
    first_rows,
    running_aggregates,
    sessions,
    windows,
    with_sessions,
    with_windows,
)
from statekeeper.pipelines.sinks.sink import AtLeastOnceSink
from statekeeper.pipelines.startup.older_roots import with_separate_timers
from tests.support.streams import Seen, Stream, conf

COLUMNS = pa.schema(
    [
        ("key", pa.int64()),
        ("value", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(5, 2)),
        ("score", pa.float64()),
    ]
)
BATCHES = 8
AGGREGATES = {
    "n": ("count", None),
    "total": ("sum", "value"),
    "top": ("max", "value"),
    "paid": ("sum", "price"),
    "best": ("max", "score"),
    "worst": ("min", "score"),
}
SCORES = np.array([None, math.nan, -1.5, 0.25, 3.0, math.inf], object)
CONFS = {"spark.sql.streaming.noDataMicroBatches.enabled": "false", "spark.sql.shuffle.partitions": "2"}

ByBatch = dict[int, Counter[str]]


def rows_of(batch: int, *, unique: bool) -> pa.Table:
    """Return rows around 10 minutes times the batch; one in five is up to an hour late. Times are whole minutes."""
    random = np.random.default_rng(batch)
    count = 60
    minutes = batch * 10 + random.integers(0, 12, count)
    minutes = np.where(random.random(count) < 0.2, minutes - random.integers(0, 60, count), minutes)
    keys = batch * count + np.arange(count) if unique else random.integers(0, 6, count)
    if unique:
        keys = np.where(random.random(count) < 0.5, random.integers(0, max(batch, 1) * count, count), keys)
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    at = [start + dt.timedelta(minutes=int(minute)) for minute in minutes]
    prices = [Decimal(int(cents)) / 100 for cents in random.integers(90_000, 99_999, count)]
    scores = random.choice(SCORES, count, p=[0.2, 0.1, 0.2, 0.2, 0.2, 0.1])
    of_rows = {"key": keys, "value": random.integers(0, 100, count), "at": at, "price": prices, "score": scores}
    return pa.table({name: pa.array(of_rows[name], COLUMNS.field(name).type) for name in COLUMNS.names})


def text(rows: DataFrame) -> Counter[str]:
    return Counter(repr(sorted(row.asDict(recursive=True).items())) for row in rows.collect())


def native(stream: Stream, query: DataFrame, mode: str) -> tuple[ByBatch, dict[int, int]]:
    """Run Spark's own operator. Return its rows and the number of dropped rows, by batch."""
    found: ByBatch = {}

    def keep(rows: DataFrame, batch: int) -> None:
        found[batch] = text(rows)

    writer = query.writeStream.foreachBatch(keep).outputMode(mode)
    running = writer.option("checkpointLocation", str(stream.folder / "native")).trigger(availableNow=True).start()
    running.awaitTermination()
    dropped = {
        progress.batchId: sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
        for progress in running.recentProgress
    }
    return found, dropped


def ours(stream: Stream, operator: StatefulOperator, rows: DataFrame) -> tuple[ByBatch, dict[int, int]]:
    found: ByBatch = {}

    def keep(rows: DataFrame, batch: int) -> None:
        found[batch] = text(rows)

    seen = Seen()
    stream.run(operator, rows=rows, sink=AtLeastOnceSink(keep), seen=seen)
    return found, {report.batch: report.late_rows for report in seen.batches}


def flat(query: DataFrame, struct: str, start: str, end: str) -> DataFrame:
    """Replace Spark's window by two columns."""
    return query.withColumns({start: F.col(f"{struct}.start"), end: F.col(f"{struct}.end")}).drop(struct)


def aggregated(grouped: Any) -> DataFrame:
    found: DataFrame = grouped.agg(
        F.count("*").alias("n"),
        F.sum("value").alias("total"),
        F.max("value").alias("top"),
        F.sum("price").alias("paid"),
        F.max("score").alias("best"),
        F.min("score").alias("worst"),
    )
    return found


def of_windows(slide: str | None) -> tuple[Any, ...]:
    def spark(rows: DataFrame) -> DataFrame:
        window = F.window("at", "10 minutes", slide).alias("window")
        grouped = rows.withWatermark("at", "10 minutes").groupBy("key", window)
        return flat(aggregated(grouped), "window", "window_start", "window_end")

    return (
        windows(COLUMNS, ["key"], "at", AGGREGATES, allowed_lateness="10m"),
        lambda rows: with_windows(rows, "at", "10 minutes", slide),
        spark,
        "append",
    )


def of_sessions(rows: DataFrame) -> DataFrame:
    grouped = rows.withWatermark("at", "10 minutes").groupBy(
        "key", F.session_window("at", "2 minutes").alias("session")
    )
    return flat(aggregated(grouped), "session", "session_start", "session_end")


def on_an_older_root(case: tuple[Any, ...]) -> tuple[Any, ...]:
    operator, *others = case
    return (with_separate_timers(operator, operator.timer_key), *others)


CASES: dict[str, tuple[StatefulOperator, Callable[[DataFrame], DataFrame], Callable[[DataFrame], DataFrame], str]] = {
    "tumbling windows": of_windows(None),
    "sliding windows": of_windows("5 minutes"),
    "sliding windows of an older root": on_an_older_root(of_windows("5 minutes")),
    "sessions": (
        sessions(COLUMNS, ["key"], "at", AGGREGATES, allowed_lateness="10m"),
        lambda rows: with_sessions(rows, "at", "2 minutes"),
        of_sessions,
        "append",
    ),
    "deduplication": (
        first_rows(COLUMNS, ["key"], "at", within="10m"),
        lambda rows: rows,
        lambda rows: rows.withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["key"]),
        "append",
    ),
    "running aggregates": (
        running_aggregates(COLUMNS, ["key"], AGGREGATES),
        lambda rows: rows,
        lambda rows: aggregated(rows.groupBy("key")),
        "update",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_rows_of_each_batch_are_those_of_spark(delta_session: SparkSession, tmp_path: Path, case: str) -> None:
    operator, placed, query, mode = CASES[case]
    stream = Stream(delta_session, tmp_path, COLUMNS)
    for batch in range(BATCHES):
        rows = rows_of(batch, unique=case == "deduplication")
        stream.append(rows.sort_by("at") if case == "deduplication" else rows)
    with conf(delta_session, CONFS):
        expected, dropped = native(stream, query(stream.rows()), mode)
        found, late = ours(stream, operator, placed(stream.rows()))
    assert sum(map(len, expected.values())) > 20
    for batch in range(BATCHES):
        assert found[batch] == expected[batch], batch
    if case == "deduplication":
        # For the others, Spark counts the groups of a first, partial aggregation.
        assert late == dropped
        assert sum(late.values()) > 0
    elif mode == "append":
        assert {batch for batch, count in late.items() if count} == {b for b, count in dropped.items() if count}
