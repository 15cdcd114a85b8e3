"""Milliseconds and CPU per batch by number of partitions, on two slots.

Adjacent partitions in one task, and a task for each; and small batches, whose cost is that of the partitions.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import spark_peers
from benchmarks.measure import Spread, Table, cpu_of_processes, flat, ratio, verdict
from benchmarks.native_query import statekeeper
from benchmarks.turns import Contender, Course, Start, compared, input_files, started
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.pipelines.task.batch_log import LogLayout

_KEYS = 10_000
_FEW, _MANY, _MOST = 8, 200, 1_000
_SMALL = 100
_SMALL_BATCHES = 25
_WARM_UP = 10
_UNMEASURED = 8
"""Batches at the start of a round. The workers open again the stores that they closed during the other queries."""
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
        large = compared(session, starts, Course(keys=_KEYS, rounds=options.rounds))
        return [_table(large, options.rounds), _small_batches(session, options.rounds)]
    finally:
        session.stop()


def _started(partitions: int, tasks: int | None) -> Start:
    def start(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
        del session
        groups = max(partitions, _MANY)
        return spark_peers.start_ours(rows, folder, partitions, key_groups=groups, tasks=tasks, log=LogLayout.BATCH)

    return start


@dataclass(kw_only=True)
class _Small:
    """Small batches of one query. `driver`, `every`: CPU seconds of a batch, of the Python driver and of all processes."""

    milliseconds: list[list[float]] = field(default_factory=list)
    driver: list[float] = field(default_factory=list)
    every: list[float] = field(default_factory=list)

    def percentile(self, percent: int) -> list[list[float]]:
        """Return the percentile of each round."""
        return [[float(np.percentile(samples, percent))] for samples in self.milliseconds]


def _small_batches(session: SparkSession, rounds: int) -> Table:
    counts = (_FEW, _MANY, _MOST)
    measured = {count: _Small() for count in counts}
    # The workers maintain their local copies a little longer than the query runs.
    folder = tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-", ignore_cleanup_errors=True)
    with folder as name, contextlib.ExitStack() as running:
        files = input_files(Path(name) / "input", _SMALL)
        queries = {
            count: running.enter_context(started(session, str(count), _started(count, None), Path(name) / str(count)))
            for count in counts
        }
        for query in queries.values():
            for _ in range(_WARM_UP):
                query.run(next(files))
        for _ in range(rounds):
            for count, query in queries.items():
                for _ in range(_UNMEASURED):
                    query.run(next(files))
                before = cpu_of_processes()
                samples = [query.run(next(files)) for _ in range(_SMALL_BATCHES)]
                driver, every = (after - earlier for after, earlier in zip(cpu_of_processes(), before, strict=True))
                measured[count].milliseconds.append(samples)
                measured[count].driver.append(driver / _SMALL_BATCHES)
                measured[count].every.append(every / _SMALL_BATCHES)
                # As a maintained query: without snapshots, each changelog names all batches before it.
                statekeeper(["snapshot", str(Path(name) / str(count) / "state"), "--all"])
    few, many, most = measured.values()
    p99 = few.percentile(99)
    further = (statistics.median(many.every) - statistics.median(few.every)) / (_MANY - _FEW)
    return Table(
        title=f"Count and sum per key, {_SMALL} rows per batch, on two slots",
        columns=["partitions", "batches", "p50 ms", "p99 ms", "p99, ratio", "CPU s, driver", "CPU s, all processes"],
        rows=[
            [
                f"{count:,}",
                f"{len(flat(one.milliseconds))}",
                f"{np.percentile(flat(one.milliseconds), 50):,.0f}",
                f"{np.percentile(flat(one.milliseconds), 99):,.0f}",
                ratio(one.percentile(99), p99).shown(2, "x"),
                Spread.of(one.driver).shown(2),
                Spread.of(one.every).shown(2),
            ]
            for count, one in measured.items()
        ],
        targets=[
            verdict(f"p99, {_MANY} partitions to {_FEW}", ratio(many.percentile(99), p99), at_most=1.3),
            verdict(
                f"CPU of a batch in the driver, {_MOST:,} partitions", Spread.of(most.driver), at_most=1.0, unit=" s"
            ),
        ],
        notes=[
            "One session, local[2], batch logs, local disk, the output is discarded. A task for each slot.",
            f"{rounds} alternating rounds of {_SMALL_BATCHES} batches, after {_UNMEASURED} unmeasured ones. "
            "`statekeeper snapshot --all` after each round.",
            "A batch loads and commits each store, also one without rows, because readers of the format expect a changelog "
            f"for each version. With {_MANY} partitions, each further store costs {further * 1000:.0f} ms of CPU. This "
            "limits the p99.",
            "Driver: the Python process, which plans a batch and collects its reports.",
        ],
    )


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
