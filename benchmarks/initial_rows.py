"""First batch of a job that starts from a table of keys and values: seconds, and peak memory of each process."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from benchmarks.measure import Table
from benchmarks.peak import Peak, peak_bytes, peak_of
from statekeeper.pipelines.batch.progress import BatchReport, Phase
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.sinks.sink import NoSink
from statekeeper.pipelines.startup.query import start
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.pipelines.task.host import Host
from statekeeper.statestore.storage import open_storage

SIZES = (1_000_000, 10_000_000)
PARTITIONS = 8
_MOST_GROWTH = 1.25
_FILE_ROWS = 1_000_000
_MIB = 2**20
_ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64())])
_STATE = pa.schema([("count", pa.int64()), ("mean", pa.float64())])


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark once for each size."""
    del options  # a round of the largest size takes minutes
    lines, workers = [], []
    for rows in SIZES:
        with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
            folder = Path(name)
            _write(folder, rows)
            peak = peak_of(__name__, "start_job", str(folder))
        lines.append(_line(rows, peak))
        workers.append(peak.result["worker_bytes"])
    growth = workers[-1] / workers[0]
    return [
        Table(
            title=f"Batch 0 with initial rows, {PARTITIONS} partitions on 2 cores, Parquet and root on local disk",
            columns=[
                "initial rows",
                "seconds",
                "rows per second",
                "peak MiB, Python worker",
                "peak MiB, driver in Python",
                "peak MiB, Spark's JVM",
                "MiB of changelogs",
            ],
            rows=lines,
            targets=[
                f"peak memory of a worker, {SIZES[-1]:,} rows to {SIZES[0]:,}: {growth:.2f}x, target at most "
                f"{_MOST_GROWTH}x: {'reached' if growth <= _MOST_GROWTH else 'missed'}"
            ],
            notes=[
                "A row has a key and two numbers. The input of batch 0 has one row. The seconds are those of the batch, "
                "with the read of the table, the shuffle, the sort and the upload.",
                "The JVM has a heap of at most 1 GiB. Each worker and the driver are processes of their own.",
            ],
        )
    ]


class _Seen:
    def __init__(self) -> None:
        self.reports: list[BatchReport] = []
        self.started = 0.0
        self.seconds = 0.0

    def phase(self, batch: int, phase: Phase) -> None:
        if batch == 0 and phase is Phase.STARTED:
            self.started = perf_counter()

    def finished(self, report: BatchReport) -> None:
        self.seconds = perf_counter() - self.started
        self.reports.append(report)


def start_job(name: str) -> dict[str, object]:
    """Run batch 0 in a process of its own."""
    folder, seen = Path(name), _Seen()
    session = spark_session("benchmark", master="local[2]", conf={"spark.driver.memory": "1g"})
    session.sparkContext.setLogLevel("ERROR")
    operator = StatefulOperator(["key"], ["value"], state=_STATE, output=_STATE, update=_update)
    start(
        operator,
        session.readStream.format("delta").load(str(folder / "input")),
        root=str(folder / "root"),
        checkpoint=str(folder / "checkpoint"),
        sink=NoSink(),
        partitions=PARTITIONS,
        initial=lambda: session.read.parquet(str(folder / "table")),
        host=Host(str(folder / "local")),
        observer=seen,
        trigger={"availableNow": True},
    ).await_termination()
    java: int = session.sparkContext._jvm.ProcessHandle.current().pid()  # type: ignore[union-attr]
    (report,) = seen.reports
    changelogs = [one.size_bytes for one in open_storage(str(folder / "root")).list("state")]
    result: dict[str, object] = {
        "rows": sum(one.initial.rows for one in report.partitions if one.initial is not None),
        "seconds": seen.seconds,
        "worker_bytes": max(one.peak_memory_bytes for one in report.partitions),
        "java_bytes": peak_bytes(java),
        "changelog_bytes": sum(changelogs),
    }
    session.stop()
    return result


def _update(rows: pa.Table, state: pa.Table) -> Update:
    del rows
    return Update(state.select(_STATE.names), state)


def _write(folder: Path, rows: int) -> None:
    random = np.random.default_rng(7)
    (folder / "table").mkdir()
    for number, keys in enumerate(np.array_split(np.arange(rows), max(1, rows // _FILE_ROWS))):
        table = pa.table({"key": keys, "count": random.integers(0, 1000, len(keys)), "mean": random.random(len(keys))})
        pq.write_table(table, folder / "table" / f"{number}.parquet")
    write_deltalake(str(folder / "input"), pa.table({"key": [5], "value": [1]}, schema=_ROWS))


def _line(rows: int, peak: Peak) -> list[str]:
    found = peak.result
    if found["rows"] != rows:
        raise AssertionError(f"batch 0 loaded {found['rows']:,} of {rows:,} rows")
    return [
        f"{rows:,}",
        f"{found['seconds']:.1f}",
        f"{rows / found['seconds']:,.0f}",
        f"{found['worker_bytes'] / _MIB:.0f}",
        f"{peak.peak_mib:.0f}",
        f"{found['java_bytes'] / _MIB:.0f}",
        f"{found['changelog_bytes'] / _MIB:.0f}",
    ]
