"""Batches without input: with `tick=`, timers by processing time fire and state expires, also with several inputs."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch, Ttl
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.pipelines.startup.query import StatefulQuery, start
from statekeeper.statestore.base.errors import SchemaMismatch
from tests.support import sparks_reader
from tests.support.streams import Seen

# Spark's workers need not find this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = pa.schema([("key", pa.int64()), ("n", pa.int64())])
STATE = pa.schema([("inputs", pa.string()), ("until", TIMESTAMP)])
OUTPUT = pa.schema([("key", pa.int64()), ("inputs", pa.string()), ("at", TIMESTAMP), ("batch", pa.int64())])
WAIT = dt.timedelta(seconds=3)


def update(rows: pa.Table, state: pa.Table, batch: Batch) -> Update:
    """Keep the names of the inputs of each key. Its timer is 3 seconds after the batch."""
    seen = {row["key"]: row["inputs"] for row in state.to_pylist()}
    for row in rows.to_pylist():
        seen[row["key"]] = seen.get(row["key"], "") + row["input"]
    new = state_of(seen, None)
    due = pa.array([batch.time + WAIT] * new.num_rows, TIMESTAMP)
    return Update(OUTPUT.empty_table(), new, timers=pa.table({"key": new["key"], "at": due}))


def on_timer(keys: pa.Table, state: pa.Table, batch: Batch) -> Update:
    """Report the names of the inputs of the keys. Their state expires a second later."""
    seen = {row["key"]: row["inputs"] for row in state.to_pylist()}
    told = [row | {"inputs": seen[row["key"]], "batch": batch.number} for row in keys.to_pylist()]
    return Update(pa.Table.from_pylist(told, schema=OUTPUT), state_of(seen, batch.time + dt.timedelta(seconds=1)))


def state_of(seen: dict[int, str], until: dt.datetime | None) -> pa.Table:
    schema = pa.schema([ROWS.field("key"), *STATE])
    return pa.table({"key": list(seen), "inputs": list(seen.values()), "until": [until] * len(seen)}, schema=schema)


OPERATOR = StatefulOperator(
    ["key"],
    ["input", "n"],
    state=STATE,
    output=OUTPUT,
    update=update,
    timers="processing",
    on_timer=on_timer,
    ttl=Ttl("0s", column="until"),
)


def wait_for(condition: Callable[[], bool], query: StatefulQuery) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert not query.await_termination(0.2), "the query has ended"
        assert time.monotonic() < deadline


@pytest.mark.spark
@pytest.mark.slow
def test_timers_of_several_inputs_fire_and_their_state_expires_without_further_rows(
    delta_session: SparkSession, tmp_path: Path
) -> None:
    def append(name: str, *keys: int) -> None:
        table = pa.table({"key": keys, "n": [1] * len(keys)}, schema=ROWS)
        deltalake.write_deltalake(str(tmp_path / name), table, mode="append")

    def run(tick: str | None) -> tuple[StatefulQuery, Seen]:
        seen = Seen()
        query = start(
            OPERATOR,
            inputs={name: delta_session.readStream.format("delta").load(str(tmp_path / name)) for name in "ba"},
            root=str(tmp_path / "root"),
            checkpoint=str(tmp_path / "checkpoint"),
            sink=DeltaSink(str(tmp_path / "told")),
            partitions=2,
            tick=tick,
            trigger={"processingTime": "0 seconds"},
            observer=seen,
        )
        return query, seen

    def told() -> list[tuple[int, str]]:
        rows = deltalake.DeltaTable(str(tmp_path / "told")).to_pyarrow_table().to_pylist()
        for row in rows:
            numbers = [report for report in reports if report.batch == row["batch"]]
            assert numbers[0].times is not None
            assert numbers[0].times.time >= row["at"]
        return sorted((row["key"], row["inputs"]) for row in rows)

    append("a", 1, 2)
    append("b", 2, 3)
    query, seen = run("1s")
    reports = seen.batches
    wait_for(lambda: sum(report.expired_rows for report in reports) == 3, query)
    query.stop()
    assert told() == [(1, "a"), (2, "ab"), (3, "b")]
    assert sum(report.fired_timers for report in reports) == 3
    assert len([one for one in reports if not sum(part.rows_in for part in one.partitions)]) >= 2
    for operator in range(4):
        assert sparks_reader.state_rows(delta_session, str(tmp_path / "root"), operator=operator).count() == 0

    with pytest.raises(
        SchemaMismatch, match=r"created by a job with `tick`, but the job has none; .* a new checkpoint"
    ):
        run(None)

    # A restart with another duration, and with a row of one input only.
    append("b", 2)
    query, seen = run("2s")
    reports = [*reports, *seen.batches]
    wait_for(lambda: sum(report.fired_timers for report in seen.batches) == 1, query)
    query.stop()
    reports = [*reports, *seen.batches]
    assert told() == [(1, "a"), (2, "ab"), (2, "b"), (3, "b")]
