"""Savepoint with rows of a large state: seconds, memory and bytes, compared with Spark's `statestore` source."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from pyspark.sql import SparkSession

from benchmarks.measure import Table
from benchmarks.peak import Peak, peak_of
from benchmarks.state_roots import job_root
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import logs
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.storage import open_storage
from tests.support import verbs

SIZES = (1_000_000, 5_000_000, 10_000_000)
STORES = 8
_SHOWN_ROWS = 1_000_000
_MOST_GROWTH = 1.25


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark once for each size."""
    del options  # a round of the largest size takes minutes
    session = spark_session("benchmark", master="local[2]")
    session.sparkContext.setLogLevel("ERROR")
    lines, peaks = [], []
    try:
        for rows in SIZES:
            with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
                folder = Path(name)
                job_root(folder / "root", rows, STORES)
                peak = peak_of(__name__, "save", str(folder))
                spark_seconds = _by_spark(session, folder)
                peaks.append(peak)
                lines.append(_line(rows, peak, spark_seconds))
    finally:
        session.stop()
    growth = peaks[-1].peak_mib / peaks[-2].peak_mib
    return [
        Table(
            title=f"Savepoint with rows, {STORES} stores, Parquet on local disk",
            columns=["rows", "seconds", "rows per second", "peak MiB", "MiB written", "seconds by Spark"],
            rows=lines,
            targets=[
                f"peak memory of {SIZES[-1]:,} rows to {SIZES[-2]:,}: {growth:.2f}x, target at most {_MOST_GROWTH}x: "
                f"{'reached' if growth <= _MOST_GROWTH else 'missed'}"
            ],
            notes=[
                "Peak memory is that of the whole process with its imports, at one worker per core. A worker holds one row "
                "group of 100,000 rows, and restores one store.",
                "Spark: a warm JVM reads the same stores with its statestore source and writes Parquet, without a digest.",
            ],
        )
    ]


def save(folder: str) -> dict[str, object]:
    """Make the savepoint in a process of its own; show the progress on stderr."""
    source, to = open_storage(f"{folder}/root"), open_storage(f"{folder}/savepoint")
    by = Maintainer("a benchmark", SystemClock(), RandomIds())
    started, done = perf_counter(), 0

    def wrote(rows: int) -> None:
        nonlocal done
        if (done + rows) // _SHOWN_ROWS > done // _SHOWN_ROWS:
            print(f"{done + rows:,} rows after {perf_counter() - started:.0f} s", file=sys.stderr)
        done += rows

    prepared = verbs.savepoint.plan_rows(source, to, by)
    made = verbs.savepoint.execute_rows(
        source, to, prepared, by, Policies(), scratch=Path(folder) / "scratch", wrote=wrote
    )
    return {"rows": made.rows, "bytes": made.bytes}


def _line(rows: int, peak: Peak, spark_seconds: float) -> list[str]:
    if peak.result["rows"] != rows:
        raise AssertionError(f"the savepoint has {peak.result['rows']:,} of {rows:,} rows")
    return [
        f"{rows:,}",
        f"{peak.seconds:.1f}",
        f"{rows / peak.seconds:,.0f}",
        f"{peak.peak_mib:.0f}",
        f"{peak.result['bytes'] / 2**20:.0f}",
        f"{spark_seconds:.1f}",
    ]


def _by_spark(session: SparkSession, folder: Path) -> float:
    own = session.newSession()
    for name, value in {**logs.STATE_CONF, **Structure.V2.conf}.items():
        own.conf.set(name, value)
    # Spark 4.2 needs the coordinator of the state stores, which only this manager starts.
    own._jsparkSession.sessionState().streamingQueryManager()
    started = perf_counter()
    own.read.format("statestore").load(str(folder / "root")).write.parquet(str(folder / "by spark"))
    seconds = perf_counter() - started
    shutil.rmtree(folder / "by spark")
    return seconds
