"""Rows per second of the stateful operator and of Spark's own operators: count and sum per key, in steady state.

Each contender runs its own streaming query in one session and reads the same files; see `turns`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import spark_peers
from benchmarks.measure import Spread, Table, flat, ratio, verdict
from benchmarks.turns import QUICK_MILLISECONDS, Contender, Course, Start, compared
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.statestore.format.provider import PROVIDER, Provider

PARTITIONS = 2
OURS = "Statekeeper"
NATIVE = "native aggregation (JVM)"
BEST = "transformWithState"
"""The fastest of `PYTHON_PEERS`; the others take minutes for a large batch."""
FLOOR = "the same job without state"
PYTHON_PEERS: Mapping[str, spark_peers.Peer] = {
    "transformWithState": spark_peers.transform_with_state,
    "applyInPandasWithState": spark_peers.apply_in_pandas_with_state,
    "transformWithStateInPandas": spark_peers.transform_with_state_in_pandas,
}
COMMON = {
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    # Waiting queries must not slow down the running one.
    "spark.sql.streaming.pollingDelay": "1s",
    PROVIDER: Provider.ROCKSDB.class_name,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_OURS_ONLY = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.streaming.stateStore.checkpointFormatVersion")


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark. Of Spark's Python operators, only the fastest also runs with 100,000 keys per batch."""
    python_peers = {name: of_spark(peer) for name, peer in PYTHON_PEERS.items()}
    session = spark_session("benchmark", master="local[2]", conf=COMMON)
    try:
        of_jvm = {NATIVE: of_spark(spark_peers.native_aggregation)}
        native = compared(session, _with_floor(of_jvm), Course(keys=100_000, rounds=options.rounds))
        tables = [_table(native, Course(keys=100_000, rounds=options.rounds), {NATIVE: 2.0})]
        course = Course(keys=10_000, rounds=options.rounds)
        tables.append(
            _table(compared(session, _with_floor(python_peers), course), course, dict.fromkeys(python_peers, 10.0))
        )
        course = Course(keys=100_000, rounds=min(options.rounds, 3), measured=1)
        best = {name: python_peers[name] for name in (BEST,)}
        tables.append(_table(compared(session, _with_floor(best), course), course, {BEST: 40.0}))
    finally:
        session.stop()
    return tables


def _with_floor(peers: Mapping[str, Start]) -> dict[str, Start]:
    return {OURS: _ours, FLOOR: _floor, **peers}


def _ours(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_ours(rows, folder, PARTITIONS)


def _floor(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
    del session
    return spark_peers.start_floor(rows, folder, PARTITIONS)


def of_spark(peer: spark_peers.Peer, mode: str = "update") -> Start:
    """Return the start of a query with one of Spark's operators, in an output mode."""

    def start(session: SparkSession, rows: DataFrame, folder: Path) -> StreamingQuery:
        for conf in _OURS_ONLY:
            session.conf.unset(conf)
        return spark_peers.start_peer(peer, rows, folder, mode)

    return start


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
        title=f"Count and sum per key, {course.keys:,} rows of {course.keys:,} keys per batch",
        columns=["operator", "batches", "ms per batch", "rows/s", "time, ratio to Statekeeper"],
        rows=rows,
        targets=[
            verdict(
                f"rows/s to {best.name}" + (", the fastest peer" if len(peers) > 1 else ""),
                ratio(best.rounds, ours.rounds),
                at_least=targets[best.name],
            ),
            f"{best.name} to the same job without state, the upper limit of the ratio: "
            f"{ratio(best.rounds, floor.rounds).shown(2, 'x')}",
            verdict("Statekeeper to the same job without state", ratio(ours.rounds, floor.rounds), at_most=1.75),
        ],
        notes=[
            f"One session, local[2], {PARTITIONS} partitions each. A batch is a Parquet file that contains each key once. "
            "Statekeeper runs with `NoSink`: its tasks drop the output. That of Spark's operators goes to Spark's `noop` "
            "sink in update mode, whose tasks drop it.",
            f"{course.warm_up} warm-up batches, then {course.rounds} alternating rounds with {course.measured} measured "
            f"batches each. If a batch takes less than {QUICK_MILLISECONDS / 1000:.0f} s, each round starts with "
            f"{course.unmeasured} unmeasured batch, because the wait before it slows it down.",
            "The same job without state: `foreachBatch` with `repartitionById`, `mapInArrow` of a function that counts its "
            "input, and `collect` of the counts.",
            "Spark's operators: RocksDB provider with changelog checkpointing, otherwise Spark's defaults. Statekeeper: "
            "the session of `statekeeper.pipelines.startup.session`. State is on the local disk.",
        ],
    )
