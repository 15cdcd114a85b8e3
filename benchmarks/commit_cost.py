"""Cost of a commit as the state grows: load, put and commit of 5,000 changes, compared with Spark's own store.

The cost of a commit must depend on its changes, not on the size of the state.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.measure import Spread, Table, flat, ratio, verdict
from benchmarks.spark_rocksdb import SparkRocksDB
from benchmarks.state_roots import state_keys, state_values
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from statekeeper.statestore.store.state_store import StateStore, StoreAddress, advance_local_copy

CHANGES = 5_000
SIZES = (10_000, 100_000, 1_000_000)
LARGE_SIZE = 10_000_000
BATCHES_A_ROUND = 10
WARM_UP_BATCHES = 15
_PIECE_KEYS = 200_000
_STORE = StorePath(0, 0)


@dataclass(kw_only=True)
class Samples:
    """Durations of the batches of one store in milliseconds, one list per round.

    `commit`: without the read of the changed keys' state. `phases`: the durations of each phase, over all rounds.
    `background_milliseconds`: total background work of the batches.
    """

    commit: list[list[float]] = field(default_factory=list)
    with_reads: list[list[float]] = field(default_factory=list)
    background_milliseconds: float = 0.0
    phases: dict[str, list[float]] = field(default_factory=dict)
    upload_ratios: list[float] = field(default_factory=list)

    def add_round(self, batches: Sequence[dict[str, float]]) -> None:
        """Add the phases of the batches of a round."""
        self.commit.append([sum(took for phase, took in batch.items() if phase != "get") for batch in batches])
        self.with_reads.append([sum(batch.values()) for batch in batches])
        for batch in batches:
            for phase, took in batch.items():
                self.phases.setdefault(phase, []).append(took)


class Changes:
    """Random changes to a state of `keys` keys."""

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._random = np.random.default_rng(keys)

    def next(self) -> tuple[pa.LargeBinaryArray, pa.LargeBinaryArray]:
        """Return keys that have a state, in their order in storage, and new values."""
        numbers = np.sort(self._random.choice(self._keys, CHANGES, replace=False))
        return state_keys(numbers), self.values(CHANGES)

    def values(self, count: int) -> pa.LargeBinaryArray:
        """Return random values."""
        return state_values(self._random, count)


class Ours:
    """A Statekeeper store of `keys` keys that processes batches as in a Spark task."""

    name = "Statekeeper"

    def __init__(self, folder: Path, keys: int) -> None:
        self.keys = keys
        self.samples = Samples()
        self.root = folder / "root"
        self._storage: Storage = open_storage(StorageSpec(str(self.root)))
        self._address = StoreAddress(_STORE, folder / "local")
        self._changes = Changes(keys)
        self.head = EMPTY
        self._background: threading.Thread | None = None
        with self._load() as store:
            for first in range(0, keys, _PIECE_KEYS):
                numbers = np.arange(first, min(first + _PIECE_KEYS, keys))
                store.put(state_keys(numbers), Changes(first + 1).values(len(numbers)))
            self.head = store.commit()

    def run(self, batches: int) -> list[dict[str, float]]:
        """Run batches, and wait for their background work."""
        took = [self._batch() for _ in range(batches)]
        if self._background is not None:
            self._background.join()
        return took

    def _advance_local_copy(self, base: VersionId) -> None:
        started = perf_counter()
        advance_local_copy(self._address, base, storage=self._storage, clock=SystemClock(), ids=RandomIds())
        self.samples.background_milliseconds += (perf_counter() - started) * 1000

    def _load(self) -> StateStore:
        return StateStore.load(self._address, self.head, storage=self._storage, clock=SystemClock(), ids=RandomIds())

    def _batch(self) -> dict[str, float]:
        keys, values = self._changes.next()
        phases: dict[str, float] = {}
        with _timed(phases, "load"):
            store = self._load()
        with store:
            with _timed(phases, "get"):
                held = store.get(keys)
            assert held.null_count == 0
            with _timed(phases, "put"):
                store.put(keys, values)
            with _timed(phases, "commit"):
                self.head = store.commit()
        metrics = store.commit_metrics
        self.samples.upload_ratios.append(metrics.uploaded_bytes / metrics.changed_bytes)
        if store.needs_compaction and (self._background is None or not self._background.is_alive()):
            # As in a task: after the batch, concurrently with the next batches.
            self._background = threading.Thread(target=self._advance_local_copy, args=[store.base])
            self._background.start()
        return phases


class Sparks:
    """Spark's `RocksDB` class with a copy of the same store, including its first changelog."""

    name = "Spark"

    def __init__(self, session: SparkSession, folder: Path, ours: Ours) -> None:
        self.keys = ours.keys
        self.samples = Samples()
        self._changes = Changes(ours.keys)
        store = folder / "store"
        shutil.copytree(ours.root / _STORE.folder, store)
        self._rocksdb = SparkRocksDB(session, store, folder / "local-spark")
        self._head: VersionId = ours.head

    def run(self, batches: int) -> list[dict[str, float]]:
        """Run batches. The puts are not timed: each one is a call through py4j."""
        return [self._batch() for _ in range(batches)]

    def _batch(self) -> dict[str, float]:
        keys, values = self._changes.next()
        phases: dict[str, float] = {}
        with _timed(phases, "load"):
            self._rocksdb.load(self._head)
        for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
            self._rocksdb.put(key, value)
        with _timed(phases, "commit"):
            self._head = self._rocksdb.commit()
        return phases

    def close(self) -> None:
        """Close Spark's store."""
        self._rocksdb.close()


class _timed:  # noqa: N801 - reads as a word of the `with` statement
    def __init__(self, into: dict[str, float], phase: str) -> None:
        self._into, self._phase = into, phase

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._into[self._phase] = (perf_counter() - self._started) * 1000


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark. `options.large` adds the largest state; `options.rounds` is the number of rounds."""
    sizes = (*SIZES, LARGE_SIZE) if options.large else SIZES
    session = spark_session("benchmark", master="local[2]")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name,
            contextlib.ExitStack() as open_stores,
        ):
            folders = [Path(name) / str(size) for size in sizes]
            ours = [Ours(folder, size) for folder, size in zip(folders, sizes, strict=True)]
            sparks = [
                open_stores.enter_context(contextlib.closing(Sparks(session, folder, of_ours)))
                for folder, of_ours in zip(folders, ours, strict=True)
            ]
            turns: list[Ours | Sparks] = [*ours, *sparks]
            for contender in turns:
                contender.run(WARM_UP_BATCHES)
                contender.samples = Samples()
            for _ in range(options.rounds):
                for contender in turns:
                    contender.samples.add_round(contender.run(BATCHES_A_ROUND))
    finally:
        session.stop()
    return [_table(ours, sparks)]


def _table(ours: list[Ours], sparks: list[Sparks]) -> Table:
    smallest = ours[0].keys
    rows = []
    targets = []
    for contenders in (ours, sparks):
        for contender in contenders:
            samples = contender.samples
            growth = ratio(samples.commit, contenders[0].samples.commit)
            every = flat(samples.commit)
            p50, p99 = np.percentile(every, [50, 99])
            phases = [
                f"{np.median(samples.phases[phase]):.1f}" if phase in samples.phases else "-"
                for phase in ("load", "put", "commit", "get")
            ]
            later = samples.background_milliseconds / len(every)
            rows.append(
                [
                    f"{contender.name}, {contender.keys:,}",
                    f"{len(every)}",
                    f"{p50:.1f}",
                    f"{p99:.1f}",
                    growth.shown(2, "x"),
                    *phases,
                    f"{later:.1f}" if contenders is ours else "-",
                ]
            )
            if contenders is ours and contender.keys > smallest:
                targets.append(
                    verdict(f"p50 at {contender.keys:,} keys to p50 at {smallest:,} keys", growth, at_most=1.3)
                )
    uploads = Spread.of([value for contender in ours for value in contender.samples.upload_ratios])
    targets.append(verdict("uploaded bytes to bytes of the encoded changes", uploads, at_most=1.1))
    for mine in ours[1:]:
        with_reads = ratio(mine.samples.with_reads, ours[0].samples.with_reads).shown(2, "x")
        targets.append(
            f"median with reads of the state at {mine.keys:,} keys to {smallest:,} keys: {with_reads}, no target"
        )
    beside = zip(ours, sparks, strict=True)
    targets += [
        f"Spark to Statekeeper at {mine.keys:,} keys: {ratio(its.samples.commit, mine.samples.commit).shown(1, 'x')}"
        for mine, its in beside
    ]
    return Table(
        title=f"Commit of {CHANGES:,} changes by size of the state",
        columns=[
            "store, keys",
            "batches",
            "p50 ms",
            "p99 ms",
            "p50, ratio to the smallest",
            "load",
            "put",
            "commit",
            "get",
            "background",
        ],
        rows=rows,
        targets=targets,
        notes=[
            "p50, p99 and their ratios measure load + put + commit: load the newest version by replaying the newest "
            f"changelogs, then put and commit {CHANGES:,} random keys that have a state. The phases are medians in ms.",
            "get reads the state of the changed keys before put. It is not part of p50 and p99. It takes longer with a "
            "larger state, because the rows are in more blocks than the cache holds.",
            "background: average background work per batch, in ms. Every few batches the local copy is advanced. Eight "
            "SST files are merged, which rewrites the whole state.",
            "With 10,000 keys, load replays up to 16 changelogs, and with more keys up to 4: the local copy is advanced "
            "when 20,000 keys have changed, at the latest after 16 batches.",
            f"A round is {BATCHES_A_ROUND} batches of each size without a pause, first with Statekeeper, then with Spark. "
            "A background thread advances the local copies, as in a Spark worker.",
            "Spark: its `RocksDB` class in structure V2 with changelogs, called through py4j, with the same first "
            "changelog. Its puts are not timed, because each one is a py4j call.",
            "Root and local copies are on the local disk. Statekeeper flushes each commit to the disk.",
        ],
    )
