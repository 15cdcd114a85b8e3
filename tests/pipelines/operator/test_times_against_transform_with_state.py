"""Timers and a TTL do what those of Spark's transformWithState do, on the same shuffled and late data."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch, TimeKind, Ttl
from statekeeper.pipelines.sinks.sink import AtLeastOnceSink
from tests.support.streams import Seen, Stream, conf

ROWS = pa.schema([("key", pa.int64()), ("at", TIMESTAMP)])
OUTPUT = pa.schema([("key", pa.int64()), ("what", pa.string()), ("rows", pa.int64())])
RESULT = "key bigint, what string, rows bigint"
START_SECONDS = 1_767_225_600
BATCHES = 8
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CONFS = {
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": PROVIDER,
}
SECONDS_TO_LIVE = 20

ByBatch = dict[int, Counter[tuple[Any, ...]]]


class Silent(StatefulProcessor):
    """Counts the rows of a key, and reports a key 15 minutes after its newest row, or a second after its batch."""

    def __init__(self, kind: TimeKind) -> None:
        self._is_event = kind is TimeKind.EVENT

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "rows bigint")

    def handleInputRows(  # noqa: N802 - Spark's name
        self, key: Any, frames: Iterator[pd.DataFrame], timer_values: Any
    ) -> Iterator[pd.DataFrame]:
        count = self._count.get()[0] if self._count.exists() else 0
        newest = 0
        for frame in frames:
            count += len(frame)
            newest = max(newest, int(frame["at"].max().timestamp() * 1000))
        self._count.update((count,))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        now = timer_values.getCurrentProcessingTimeInMs()
        self._handle.registerTimer(newest + 900_000 if self._is_event else now + 1_000)
        yield from ()

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,
        expiredTimerInfo: Any,
    ) -> Iterator[pd.DataFrame]:
        seconds = expiredTimerInfo.getExpiryTimeInMs() // 1000 - START_SECONDS
        rows = self._count.get()[0]
        yield pd.DataFrame({"key": [key[0]], "what": [str(seconds) if self._is_event else "due"], "rows": [rows]})

    def close(self) -> None:
        pass


class Counted(StatefulProcessor):
    """Counts the rows of a key since it was last silent for the time to live."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "rows bigint", SECONDS_TO_LIVE * 1000)

    def handleInputRows(  # noqa: N802
        self, key: Any, frames: Iterator[pd.DataFrame], timer_values: Any
    ) -> Iterator[pd.DataFrame]:
        count = (self._count.get()[0] if self._count.exists() else 0) + sum(map(len, frames))
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "what": ["count"], "rows": [count]})

    def close(self) -> None:
        pass


def count(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pd.DataFrame]:
    """The new state, and the newest row of each key."""
    of_key = rows.to_pandas().groupby("key").agg(rows=("at", "size"), at=("at", "max")).reset_index()
    before = of_key[["key"]].merge(state.to_pandas(), on="key", how="left")["rows"].fillna(0).astype("int64")
    return pa.table({"key": of_key["key"], "rows": of_key["rows"] + before}), of_key


def silent(kind: TimeKind) -> StatefulOperator:
    def update(rows: pa.Table, state: pa.Table, batch: Batch) -> Update:
        new, newest = count(rows, state)
        is_event = kind is TimeKind.EVENT
        times = newest["at"] + dt.timedelta(minutes=15) if is_event else batch.time + dt.timedelta(seconds=1)
        return Update(OUTPUT.empty_table(), new, timers=newest[["key"]].assign(at=times))

    def on_timer(keys: pa.Table, state: pa.Table, batch: Batch) -> Update:
        del batch
        rows = keys.to_pandas().merge(state.to_pandas(), on="key")
        seconds = (rows["at"].astype("int64") // 1_000_000 - START_SECONDS).astype(str)
        return Update(rows.assign(what=seconds if kind is TimeKind.EVENT else "due")[OUTPUT.names])

    return StatefulOperator(
        ["key"],
        ["at"],
        state=pa.schema([("rows", pa.int64())]),
        output=OUTPUT,
        update=update,
        event_time="at" if kind is TimeKind.EVENT else None,
        allowed_lateness="10m",
        timers=kind,
        on_timer=on_timer,
    )


def counted(rows: pa.Table, state: pa.Table) -> Update:
    new, _ = count(rows, state)
    return Update(new.to_pandas().assign(what="count")[OUTPUT.names], new)


WITH_TTL = StatefulOperator(
    ["key"],
    ["at"],
    state=pa.schema([("rows", pa.int64())]),
    output=OUTPUT,
    update=counted,
    ttl=Ttl(f"{SECONDS_TO_LIVE}s"),
)


class Twins:
    """One stream, Spark's operator and ours. `native` and `ours`: batch -> the rows of the output."""

    def __init__(self, stream: Stream, processor: StatefulProcessor, operator: StatefulOperator, mode: str) -> None:
        self.stream = stream
        self.operator = operator
        self.processor = processor
        self.mode = mode
        self.native: ByBatch = {}
        self.ours: ByBatch = {}
        self.dropped: dict[int, int] = {}
        self.late: dict[int, int] = {}

    def run(self) -> None:
        """Process the input that is new."""
        rows = self.stream.rows()
        if self.operator.event_time:
            rows = rows.withWatermark("at", "10 minutes")
        query = rows.groupBy("key").transformWithStateInPandas(self.processor, RESULT, "Append", self.mode)
        writer = query.writeStream.foreachBatch(self._keeping(self.native)).outputMode("append")
        running = writer.option("checkpointLocation", f"{self.stream.folder}/native").trigger(availableNow=True).start()
        running.awaitTermination()
        for progress in running.recentProgress:
            self.dropped[progress.batchId] = sum(one.numRowsDroppedByWatermark for one in progress.stateOperators)
        seen = Seen()
        self.stream.run(self.operator, sink=AtLeastOnceSink(self._keeping(self.ours)), seen=seen)
        self.late.update({report.batch: report.late_rows for report in seen.batches})

    @staticmethod
    def _keeping(found: ByBatch) -> Any:
        def keep(rows: DataFrame, batch: int) -> None:
            found[batch] = Counter(tuple(row) for row in rows.collect())

        return keep


def late_rows(batch: int) -> pa.Table:
    """Rows around 10 minutes times the batch; one in four is up to 40 minutes late."""
    random = np.random.default_rng(batch)
    minutes = batch * 10 + random.integers(0, 12, 40)
    minutes = np.where(random.random(40) < 0.25, minutes - random.integers(0, 40, 40), minutes)
    at = [dt.datetime.fromtimestamp(START_SECONDS + int(minute) * 60, dt.UTC) for minute in minutes]
    return pa.table({"key": random.integers(0, 300, 40), "at": at}, schema=ROWS)


@pytest.mark.slow
def test_timers_by_event_time_and_late_rows_are_those_of_spark(delta_session: SparkSession, tmp_path: Path) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    for batch in range(BATCHES):
        stream.append(late_rows(batch))
    twins = Twins(stream, Silent(TimeKind.EVENT), silent(TimeKind.EVENT), "EventTime")
    with conf(delta_session, CONFS):
        twins.run()
    assert sum(map(len, twins.native.values())) > 20
    assert twins.ours == twins.native
    assert sum(twins.late.values()) > 5
    assert twins.late == twins.dropped


@pytest.mark.slow
@pytest.mark.parametrize("what", ["timers", "ttl"])
def test_timers_and_a_ttl_by_processing_time_are_those_of_spark(
    delta_session: SparkSession, tmp_path: Path, what: str
) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    processor, operator = (
        (Silent(TimeKind.PROCESSING), silent(TimeKind.PROCESSING)) if what == "timers" else (Counted(), WITH_TTL)
    )
    twins = Twins(stream, processor, operator, "ProcessingTime")
    at = dt.datetime.fromtimestamp(START_SECONDS, dt.UTC)
    with conf(delta_session, CONFS):
        for keys in ([1, 2, 3, 3], [3, 4], [1, 4, 5]):
            stream.append({"key": keys, "at": [at] * len(keys)})
            twins.run()
            # Longer than a timer or the TTL, so that both runs of a batch are on the same side of it.
            time.sleep(SECONDS_TO_LIVE + 5 if keys == [3, 4] and what == "ttl" else 3)
    assert twins.ours == twins.native
    last = {(3, "due", 3)} if what == "timers" else {(key, "count", 1) for key in (1, 4, 5)}
    assert set(twins.ours[2]) == last
