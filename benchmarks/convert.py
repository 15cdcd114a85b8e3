"""Conversion from Spark's default provider to RocksDB, compared with a new query that reads its whole input again."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import rewrite_process
from benchmarks.measure import Spread, Table, ratio
from benchmarks.native_state import of, run_query, write_input
from benchmarks.peak import Peak, peak_of
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.statestore.format.provider import Provider

SIZES = (200_000,)
LARGE = 2_000_000
PARTITIONS = 8
_INPUT_PER_KEY = (1, 10, 50)


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark once for each size, in rounds."""
    session = spark_session("benchmark", master="local[2]", conf={"spark.driver.memory": "4g"})
    session.sparkContext.setLogLevel("ERROR")
    try:
        sizes = (*SIZES, LARGE) if options.large else SIZES
        return [_table(session, keys, 1 if keys == LARGE else options.rounds) for keys in sizes]
    finally:
        session.stop()


def _table(session: SparkSession, keys: int, rounds: int) -> Table:
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
        rows = [_row(session, Path(name), keys, keys * times, rounds) for times in _INPUT_PER_KEY]
    return Table(
        title=f"Conversion of {keys:,} keys to RocksDB, {PARTITIONS} partitions, local disk",
        columns=["input rows", "seconds of convert", "rows of state per second", "seconds to read the input", "ratio"],
        rows=rows,
        notes=[
            f"{rounds} {'round' if rounds == 1 else 'rounds'}. The query counts and sums its input by key. Structure V1.",
            "Reading the input again: a new query on RocksDB reads all rows from Parquet files in one batch. A warm JVM, "
            "local[2], with a heap of 4 GiB. The ratio is its time to that of convert.",
            "convert: all steps of the verb except the five seconds in which a checkpoint must be idle, with the read-back "
            "of each snapshot and the comparison of all rows. A new process, without its imports.",
            "A source often no longer has the whole input. Then only the conversion keeps the state.",
        ],
    )


def _row(session: SparkSession, folder: Path, keys: int, rows: int, rounds: int) -> list[str]:
    replays, conversions = list[float](), list[Peak]()
    source, before, after = folder / "input", folder / "before", folder / "after"
    write_input(session, source, rows, keys)
    run_query(session, source, before, of(Provider.HDFS_BACKED, PARTITIONS))
    for number in range(rounds):
        replays.append(run_query(session, source, folder / f"again-{number}", of(Provider.ROCKSDB, PARTITIONS)))
        shutil.copytree(before, after)
        conversions.append(peak_of(rewrite_process.__name__, "convert", str(after), str(folder / "scratch")))
        shutil.rmtree(after)
        shutil.rmtree(folder / f"again-{number}")
    for used in (source, before):
        shutil.rmtree(used)
    seconds = [peak.seconds for peak in conversions]
    return [
        f"{rows:,}",
        Spread.of(seconds).shown(1),
        f"{keys / Spread.of(seconds).median:,.0f}",
        Spread.of(replays).shown(1),
        ratio([[one] for one in replays], [[one] for one in seconds]).shown(2, "x"),
    ]
