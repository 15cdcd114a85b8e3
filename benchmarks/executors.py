"""Snapshots by the pool of this machine and by Spark executors, and the driver's memory for many stores."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import executor_process
from benchmarks.measure import Spread, Table, ratio
from benchmarks.peak import peak_of
from benchmarks.state_roots import job_root

STORES, KEYS = 64, 2_000_000
EXECUTORS = (1, 2, 3)
MANY = (1_000, 10_000, 100_000)
_MODEL_STORES, _MODEL_BYTES = 10_000, 2**30
_MODEL_SLOTS = (2, 50, 200)


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark in rounds."""
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
        root = Path(name) / "root"
        job_root(root, KEYS, STORES, 1024)
        size_bytes = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        found: dict[int, list[dict[str, float]]] = {count: [] for count in (0, *EXECUTORS)}
        for turn in range(options.rounds):
            for count, samples in found.items():
                scratch = Path(name) / f"{turn}-{count}"
                scratch.mkdir()
                call = str(count), str(root), str(scratch)
                samples.append(peak_of(executor_process.__name__, "snapshots", *call).result)
    memory = {stores: peak_of(executor_process.__name__, "many_stores", str(stores)).result for stores in MANY}
    return [_snapshots(found, size_bytes, options.rounds), _memory(memory), _model(found, size_bytes)]


def _snapshots(found: dict[int, list[dict[str, float]]], size_bytes: int, rounds: int) -> Table:
    local = [[one["seconds"]] for one in found[0]]
    rows = []
    for count, samples in found.items():
        seconds = [[one["seconds"]] for one in samples]
        rows.append(
            [
                "pool of this machine" if count == 0 else f"Spark, {count} executor{'s' if count > 1 else ''}",
                Spread.of([one["seconds"] / STORES * 1000 for one in samples]).shown(),
                Spread.of([one["cpu_seconds"] / STORES * 1000 for one in samples]).shown(),
                ratio(seconds, local).shown(2, "x"),
            ]
        )
    return Table(
        title=f"Snapshots of {STORES} stores with {KEYS:,} keys, {size_bytes / 2**20:,.0f} MiB of changelogs, local disk",
        columns=["", "ms per store", "CPU ms per store", "seconds, ratio to the pool"],
        rows=rows,
        notes=[
            f"{rounds} rounds. local-cluster: each executor is a JVM with one slot, on the two cores of this machine. So "
            "this is the overhead of Spark, not its scaling.",
            "After a first pass over the same stores, which starts the executors and their Python workers.",
        ],
    )


def _memory(memory: dict[int, dict[str, float]]) -> Table:
    return Table(
        title="The driver's part of a verb on Spark: a task that does nothing, for each store",
        columns=["stores", "seconds", "ms per store", "Python driver gains MiB", "JVM of the driver gains MiB"],
        rows=[
            [
                f"{stores:,}",
                f"{one['seconds']:,.1f}",
                f"{one['seconds'] / stores * 1000:.2f}",
                f"{one['python_mib']:,.0f}",
                f"{one['jvm_mib']:,.0f}",
            ]
            for stores, one in memory.items()
        ],
        notes=[
            "Two executors. An item is a planned snapshot with 20 changelogs. The plan itself is in memory before.",
            f"Above {64 * 2} stores, a task of Spark has several stores: 64 tasks for each slot.",
        ],
    )


def _model(found: dict[int, list[dict[str, float]]], size_bytes: int) -> Table:
    cpu = Spread.of([one["cpu_seconds"] for one in found[2]]).median
    per_byte = cpu / size_bytes
    store = per_byte * _MODEL_BYTES
    return Table(
        title=f"Model: snapshots of {_MODEL_STORES:,} stores with 1 GiB of changelogs each",
        columns=["slots", "hours"],
        rows=[[f"{slots:,}", f"{_MODEL_STORES * store / slots / 3600:,.1f}"] for slots in _MODEL_SLOTS],
        notes=[
            f"A calculation, not a measurement: {store:,.0f} CPU seconds per store, from the CPU per byte of the first "
            "table (two executors), on cores as fast as these, without waiting for the network.",
            "At 100 MB/s for each slot, a store takes 11 s to fetch and about as long to upload; this is not added.",
        ],
    )
