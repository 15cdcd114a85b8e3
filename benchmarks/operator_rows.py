"""Rows per second of the stateful operator and of Spark's own operators: count and sum per key, in steady state.

Each contender runs its own streaming query in one session and reads the same files. The contenders take turns: one runs
while the others wait. The duration of a batch is Spark's `triggerExecution`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import spark_peers
from benchmarks.measure import Spread, Table, flat, ratio, verdict
from pipelines.session import spark_session
from statestore.format.logs import PROVIDER, ROCKSDB_PROVIDER

PARTITIONS = 2
OURS = "Statekeeper"
NATIVE = "native aggregation (JVM)"
BEST = "transformWithState"
"""The fastest of `PYTHON_PEERS`; the others take minutes for a large batch."""
FLOOR = "the same jobs without state"
PYTHON_PEERS: Mapping[str, spark_peers.Peer] = {
    "transformWithState": spark_peers.transform_with_state,
    "applyInPandasWithState": spark_peers.apply_in_pandas_with_state,
    "transformWithStateInPandas": spark_peers.transform_with_state_in_pandas,
}
_COMMON = {
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    # Waiting queries must not slow down the running one.
    "spark.sql.streaming.pollingDelay": "1s",
    PROVIDER: ROCKSDB_PROVIDER,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_OURS_ONLY = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.streaming.stateStore.checkpointFormatVersion")
_TIMEOUT_SECONDS = 1800.0
_POLL_SECONDS = 0.05
_QUICK_MILLISECONDS = 20_000.0

Start = Callable[[SparkSession, DataFrame, Path], StreamingQuery]


@dataclass(frozen=True)
class Course:
    """Settings of one comparison."""

    keys: int
    rounds: int
    warm_up: int = 3
    unmeasured: int = 1
    measured: int = 2


@dataclass
class Contender:
    """One query, and the milliseconds of its batches by round."""

    name: str
    query: StreamingQuery
    inbox: Path
    fed: int = 0
    newest_milliseconds: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def is_quick(self) -> bool:
        """Whether the newest batch was short, so that the wait before a turn distorts its first batch."""
        return self.newest_milliseconds < _QUICK_MILLISECONDS

    def feed(self, file: Path) -> None:
        """Add a file to the input."""
        hidden = self.inbox / f".{self.fed}"
        os.link(file, hidden)
        hidden.rename(self.inbox / f"{self.fed:05}.parquet")
        self.fed += 1

    def milliseconds(self, batch: int) -> float:
        """Wait for a batch, and return its duration in milliseconds."""
        until = monotonic() + _TIMEOUT_SECONDS
        while monotonic() < until:
            for progress in reversed(self.query.recentProgress):
                if progress["batchId"] == batch and "addBatch" in progress["durationMs"]:
                    return float(progress["durationMs"]["triggerExecution"])
            if not self.query.isActive:
                raise RuntimeError(f"{self.name} stopped") from self.query.exception()
            sleep(_POLL_SECONDS)
        raise TimeoutError(f"{self.name}: batch {batch}")

    def run(self, file: Path) -> float:
        """Run one batch, and return its duration in milliseconds."""
        self.feed(file)
        self.newest_milliseconds = self.milliseconds(self.fed - 1)
        return self.newest_milliseconds


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark. `options.large` also runs the best of Spark's Python operators with 100,000 keys per batch."""
    python_peers = {name: _of_spark(peer) for name, peer in PYTHON_PEERS.items()}
    session = spark_session("benchmark", master="local[2]", conf=_COMMON)
    try:
        native = _compared(
            session, {NATIVE: _of_spark(spark_peers.native_aggregation)}, Course(100_000, options.rounds)
        )
        tables = [_table(native, Course(100_000, options.rounds), {NATIVE: 2.0})]
        course = Course(10_000, options.rounds)
        tables.append(_table(_compared(session, python_peers, course), course, dict.fromkeys(python_peers, 10.0)))
        if options.large:
            course = Course(100_000, 3, measured=1)
            best = {name: python_peers[name] for name in (BEST,)}
            tables.append(_table(_compared(session, best, course), course, {BEST: 25.0}))
    finally:
        session.stop()
    return tables


def _ours(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_ours(rows, folder, PARTITIONS)


def _floor(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_floor(rows, folder, PARTITIONS)


def _of_spark(peer: spark_peers.Peer) -> Start:
    def start(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
        for conf in _OURS_ONLY:
            session.conf.unset(conf)
        return spark_peers.start_peer(peer, rows, folder)

    return start


def _compared(session: SparkSession, peers: Mapping[str, Start], course: Course) -> list[Contender]:
    """Run Statekeeper, the jobs without state and the peers in turns, in this order."""
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
        folder = Path(name)
        file = _files(folder / "input", course.keys)
        with contextlib.ExitStack() as running:
            contenders = [
                running.enter_context(_started(session, who, start, folder / str(number)))
                for number, (who, start) in enumerate({OURS: _ours, FLOOR: _floor, **peers}.items())
            ]
            for contender in contenders:
                for _ in range(course.warm_up):
                    contender.run(next(file))
            for _ in range(course.rounds):
                for contender in contenders:
                    for _ in range(course.unmeasured if contender.is_quick else 0):
                        contender.run(next(file))
                    contender.rounds.append([contender.run(next(file)) for _ in range(course.measured)])
    return contenders


@contextlib.contextmanager
def _started(session: SparkSession, name: str, start: Start, folder: Path) -> Iterator[Contender]:
    inbox = folder / "inbox"
    inbox.mkdir(parents=True)
    own = session.newSession()
    query = start(own, spark_peers.stream(own, inbox), folder)
    try:
        yield Contender(name, query, inbox)
    finally:
        query.stop()


def _files(folder: Path, keys: int) -> Iterator[Path]:
    """Yield files with one row per key, in random order; four files repeat."""
    folder.mkdir()
    random = np.random.default_rng(keys)
    files = []
    for number in range(4):
        files.append(folder / f"{number}.parquet")
        columns = {"key": random.permutation(keys), "value": random.integers(0, 1000, keys)}
        pq.write_table(pa.table(columns), files[-1])
    while True:
        yield from files


def _table(contenders: list[Contender], course: Course, targets: Mapping[str, float]) -> Table:
    ours, floor, *peers = contenders
    rows = []
    for contender in contenders:
        every = flat(contender.rounds)
        speed = Spread.of([course.keys / took * 1000 for took in every])
        times = ratio(contender.rounds, ours.rounds)
        rows.append(
            [contender.name, f"{len(every)}", f"{statistics.median(every):,.0f}", speed.shown(), times.shown(1)]
        )
    best = min(peers, key=lambda peer: statistics.median(flat(peer.rounds)))
    return Table(
        f"Count and sum per key, {course.keys:,} rows of {course.keys:,} keys per batch",
        ["operator", "batches", "ms per batch", "rows/s", "time, ratio to Statekeeper"],
        rows,
        [
            verdict(
                f"rows/s to {best.name}" + (", the fastest peer" if len(peers) > 1 else ""),
                ratio(best.rounds, ours.rounds),
                at_least=targets[best.name],
            ),
            f"{best.name} to the same jobs without state, the upper limit of the ratio: "
            f"{ratio(best.rounds, floor.rounds).shown(2, 'x')}",
            verdict("Statekeeper to the same jobs without state", ratio(ours.rounds, floor.rounds), at_most=1.75),
        ],
        [
            f"One session, local[2], {PARTITIONS} partitions each. A batch is a Parquet file that contains each key once. "
            "The output goes to Spark's `noop` sink in update mode; Statekeeper writes to it in `foreachBatch`.",
            f"{course.warm_up} warm-up batches, then {course.rounds} alternating rounds with {course.measured} measured "
            f"batches each. If a batch takes less than {_QUICK_MILLISECONDS / 1000:.0f} s, each round starts with "
            f"{course.unmeasured} unmeasured batch, because the wait before it slows it down.",
            "The same jobs without state: `foreachBatch` with `repartitionById`, `mapInArrow` of a function that returns "
            "its input, an eager `localCheckpoint` and a write to `noop`.",
            "Spark's operators: RocksDB provider with changelog checkpointing, otherwise Spark's defaults. Statekeeper: "
            "the session of `pipelines.session`. State is on the local disk.",
        ],
    )
