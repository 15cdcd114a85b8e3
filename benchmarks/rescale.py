"""Rescale of a large state, compared with the offline repartition of Spark 4.2."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from time import perf_counter

from pyspark.sql import SparkSession

from benchmarks import rewrite_process
from benchmarks.measure import Spread, Table, ratio, verdict
from benchmarks.native_state import of, run_query, write_input
from benchmarks.peak import Peak, peak_of
from benchmarks.state_roots import job_root
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.statestore.format.provider import Provider

LARGE = 10_000_000
SIZES = (1_000_000, LARGE)
FROM, TO = 8, 12
_LEAST_SPEEDUP = 5.0
STORES, FEWER_STORES = 200, 150
_KEYS_OF_MANY = 1_000_000
_GROUPS_OF_MANY = 1024
_LEAST_OF_A_SWITCHOVER = 0.5


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark once for each size, in rounds."""
    session = spark_session("benchmark", master="local[2]", conf={"spark.driver.memory": "4g"})
    session.sparkContext.setLogLevel("ERROR")
    try:
        tables = [_table(session, keys, 1 if keys == LARGE else options.rounds) for keys in SIZES]
    finally:
        session.stop()
    return [*tables, _of_many_stores(options.rounds)]


def _table(session: SparkSession, keys: int, rounds: int) -> Table:
    by_spark = list[float]()
    ours: dict[str, list[Peak]] = {"Statekeeper, native checkpoint": [], "Statekeeper, state root of a job": []}
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
        folder = Path(name)
        write_input(session, folder / "input", keys, keys)
        run_query(session, folder / "input", folder / "native", of(Provider.ROCKSDB, FROM))
        shutil.rmtree(folder / "input")
        job_root(folder / "root", keys, FROM)
        for _ in range(rounds):
            by_spark.append(_repartition(session, _copy(folder / "native")))
            for which, source in zip(ours, ("native", "root"), strict=True):
                copied = _copy(folder / source)
                arguments = str(copied), str(folder / "scratch"), str(TO)
                ours[which].append(peak_of(rewrite_process.__name__, "rescale", *arguments))
    spark = [[seconds] for seconds in by_spark]
    speedups = {which: ratio(spark, [[peak.seconds] for peak in peaks]) for which, peaks in ours.items()}
    rows = [["Spark 4.2, offline repartition", *_times(keys, by_spark), "-", "1.0x"]]
    for which, peaks in ours.items():
        memory = f"{max(peak.peak_mib for peak in peaks):.0f}"
        rows.append([which, *_times(keys, [peak.seconds for peak in peaks]), memory, speedups[which].shown(2, "x")])
    return Table(
        title=f"Rescale of {keys:,} keys from {FROM} to {TO} partitions, local disk",
        columns=["", "seconds", "keys per second", "peak MiB", "speed, ratio to Spark"],
        rows=rows,
        targets=[verdict(f"speed of {which}", speed, at_least=_LEAST_SPEEDUP) for which, speed in speedups.items()],
        notes=[
            f"{rounds} {'round' if rounds == 1 else 'rounds'}. A key has a count and a sum. Structure V1 for the native "
            "query, V2 for the root. The state is in one changelog per partition.",
            "Spark: a warm JVM, local[2], with a heap of 4 GiB. Its tool compares no rows.",
            "Statekeeper: all steps of the verb except the five seconds in which a checkpoint must be idle: both audits, "
            "the read-back of each snapshot, and the comparison of all rows. A new process, without its imports. Its peak "
            "does not include the processes that it starts.",
        ],
    )


def _of_many_stores(rounds: int) -> Table:
    taken: dict[str, list[Peak]] = {"switchover to V1": [], f"rescale to {FEWER_STORES} partitions": []}
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
        folder = Path(name)
        job_root(folder / "root", _KEYS_OF_MANY, STORES, _GROUPS_OF_MANY)
        for _ in range(rounds):
            for which, (verb, *options) in zip(taken, (("switch",), ("rescale", str(FEWER_STORES))), strict=True):
                copied = str(_copy(folder / "root"))
                taken[which].append(peak_of(rewrite_process.__name__, verb, copied, str(folder / "scratch"), *options))
    switched, rescaled = ([[peak.seconds] for peak in peaks] for peaks in taken.values())
    speed = ratio(switched, rescaled)
    return Table(
        title=f"{STORES} stores of a state root with {_KEYS_OF_MANY:,} keys in total, local disk",
        columns=["", "seconds", "keys per second", "peak MiB"],
        rows=[
            [
                which,
                *_times(_KEYS_OF_MANY, [peak.seconds for peak in peaks]),
                f"{max(peak.peak_mib for peak in peaks):.0f}",
            ]
            for which, peaks in taken.items()
        ],
        targets=[verdict("speed of the rescale to the switchover", speed, at_least=_LEAST_OF_A_SWITCHOVER)],
        notes=[
            f"{rounds} rounds. Both build all snapshots, read them back and compare all rows. Steps as above.",
            "The peak is that of the first process.",
        ],
    )


def _times(keys: int, seconds: list[float]) -> tuple[str, str]:
    return Spread.of(seconds).shown(1), f"{keys / Spread.of(seconds).median:,.0f}"


def _copy(checkpoint: Path) -> Path:
    copied = checkpoint.with_name(f"{checkpoint.name} to rescale".replace(" ", "-"))
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(checkpoint, copied)
    return copied


def _repartition(session: SparkSession, checkpoint: Path) -> float:
    started = perf_counter()
    session._jsparkSession.streamingCheckpointManager().repartition(str(checkpoint), TO, True)
    return perf_counter() - started
