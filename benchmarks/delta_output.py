"""Milliseconds per batch with a Delta sink: tasks that write the table's files, and Spark's writer.

The peer is Spark's native aggregation with `foreachBatch` and an idempotent append to the same kind of table.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import spark_peers
from benchmarks.measure import Spread, Table, flat, ratio, verdict
from benchmarks.turns import Contender, Course, Start, compared
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.format.provider import PROVIDER, Provider

PARTITIONS = 2
TASKS = "Statekeeper, tasks write the files"
TASKS_AND_LOG = "the same with batch logs"
ROWS = "Statekeeper, Spark writes the rows"
NATIVE = "native aggregation (JVM)"
_SIZES = (1_000, 10_000, 100_000)
_OURS_ONLY = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.streaming.stateStore.checkpointFormatVersion")
_CONF = {
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.streaming.pollingDelay": "1s",  # waiting queries must not slow down the running one
    PROVIDER: Provider.ROCKSDB.class_name,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark for small, medium and large batches."""
    session = spark_session("benchmark", master="local[2]", conf=_CONF)
    starts = {
        TASKS: _ours(Writer.TASKS, LogLayout.STORES),
        TASKS_AND_LOG: _ours(Writer.TASKS, LogLayout.BATCH),
        ROWS: _ours(Writer.SPARK, LogLayout.STORES),
        NATIVE: _native,
    }
    try:
        return [
            _table(compared(session, starts, Course(keys=keys, rounds=options.rounds)), keys, options.rounds)
            for keys in _SIZES
        ]
    finally:
        session.stop()


def _ours(writer: Writer, log: LogLayout) -> Start:
    def start(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
        del session
        sink = DeltaSink(str(folder / "output"), writer=writer)
        return spark_peers.start_ours(rows, folder, PARTITIONS, sink=sink, log=log)

    return start


def _native(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    for conf in _OURS_ONLY:
        session.conf.unset(conf)
    return spark_peers.start_into_delta(spark_peers.native_aggregation, rows, folder)


def _table(contenders: list[Contender], keys: int, rounds: int) -> Table:
    tasks, _, rows, native = contenders
    course = Course(keys=keys, rounds=rounds)
    shown = [
        [
            contender.name,
            f"{len(flat(contender.rounds))}",
            f"{statistics.median(flat(contender.rounds)):,.0f}",
            Spread.of([keys / took * 1000 for took in flat(contender.rounds)]).shown(),
            ratio(contender.rounds, tasks.rounds).shown(2),
        ]
        for contender in contenders
    ]
    return Table(
        title=f"Count and sum per key into a Delta table, {keys:,} rows of {keys:,} keys per batch",
        columns=["query", "batches", "ms per batch", "rows/s", "time, ratio to the first"],
        rows=shown,
        targets=[
            verdict(
                "time of tasks that write the files to Spark's writer", ratio(tasks.rounds, rows.rounds), at_most=0.5
            ),
            verdict("rows/s to native aggregation", ratio(native.rounds, tasks.rounds), at_least=2.5),
        ],
        notes=[
            f"One session, local[2], {PARTITIONS} partitions each. State and tables are on the local disk. A batch is a "
            "Parquet file that contains each key once.",
            f"{course.warm_up} warm-up batches, then {rounds} alternating rounds with {course.unmeasured} unmeasured and "
            f"{course.measured} measured batches each.",
            "Native aggregation: update mode, `foreachBatch`, append with `txnAppId` and `txnVersion`; RocksDB provider "
            "with changelog checkpointing, otherwise Spark's defaults.",
        ],
    )
