"""What a batch costs a store as its state grows: load with the last changelog's replay, get, put, commit.

5,000 changes of different keys a batch. The work of a batch must follow its changes and not the size of the state.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

from benchmarks.measure import Spread, Table, flat, ratio, verdict
from statestore.clock import RandomIds, SystemClock
from statestore.format.names import EMPTY, StorePath
from statestore.format.state_rows import encode_keys, encode_values
from statestore.storage import Storage, StorageSpec, open_storage
from statestore.store import StateStore, StoreAddress, settle

CHANGES = 5_000
SIZES = (10_000, 100_000, 1_000_000)
LARGE_SIZE = 10_000_000
BATCHES_A_ROUND = 10
WARM_UP_BATCHES = 3
GROUPS = 128
_PIECE_KEYS = 200_000


@dataclass
class Samples:
    """What the batches of one store took, in milliseconds, a list for each round."""

    whole: list[list[float]] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)
    upload_ratios: list[float] = field(default_factory=list)


class Subject:
    """A store of so many keys that gets one batch after the other, as a Spark task gives them."""

    def __init__(self, folder: Path, keys: int, seed: int) -> None:
        self.keys = keys
        self.samples = Samples()
        self._storage: Storage = open_storage(StorageSpec(str(folder / "root")))
        self._address = StoreAddress(StorePath(0, 0), folder / "local")
        self._random = np.random.default_rng(seed)
        self._head = EMPTY
        self._settling: threading.Thread | None = None
        with self._load() as store:
            for first in range(0, keys, _PIECE_KEYS):
                numbers = np.arange(first, min(first + _PIECE_KEYS, keys))
                store.put(_keys(numbers), self._values(len(numbers)))
            self._head = store.commit()

    def run(self, batches: int, *, measured: bool = True) -> None:
        """So many batches; what they leave for the background is done when this returns."""
        took = [self._batch(measured) for _ in range(batches)]
        if measured:
            self.samples.whole.append(took)
        if self._settling is not None:
            self._settling.join()

    def _load(self) -> StateStore:
        return StateStore.load(self._address, self._head, storage=self._storage, clock=SystemClock(), ids=RandomIds())

    def _batch(self, measured: bool) -> float:
        keys = _keys(np.sort(self._random.choice(self.keys, CHANGES, replace=False)))
        values = self._values(CHANGES)
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
                self._head = store.commit()
        if measured:
            for phase, milliseconds in phases.items():
                self.samples.phases.setdefault(phase, []).append(milliseconds)
            metrics = store.commit_metrics
            self.samples.upload_ratios.append(metrics.uploaded_bytes / metrics.changed_bytes)
        if store.wants_settling and (self._settling is None or not self._settling.is_alive()):
            # As a task does: after the batch, beside whatever comes next.
            known = {"storage": self._storage, "clock": SystemClock(), "ids": RandomIds()}
            self._settling = threading.Thread(target=settle, args=(self._address, store.base), kwargs=known)
            self._settling.start()
        return sum(phases.values())

    def _values(self, count: int) -> pa.LargeBinaryArray:
        return encode_values(
            pa.table({"count": self._random.integers(0, 1_000_000, count), "mean": self._random.random(count)})
        )


class _timed:  # noqa: N801 - reads as a word of the `with` statement
    def __init__(self, into: dict[str, float], phase: str) -> None:
        self._into, self._phase = into, phase

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._into[self._phase] = (perf_counter() - self._started) * 1000


def _keys(numbers: np.ndarray) -> pa.LargeBinaryArray:
    """State keys in their own order, as a task finds them after Spark's sort."""
    groups = (numbers * 2_654_435_761 % 2**32 >> 7).astype(np.int32) % GROUPS
    order = np.argsort(groups, kind="stable")
    return encode_keys(groups[order], pa.table({"key": numbers[order]}))


def run(options: argparse.Namespace) -> list[Table]:
    """The benchmark; `options.large` adds the largest state, `options.rounds` says how often each has its turn."""
    sizes = (*SIZES, LARGE_SIZE) if options.large else SIZES
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as folder:
        subjects = [Subject(Path(folder) / str(size), size, seed=size) for size in sizes]
        for subject in subjects:
            subject.run(WARM_UP_BATCHES, measured=False)
        for _ in range(options.rounds):
            for subject in subjects:
                subject.run(BATCHES_A_ROUND)
    return [_table(subjects)]


def _table(subjects: list[Subject]) -> Table:
    smallest = subjects[0].samples
    rows = []
    targets = []
    for subject in subjects:
        samples = subject.samples
        growth = ratio(samples.whole, smallest.whole)
        every = flat(samples.whole)
        p50, p99 = np.percentile(every, [50, 99])
        phases = [f"{np.median(samples.phases[phase]):.1f}" for phase in ("load", "get", "put", "commit")]
        rows.append(
            [
                f"{subject.keys:,}",
                f"{len(every)}",
                f"{p50:.1f}",
                f"{p99:.1f}",
                *phases,
                growth.shown(2, "x"),
                f"{np.median(samples.upload_ratios):.3f}",
            ]
        )
        if subject.keys > subjects[0].keys:
            targets.append(
                verdict(f"p50 at {subject.keys:,} keys to that at {subjects[0].keys:,}", growth, at_most=1.3)
            )
    uploads = Spread.of([value for subject in subjects for value in subject.samples.upload_ratios])
    targets.append(verdict("bytes uploaded to bytes of the encoded changes", uploads, at_most=1.1))
    return Table(
        f"Commit of {CHANGES:,} changes by size of the state",
        ["keys", "batches", "p50 ms", "p99 ms", "load", "get", "put", "commit", "p50 to the smallest", "upload"],
        rows,
        targets,
        [
            "A batch: load of the newest version with the replay of the changelog before it, get, put and commit of "
            f"{CHANGES:,} random keys that all have a state. Medians of the phases in milliseconds.",
            f"Rounds of {BATCHES_A_ROUND} batches alternate over the sizes; within a round batches follow each other "
            "at once, with the merging of local tables in its background thread, as in a Spark worker.",
            "Root and local copies on the local disk, each commit flushed to it.",
        ],
    )
