"""Timers and expiries of a job on Spark: exactly once through crashes, and readable by Spark and by the command line."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch, Ttl
from statekeeper.pipelines.sinks.data_files import DataFile, OutputFiles
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.pipelines.sinks.sink import Attempt, DeltaSink
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.cli import main
from statekeeper.statestore.format.structure import Structure
from tests.support.streams import Seen, Stream

ROWS = pa.schema([("key", pa.int64()), ("at", TIMESTAMP)])
STATE = pa.schema([("rows", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), ("at", TIMESTAMP), ("rows", pa.int64()), ("batch", pa.int64())])
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KEYS = 6
LAST = 9
"""The newest batch; batch 5 has timers that are due."""


class Crash(Exception):
    pass


def at(minutes: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def update(rows: pa.Table, state: pa.Table, batch: Batch) -> Update:
    del batch
    counts = dict(zip(state["key"].to_pylist(), state["rows"].to_pylist(), strict=True))
    newest: dict[int, dt.datetime] = {}
    for row in rows.to_pylist():
        counts[row["key"]] = counts.get(row["key"], 0) + 1
        newest[row["key"]] = row["at"]
    new = pa.table({"key": list(newest), "rows": [counts[key] for key in newest]})
    times = pa.array([moment + dt.timedelta(minutes=15) for moment in newest.values()], TIMESTAMP)
    return Update(OUTPUT.empty_table(), new, timers=pa.table({"key": list(newest), "at": times}))


def on_timer(keys: pa.Table, state: pa.Table, batch: Batch) -> Update:
    counts = dict(zip(state["key"].to_pylist(), state["rows"].to_pylist(), strict=True))
    rows = [counts.get(key) for key in keys["key"].to_pylist()]
    numbers = pa.array([batch.number] * len(rows), pa.int64())
    return Update(pa.table([keys["key"], keys["at"], pa.array(rows, pa.int64()), numbers], schema=OUTPUT))


OPERATOR = StatefulOperator(
    ["key"],
    ["at"],
    state=STATE,
    output=OUTPUT,
    update=update,
    event_time="at",
    allowed_lateness="5m",
    timers="event",
    on_timer=on_timer,
    ttl=Ttl("40m", by="event"),
)


def append_all(stream: Stream) -> None:
    """Batch N has rows at minute 10 N. Key K has rows only until batch K + 1."""
    for batch in range(LAST + 1):
        keys = [key for key in range(KEYS) if batch <= key + 1] or [99]
        stream.append({"key": keys, "at": [at(10 * batch)] * len(keys)})


def expected() -> list[tuple[int, float, int, int]]:
    """Key, minute, rows and batch of each timer that fires: batch N has the watermark 10 (N - 1) - 5."""
    newest = {key: min(key + 1, LAST) for key in range(KEYS)}
    fired = {key: (10 * last + 15, last + 1) for key, last in newest.items()}
    return [
        (key, minute, rows, batch)
        for key, (minute, rows) in fired.items()
        if (batch := -(-(minute + 5) // 10) + 1) <= LAST
    ]


def fired(stream: Stream) -> list[tuple[int, float, int, int]]:
    rows = [
        (row["key"], (row["at"] - START).total_seconds() / 60, row["rows"], row["batch"]) for row in stream.output()
    ]
    return sorted(rows)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("structure", "log", "writer"),
    [
        (Structure.V2, LogLayout.BATCH, Writer.TASKS),
        pytest.param(Structure.V2, LogLayout.STORES, Writer.SPARK, marks=pytest.mark.slow),
        pytest.param(Structure.V1, LogLayout.STORES, Writer.SPARK, marks=pytest.mark.slow),
    ],
)
def test_timers_fire_once_when_the_batch_crashes_in_each_phase(
    delta_session: SparkSession, tmp_path: Path, structure: Structure, log: LogLayout, writer: Writer
) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    stream.structure, stream.log, stream.writer = structure, log, writer
    append_all(stream)
    left = [Phase.OFFSETS_WRITTEN, Phase.COMPUTED, Phase.PENDING_WRITTEN, Phase.SINK_WRITTEN]

    def crash(batch: int, phase: Phase) -> None:
        if batch == 5 and left and phase is left[0]:
            raise Crash(left.pop(0))

    for _ in range(len(left)):
        with pytest.raises(Crash):
            stream.run(OPERATOR, seen=Seen(crash))
    reports = stream.run(OPERATOR)
    assert left == []
    assert fired(stream) == sorted(expected())
    assert sum(report.fired_timers for report in reports) > 0
    assert sum(report.expired_rows for report in reports) > 0
    watermarks = {report.batch: report.times.watermark for report in reports if report.times}
    assert watermarks[LAST] == at(10 * (LAST - 1) - 5)
    commit = json.loads((tmp_path / "root" / "commits" / str(LAST)).read_text().partition("\n")[2])
    assert commit["nextBatchWatermarkMs"] == int(at(10 * LAST - 5).timestamp() * 1000)


@pytest.mark.slow
@pytest.mark.parametrize("writer", Writer)
def test_late_rows_go_to_their_sink_once_when_the_batch_crashes_between_the_sinks(
    delta_session: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    stream.writer = writer
    append_all(stream)
    stream.append({"key": [7, 8, 7], "at": [at(3), at(4), at(95)]})
    late, sink = DeltaSink(f"{tmp_path}/late", writer=writer), DyingOnce(stream.facts, writer=writer)
    with pytest.raises(Crash):
        stream.run(OPERATOR, late=late, sink=sink)
    stream.run(OPERATOR, late=late, sink=sink)
    assert set(expected()) <= set(fired(stream))
    assert len(fired(stream)) == len(set(fired(stream)))
    rows = DeltaTable(late.path).to_pyarrow_table().to_pylist()
    assert sorted((row["key"], row["at"]) for row in rows) == [(7, at(3)), (8, at(4))]


class DyingOnce(DeltaSink):
    """Fails once, after the sink of the late rows was written."""

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        self._die(attempt)
        super().write(rows, attempt)

    def commit_files(self, plan: OutputFiles, files: Sequence[DataFile], attempt: Attempt) -> None:
        self._die(attempt)
        super().commit_files(plan, files, attempt)

    def _die(self, attempt: Attempt) -> None:
        marker = Path(f"{self.path}-died")
        if attempt.batch == LAST + 1 and not marker.exists():
            marker.touch()
            raise Crash


@pytest.mark.spark
def test_spark_and_the_command_line_read_timers_and_expiries(delta_session: SparkSession, tmp_path: Path) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    stream.append({"key": [1, 2], "at": [at(0), at(1)]})
    stream.append({"key": [1], "at": [at(7)]})
    stream.run(OPERATOR)
    assert {key: minutes(*values) for key, values in stream.state(0).items()} == {(1,): (47, 2), (2,): (41, 1)}
    assert {key: minutes(*values) for key, values in stream.state(1).items()} == {(1,): (22,), (2,): (16,)}
    entries = {("2026-01-01T00:15:00.000Z", 1): (0,), ("2026-01-01T00:16:00.000Z", 2): (0,)}
    assert stream.state(2) == entries
    for verb in (["audit", "--deep"], ["dump", "--store", "2"], ["inspect"]):
        result = CliRunner().invoke(main, [verb[0], str(stream.root), *verb[1:]])
        assert result.exit_code == 0, result.output
        if verb[0] == "dump":
            assert "due_at" in result.output
            assert "2026-01-01T00:15:00.000Z" in result.output
    # The job would not find the timers and expiries of rows that others write.
    pq.write_table(pa.table({"key": [1], "expires_at": [at(0)], "rows": [5]}), tmp_path / "rows.parquet")
    (tmp_path / "drop.json").write_text(json.dumps({"stores": {"default": {"drop": ["expires_at"]}}}))
    for command, said in (
        (
            ["edit", "--operator", "0", "--upsert", f"{tmp_path}/rows.parquet"],
            "have times, which store default_expiries",
        ),
        (["evolve", "--schema", f"{tmp_path}/drop.json"], "its times belong to the timers or the TTL"),
    ):
        result = CliRunner().invoke(main, [command[0], str(stream.root), *command[1:]])
        assert result.exit_code != 0
        assert said in " ".join(result.output.split())


def minutes(*values: Any) -> tuple[Any, ...]:
    """Times as minutes after the start; Spark returns them without a time zone, as local times of the process."""
    local = START.astimezone().replace(tzinfo=None)
    return tuple((value - local).total_seconds() / 60 if isinstance(value, dt.datetime) else value for value in values)
