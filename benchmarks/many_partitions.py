"""Milliseconds per batch by number of partitions, on two slots: adjacent partitions in one task, and a task for each."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import spark_peers
from benchmarks.measure import Spread, Table, flat, ratio, verdict
from benchmarks.turns import Contender, Course, Start, compared
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.pipelines.task.batch_log import LogLayout

_KEYS = 10_000
_FEW, _MANY = 8, 200
_CONF = {"spark.sql.streaming.pollingDelay": "1s"}  # waiting queries must not slow down the running one


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    session = spark_session("benchmark", master="local[2]", conf=_CONF)
    starts = {
        f"{_FEW} partitions, a task per slot": _started(_FEW, None),
        f"{_MANY} partitions, a task per slot": _started(_MANY, None),
        f"{_MANY} partitions, a task per partition": _started(_MANY, _MANY),
    }
    try:
        return [_table(compared(session, starts, Course(keys=_KEYS, rounds=options.rounds)), options.rounds)]
    finally:
        session.stop()


def _started(partitions: int, tasks: int | None) -> Start:
    def start(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
        del session
        return spark_peers.start_ours(rows, folder, partitions, key_groups=_MANY, tasks=tasks, log=LogLayout.BATCH)

    return start


def _table(contenders: list[Contender], rounds: int) -> Table:
    few, many, single = contenders
    shown = [
        [
            contender.name,
            f"{len(flat(contender.rounds))}",
            Spread.of(flat(contender.rounds)).shown(),
            f"{statistics.median(flat(contender.rounds)):,.0f}",
            ratio(contender.rounds, few.rounds).shown(2),
        ]
        for contender in contenders
    ]
    return Table(
        title=f"Count and sum per key, {_KEYS:,} rows of {_KEYS:,} keys per batch, on two slots",
        columns=["query", "batches", "ms per batch", "median", "ratio to the first"],
        rows=shown,
        targets=[
            verdict(f"{_MANY} partitions to {_FEW}", ratio(many.rounds, few.rounds), at_most=1.5),
            verdict("a task per slot to a task per partition", ratio(many.rounds, single.rounds), at_most=1.0),
        ],
        notes=[
            "One session, local[2], batch logs, local disk, the output is discarded. Each batch contains each key once.",
            f"{rounds} alternating rounds of two measured batches.",
        ],
    )
