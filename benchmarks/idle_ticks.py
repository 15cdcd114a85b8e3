"""Batches without rows: those that a tick starts, and those of an empty file.

Three queries have the same keys in their state. One ticks; nothing is due. After each of its batches, the other two read an
empty file, one after the other, long before the next tick. The duration of a batch is Spark's `triggerExecution`.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import spark_peers
from benchmarks.measure import Spread, Table, flat, ratio, verdict
from benchmarks.operator_rows import COMMON, PARTITIONS
from benchmarks.timed_rows import TIMED
from benchmarks.turns import Contender, started
from statekeeper.pipelines.startup.session import spark_session

KEYS = 10_000
TICK = "6s"
_MEASURED = 3
_TICKING, _TIMED, _PLAIN = "a tick, with TTL and timers", "an empty file, with TTL and timers", "an empty file, neither"


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    session = spark_session("benchmark", master="local[2]", conf=COMMON)
    try:
        with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
            return [_table(_rounds(session, Path(name), options.rounds), options.rounds)]
    finally:
        session.stop()


def _rounds(session: SparkSession, folder: Path, rounds: int) -> list[Contender]:
    starts = {_TICKING: _start_ticking, _TIMED: _start_timed, _PLAIN: _start_plain}
    full, empty = folder / "full.parquet", folder / "empty.parquet"
    columns = {"key": pa.array(range(KEYS), pa.int64()), "value": pa.array([1] * KEYS, pa.int64())}
    pq.write_table(pa.table(columns), full)
    pq.write_table(pa.table(columns).slice(0, 0), empty)
    with contextlib.ExitStack() as running:
        contenders = [
            running.enter_context(started(session, name, start, folder / str(number)))
            for number, (name, start) in enumerate(starts.items())
        ]
        ticking, *fed = contenders
        for contender in contenders:
            contender.run(full)
        for number in range(-1, rounds):
            samples: list[list[float]] = [[] for _ in contenders]
            for _ in range(_MEASURED):
                samples[0].append(ticking.next_milliseconds())
                for place, contender in enumerate(fed, start=1):
                    samples[place].append(contender.run(empty))
            if number >= 0:  # the first round warms up
                for contender, of_round in zip(contenders, samples, strict=True):
                    contender.rounds.append(of_round)
    return contenders


def _table(contenders: list[Contender], rounds: int) -> Table:
    ticking, timed, plain = (contender.rounds for contender in contenders)
    return Table(
        title=f"Batch without rows, {KEYS:,} keys in the state, nothing due",
        columns=["batch", "batches", "ms per batch"],
        rows=[
            [contender.name, f"{len(flat(contender.rounds))}", Spread.of(flat(contender.rounds)).shown()]
            for contender in contenders
        ],
        targets=[
            verdict("a tick to an empty file, same operator", ratio(ticking, timed), at_most=1.2),
            verdict("a tick to an empty file, without TTL and timers", ratio(ticking, plain), at_most=1.2),
        ],
        notes=[
            f"One session, local[2], {PARTITIONS} partitions each, `NoSink`, {rounds} rounds of {_MEASURED} batches.",
            f"The tick is {TICK} long. TTL and timers add three stores, which also commit in each batch.",
        ],
    )


def _start_ticking(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_ours(rows, folder, PARTITIONS, operator=TIMED, tick=TICK)


def _start_timed(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_ours(rows, folder, PARTITIONS, operator=TIMED)


def _start_plain(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_ours(rows, folder, PARTITIONS)
