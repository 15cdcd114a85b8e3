"""Cost of loads and snapshots, compared with Spark's own store: replay, one snapshot, many small stores, and memory.

For Statekeeper, a snapshot is one run of the command, including its process start. Spark runs in a warm JVM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.measure import Spread, Table, flat, ratio, verdict
from benchmarks.spark_rocksdb import SparkRocksDB
from benchmarks.state_roots import StateRoot, changes, state_keys
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format.changelog import read_changelog
from statekeeper.statestore.format.replay import Window
from statekeeper.statestore.format.state_rows import encode_values
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from statekeeper.statestore.store.state_store import StateStore, StoreAddress

KEYS = 1_000_000
TAIL_CHANGELOGS = 50
TAIL_RECORDS = 20_000
SMALL_STORES = 200
SMALL_CHANGELOGS = 5
SMALL_RECORDS = 200
LARGE_CHANGELOGS = 24
LARGE_RECORDS = 200_000
LARGE_VALUE_BYTES = 250
BOUNDS_MIB = (512, 384)
_SPARKS_BLOCK_BYTES = 4096
_MIB = 1024 * 1024

_COMMAND = """
import atexit, pathlib, sys
from statekeeper.statestore.cli import main
atexit.register(lambda: print(pathlib.Path("/proc/self/status").read_text(), file=sys.stderr))
main()
"""


@dataclass(frozen=True)
class CommandRun:
    """One run of `statekeeper snapshot --all`, including the process start."""

    seconds: float
    peak_mib: float
    taken: list[dict[str, Any]]


@dataclass
class Samples:
    """Seconds by contender, one list per round."""

    seconds: dict[str, list[list[float]]] = field(default_factory=dict)

    def add(self, contender: str, work: Callable[[], object]) -> None:
        """Run the work once, and add its duration."""
        started = perf_counter()
        work()
        self.add_seconds(contender, perf_counter() - started)

    def add_seconds(self, contender: str, seconds: float) -> None:
        """Add a duration."""
        self.seconds.setdefault(contender, []).append([seconds])

    def rows(self, work: str) -> list[list[str]]:
        """Return the rows of a table."""
        ours = self.seconds[OURS]
        return [
            [f"{work}: {name}", f"{len(took)}", Spread.of(flat(took)).shown(2), ratio(took, ours).shown(1, "x")]
            for name, took in self.seconds.items()
        ]

    def verdicts(self, work: str, at_least: float, among: Sequence[str]) -> list[str]:
        """Return the ratios of Spark's durations to Statekeeper's, with their target."""
        return [
            verdict(f"{work}, {name} to Statekeeper", ratio(self.seconds[name], self.seconds[OURS]), at_least=at_least)
            for name in among
        ]


OURS = "Statekeeper"
TRACKED = "Spark"
UNTRACKED = "Spark without key count"
SPARKS = {TRACKED: True, UNTRACKED: False}


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark. `options.rounds` is the number of rounds, after one warm-up round."""
    session = spark_session("benchmark", master="local[2]")
    session.sparkContext.setLogLevel("ERROR")
    try:
        with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
            beside_spark = BesideSpark(session, Path(name))
            for number in range(options.rounds + 1):
                beside_spark.round()
                if number == 0:
                    beside_spark.forget()
    finally:
        session.stop()
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
        return [*beside_spark.tables(), _alone(Path(name), options.rounds)]


class BesideSpark:
    """Replay, snapshot and load of a store with a million keys."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self._session = session
        self._folder = folder
        self._used = 0
        random = np.random.default_rng(1)
        self._replayed = StateRoot(folder / "replayed", 1)
        self._replayed.commit([changes(random, np.arange(KEYS))])
        self._tailed = StateRoot(folder / "tailed", 1)
        self._tailed.commit([changes(random, np.arange(KEYS))])
        _snapshot(self._tailed, self._fresh())
        self._tailed.snapshots_are_known()
        self._whole = self._tailed.heads[0]
        tail = [np.sort(random.choice(KEYS, TAIL_RECORDS, replace=False)) for _ in range(TAIL_CHANGELOGS)]
        for numbers in tail:
            self._tailed.commit([changes(random, numbers)])
        self._changed_keys = len(np.unique(np.concatenate(tail)))
        self._changed_bytes = self._as_one_table()
        self.forget()

    def forget(self) -> None:
        """Discard all measurements."""
        self._replay, self._snapshots, self._loads = Samples(), Samples(), Samples()
        self._uploads: list[float] = []

    def round(self) -> None:
        """Run each work once with each contender."""
        self._replay.add(OURS, lambda: self._load(self._replayed))
        self._loads.add(OURS, lambda: self._load(self._tailed, of_snapshot=True))
        with _put_back(self._tailed):
            run = _snapshot(self._tailed, self._fresh())
        self._snapshots.add_seconds(OURS, run.seconds)
        [taken] = run.taken
        assert taken["keys"] == KEYS
        self._uploads.append(taken["uploaded_bytes"] / self._changed_bytes)
        for name in SPARKS:
            with self._sparks(self._replayed, name) as rocksdb:
                self._replay.add(name, partial(rocksdb.load, self._replayed.heads[0]))
            with self._sparks(self._tailed, name) as rocksdb:
                self._loads.add(name, partial(rocksdb.load, self._whole))
            with _put_back(self._tailed), self._sparks(self._tailed, name) as rocksdb:
                self._snapshots.add(name, partial(self._sparks_snapshot, rocksdb))

    def _load(self, root: StateRoot, *, of_snapshot: bool = False) -> None:
        address = StoreAddress(root.stores[0], self._fresh())
        version = self._whole if of_snapshot else root.heads[0]
        StateStore.load(address, version, storage=root.storage, clock=SystemClock(), ids=RandomIds()).abort()

    @contextlib.contextmanager
    def _sparks(self, root: StateRoot, name: str) -> Iterator[SparkRocksDB]:
        folder = root.folder / root.stores[0].folder
        local = self._fresh()
        rocksdb = SparkRocksDB(self._session, folder, local, tracked=SPARKS[name])
        try:
            yield rocksdb
        finally:
            rocksdb.close()
            shutil.rmtree(local, ignore_errors=True)

    def _sparks_snapshot(self, rocksdb: SparkRocksDB) -> None:
        rocksdb.load(self._tailed.heads[0])
        made = rocksdb.commit()
        rocksdb.maintain()
        assert (self._tailed.folder / self._tailed.stores[0].snapshot(made)).exists()

    def _as_one_table(self) -> int:
        """Return the bytes of an SST file with the newest row of each changed key."""
        store = self._tailed.stores[0]
        window = Window(sys.maxsize)
        for version in self._tailed.lineages[0][1:]:
            path = store.changelog(version)
            for piece in read_changelog(self._tailed.storage.read(path), path)[1]:
                window.add(piece)
        folder = self._fresh()
        with Database.create(folder, EngineLimits(block_bytes=_SPARKS_BLOCK_BYTES)) as database:
            assert database.apply([window.survivors().pairs()], None) == self._changed_keys
            return sum(file.stat().st_size for file in folder.glob("*.sst"))

    def _fresh(self) -> Path:
        self._used += 1
        return self._folder / f"local-{self._used}"

    def tables(self) -> list[Table]:
        """Return the tables."""
        replay, snapshot, load = (
            f"replay of a changelog of {KEYS:,} records",
            f"snapshot of {KEYS:,} keys + {TAIL_CHANGELOGS} x {TAIL_RECORDS:,} records",
            f"load of a snapshot of {KEYS:,} keys",
        )
        return [
            Table(
                title="Loads and snapshots, compared with Spark's own store",
                columns=["work", "runs", "s", "ratio to Statekeeper"],
                rows=[*self._replay.rows(replay), *self._snapshots.rows(snapshot), *self._loads.rows(load)],
                targets=[
                    *self._replay.verdicts(replay, 5, [TRACKED]),
                    f"{replay}, {UNTRACKED} to Statekeeper: "
                    f"{ratio(self._replay.seconds[UNTRACKED], self._replay.seconds[OURS]).shown(2, 'x')}, no target",
                    *self._snapshots.verdicts(snapshot, 5, list(SPARKS)),
                    *self._loads.verdicts(load, 2, [TRACKED]),
                    verdict(
                        "uploaded bytes to bytes of the changed rows in an SST file",
                        Spread.of(self._uploads),
                        at_most=1.2,
                    ),
                ],
                notes=[
                    "A row is a bigint key, a bigint and a double, as in the jobs of `pipelines`: 68 bytes per record. "
                    "Root and scratch folder are on the local disk.",
                    "Replay and load: from storage to a readable store, on a host without a local copy. Statekeeper runs "
                    "in the benchmark's process; Spark runs `RocksDB.load` in its JVM, called through py4j.",
                    "Snapshot, Statekeeper: `statekeeper snapshot --all`, including the start of its process and the flush "
                    "of all uploads to disk. Spark: `load`, `commit` and `doMaintenance` in a warm JVM.",
                    f"The tail has {self._changed_keys:,} different keys. By default Spark counts its keys "
                    "(`trackTotalNumberOfRows`), which costs one read per change. Statekeeper counts them exactly, too.",
                ],
            )
        ]


def _alone(folder: Path, rounds: int) -> Table:
    """Measure runs without a peer: many small stores, and the memory of one large store."""
    random = np.random.default_rng(2)
    small = StateRoot(folder / "small", SMALL_STORES)
    for _ in range(SMALL_CHANGELOGS):
        small.commit([changes(random, random.integers(0, KEYS, SMALL_RECORDS)) for _ in range(SMALL_STORES)])
    rates = []
    for _ in range(rounds):
        with _put_back(small):
            run = _snapshot(small, folder / "scratch")
        assert len(run.taken) == SMALL_STORES
        rates.append(SMALL_STORES / run.seconds)
    shutil.rmtree(small.folder)
    large = StateRoot(folder / "large", 1)
    payloads = pa.array([random.bytes(LARGE_VALUE_BYTES) for _ in range(LARGE_RECORDS)], pa.binary())
    values = encode_values(pa.table({"payload": payloads}))
    for number in range(LARGE_CHANGELOGS):
        large.commit([[(state_keys(number * LARGE_RECORDS + np.arange(LARGE_RECORDS)), values)]])
    plain_mib = LARGE_CHANGELOGS * LARGE_RECORDS * LARGE_VALUE_BYTES / _MIB
    runs = {}
    for bound in BOUNDS_MIB:
        with _put_back(large):
            runs[bound] = _snapshot(large, folder / "scratch", "--memory", str(bound))
        assert runs[bound].taken[0]["keys"] == LARGE_CHANGELOGS * LARGE_RECORDS
    many = f"{SMALL_STORES} stores of {SMALL_CHANGELOGS} x {SMALL_RECORDS} records"
    one = f"one store of {LARGE_CHANGELOGS * LARGE_RECORDS:,} keys, {plain_mib:,.0f} MiB of values"
    return Table(
        title="A run of `statekeeper snapshot`",
        columns=["work", "runs", "stores/s", "s", "peak MiB"],
        rows=[
            [many, f"{rounds}", Spread.of(rates).shown(1), f"{SMALL_STORES / np.median(rates):.1f}", "-"],
            *(
                [f"{one}, --memory {bound}", "1", "-", f"{of_bound.seconds:.1f}", f"{of_bound.peak_mib:,.0f}"]
                for bound, of_bound in runs.items()
            ),
        ],
        targets=[
            verdict("small stores", Spread.of(rates), at_least=20, unit=" stores/s"),
            *(
                verdict(f"peak with --memory {bound}", Spread.of([of_bound.peak_mib]), at_most=bound, unit=" MiB")
                for bound, of_bound in runs.items()
            ),
        ],
        notes=["The time includes the start of the process. Default settings: one worker per core."],
    )


def _snapshot(root: StateRoot, scratch: Path, *options: str) -> CommandRun:
    command = [sys.executable, "-c", _COMMAND, "snapshot", str(root.folder), "--all", "--output", "json"]
    command += ["--scratch", str(scratch), *options]
    # An installed program compiles its modules once, not in each process.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    seconds = perf_counter() - started
    [peak] = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("VmHWM:")]
    return CommandRun(seconds, int(peak) / 1024, json.loads(done.stdout)["taken"])


@contextlib.contextmanager
def _put_back(root: StateRoot) -> Iterator[None]:
    """Delete all files that the block adds to the root."""
    before = set(root.folder.rglob("*"))
    yield
    for path in root.folder.rglob("*"):
        if path.is_file() and path not in before:
            path.unlink()
