"""Restart of a native Spark query by the length of its tail."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.measure import Table
from benchmarks.native_query import FOR_STATEKEEPER, NativeQuery, VerbRun, session, statekeeper

LONG_TAIL = 500
SHORT_TAIL = 10
RESTARTS = 3

_ROWS = 2_000
_KEYS = 100_000


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark. The number of rounds is fixed: a round takes minutes."""
    del options
    spark = session()
    try:
        with tempfile.TemporaryDirectory(prefix="statekeeper-restart-") as folder:
            restarts = _restarts(spark, Path(folder))
    finally:
        spark.stop()
    return [_restart_table(restarts)]


@dataclass(frozen=True)
class _Restarts:
    long: list[float]
    short: list[float]
    compacted: list[float]
    snapshot: VerbRun


def _restarts(spark: SparkSession, folder: Path) -> _Restarts:
    """Restart one store's query with a long tail, then without a tail, then with a short one."""
    checkpoint = folder / "checkpoint"
    settings = {**FOR_STATEKEEPER, "spark.sql.shuffle.partitions": "1"}
    query = NativeQuery(spark=spark, checkpoint=str(checkpoint), settings=settings, rows=_ROWS, keys=_KEYS)

    query.run(LONG_TAIL)
    long = _measured(query, folder / "long")
    arguments = ["snapshot", str(checkpoint), "--at-head", "--confirm-stopped", "--mode", "snapshots"]
    snapshot = statekeeper(arguments)
    compacted = _measured(query, folder / "compacted")
    query.run(SHORT_TAIL)
    short = _measured(query, folder / "short")
    return _Restarts(long, short, compacted, snapshot)


def _measured(query: NativeQuery, saved: Path) -> list[float]:
    """Restart the query several times from the same checkpoint; leave the checkpoint as it was."""
    checkpoint = Path(query.checkpoint)
    shutil.copytree(checkpoint, saved)
    seconds = []
    for _ in range(RESTARTS):
        seconds.append(query.restart_seconds())
        shutil.rmtree(checkpoint)
        shutil.copytree(saved, checkpoint)
    return seconds


def _restart_table(found: _Restarts) -> Table:
    long, short, compacted = (statistics.median(one) for one in (found.long, found.short, found.compacted))
    return Table(
        title="Restart of a native query, one store",
        columns=["tail", "seconds to the first committed batch", "to the short tail"],
        rows=[
            [f"{LONG_TAIL} changelogs", f"{long:.1f}", f"{long / short:.1f}x"],
            [f"{SHORT_TAIL} changelogs", f"{short:.1f}", "1.0x"],
            [
                f"the {LONG_TAIL} changelogs after `statekeeper snapshot`",
                f"{compacted:.1f}",
                f"{compacted / short:.1f}x",
            ],
        ],
        targets=[
            f"`statekeeper snapshot` of the {LONG_TAIL} changelogs: {found.snapshot.seconds:.1f} s in its own process, "
            f"{found.snapshot.cpu_seconds:.1f} s of CPU",
        ],
        notes=[
            f"PySpark 4.2, local[2], RocksDB with changelogs, structure V1. A batch changes {_ROWS:,} of {_KEYS:,} keys. "
            "The checkpoint is on the local disk.",
            f"One round, medians of {RESTARTS} restarts of the same checkpoint. From `start()` until `commits/N` exists. "
            "The JVM already runs: add its start.",
        ],
    )
