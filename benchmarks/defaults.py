"""Milliseconds per batch by the settings that a job may leave to Statekeeper: the measurements behind the defaults.

Each table varies one setting, and the other settings have their defaults. The queries of a table take turns in one session.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import spark_peers
from benchmarks.measure import Spread, Table, flat, ratio
from benchmarks.turns import Course, Start, compared
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.pipelines.task.host import Host
from statekeeper.statestore.store.state_store import StoreLimits

_SLOTS = 2
_ROWS = (100, 10_000, 100_000)
_STATE = 1_000_000
_PARTITIONS = (_SLOTS, 2 * _SLOTS, 4 * _SLOTS, 16 * _SLOTS, 64 * _SLOTS)
_MIDDLE = 4 * _SLOTS
_TASKS = (1, _SLOTS, 2 * _SLOTS, 4 * _SLOTS)
_ARROW_ROWS = (10_000, 50_000, 200_000)
_CACHES_MIB = (4, 32, 128)
_CONF = {"spark.sql.streaming.pollingDelay": "1s"}  # waiting queries must not slow down the running one


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    session = spark_session("benchmark", master=f"local[{_SLOTS}]", conf=_CONF)

    def table(title: str, starts: Mapping[int, Start], default: int, notes: list[str], rows: tuple[int, ...]) -> Table:
        return _table(session, title, starts, default, notes, rows, options.rounds)

    try:
        return [
            table(
                "Number of partitions",
                {count: _started(partitions=count) for count in _PARTITIONS},
                _MIDDLE,
                ["`start(partitions=...)`, a task for each slot."],
                _ROWS,
            ),
            table(
                f"Number of tasks for {_MIDDLE} partitions",
                {count: _started(tasks=count) for count in _TASKS},
                _SLOTS,
                ["`start(tasks=...)`: a task processes adjacent partitions."],
                _ROWS,
            ),
            table(
                "Rows of an Arrow batch between Spark and Python",
                {count: _started(arrow_rows=count) for count in _ARROW_ROWS},
                50_000,
                ["`spark.sql.execution.arrow.maxRecordsPerBatch`."],
                _ROWS[1:],
            ),
            table(
                "MiB of the block cache of a host, with more state than the smallest cache holds",
                {mib: _started(cache_mib=mib) for mib in _CACHES_MIB},
                32,
                ["`StoreLimits.block_cache_bytes`. Every batch reads and changes all keys."],
                (_STATE,),
            ),
            # Last, because its workers have imported what a job needs.
            _collections(session, options.rounds),
        ]
    finally:
        session.stop()


def _started(
    *, partitions: int = _MIDDLE, tasks: int | None = None, arrow_rows: int | None = None, cache_mib: int | None = None
) -> Start:
    def start(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
        if arrow_rows is not None:
            session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(arrow_rows))
        limits = StoreLimits() if cache_mib is None else StoreLimits(block_cache_bytes=cache_mib * 1024 * 1024)
        host = Host(str(folder / "local"), limits=limits)
        return spark_peers.start_ours(rows, folder, partitions, tasks=tasks, host=host)

    return start


def _table(
    session: SparkSession,
    title: str,
    starts: Mapping[int, Start],
    default: int,
    notes: list[str],
    sizes: tuple[int, ...],
    rounds: int,
) -> Table:
    named = {f"{value:,}" + (" (default)" if value == default else ""): start for value, start in starts.items()}
    columns: list[list[str]] = []
    for keys in sizes:
        contenders = compared(session, named, Course(keys=keys, rounds=rounds))
        chosen = next(one for one in contenders if one.name.endswith("(default)"))
        columns.append(
            [
                f"{statistics.median(flat(one.rounds)):,.0f} ms, {ratio(one.rounds, chosen.rounds).shown(2, 'x')}"
                for one in contenders
            ]
        )
    return Table(
        title=title,
        columns=["setting", *(f"{keys:,} rows per batch" for keys in sizes)],
        rows=[[name, *cells] for name, *cells in zip(named, *columns, strict=True)],
        notes=[
            *notes,
            f"Count and sum per key, local[{_SLOTS}], local disk, the output is discarded. "
            f"Ratio: time to that of the default. {rounds} alternating rounds of two measured batches.",
        ],
    )


def _collections(session: SparkSession, rounds: int) -> Table:
    """Measure what a worker does after each task, see `statestore.base.garbage`."""
    tasks = session.range(_SLOTS).repartition(_SLOTS).mapInArrow(_timed_collections, "all double, left double")
    found = [row for _ in range(rounds) for row in tasks.collect()]
    every, left = ([row[part] * 1000 for row in found] for part in ("all", "left"))
    return Table(
        title="Garbage collection of a worker after each task",
        columns=["setting", "CPU ms per task"],
        rows=[
            ["as Spark does it", Spread.of(every).shown(1)],
            ["with frozen modules (default)", Spread.of(left).shown(1)],
        ],
        notes=["The workers have run the batches of the tables above, and have imported pyarrow and pandas."],
    )


def _timed_collections(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    gc.unfreeze()
    gc.collect()
    every = _cpu_of_collection()
    gc.freeze()
    yield pa.record_batch({"all": [every], "left": [_cpu_of_collection()]})


def _cpu_of_collection() -> float:
    began = time.thread_time()
    gc.collect()
    return time.thread_time() - began
