"""Milliseconds per batch with a Delta sink: with its defaults, by which tasks write the files, and with Spark's writer.

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
DEFAULTS = "Statekeeper with its defaults"
WITH_LOG = "the same with batch logs"
ROWS = "the same, Spark writes the rows"
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
        DEFAULTS: _ours(Writer.AUTO, None),
        WITH_LOG: _ours(Writer.AUTO, LogLayout.BATCH),
        ROWS: _ours(Writer.SPARK, None),
        NATIVE: _native,
    }
    try:
        return [
            _table(compared(session, starts, Course(keys=keys, rounds=options.rounds)), keys, options.rounds)
            for keys in _SIZES
        ]
    finally:
        session.stop()


def _ours(writer: Writer, log: LogLayout | None) -> Start:
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
    ours, _, rows, native = contenders
    course = Course(keys=keys, rounds=rounds)
    shown = [
        [
            contender.name,
            f"{len(flat(contender.rounds))}",
            f"{statistics.median(flat(contender.rounds)):,.0f}",
            Spread.of([keys / took * 1000 for took in flat(contender.rounds)]).shown(),
            ratio(contender.rounds, ours.rounds).shown(2),
        ]
        for contender in contenders
    ]
    return Table(
        title=f"Count and sum per key into a Delta table, {keys:,} rows of {keys:,} keys per batch",
        columns=["query", "batches", "ms per batch", "rows/s", "time, ratio to the first"],
        rows=shown,
        targets=[
            verdict("time to that with Spark's writer", ratio(ours.rounds, rows.rounds), at_most=0.5),
            verdict("rows/s to native aggregation", ratio(native.rounds, ours.rounds), at_least=2.5),
        ],
        notes=[
            "By default, the tasks write the files of such a table, and a root on local disk has an object per store.",
            f"One session, local[2], {PARTITIONS} partitions each. State and tables are on the local disk. A batch is a "
            "Parquet file that contains each key once.",
            f"{course.warm_up} warm-up batches, then {rounds} alternating rounds with {course.unmeasured} unmeasured and "
            f"{course.measured} measured batches each.",
            "Native aggregation: update mode, `foreachBatch`, append with `txnAppId` and `txnVersion`; RocksDB provider "
            "with changelog checkpointing, otherwise Spark's defaults.",
        ],
    )
