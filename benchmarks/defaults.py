"""Milliseconds per batch by the settings that a job may leave to Statekeeper: the measurements behind the defaults.

Each table varies one setting, and the other settings have their defaults. The queries of a table take turns in one session.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import spark_peers
from benchmarks.measure import Table, flat, ratio
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
