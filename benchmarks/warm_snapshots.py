"""What a maintenance pass over a bucket reads, with and without the SST files that an earlier process has kept.

Each pass is a process of its own, as a run of Dagster is. Both passes take a snapshot after the same number of batches.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from benchmarks.measure import Spread, Table, flat, ratio, verdict
from benchmarks.peak import peak_of
from benchmarks.s3_process import s3_process
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.maintenance.rounds.visit import visit
from statekeeper.statestore.maintenance.upkeep.snapshot import KEPT_BYTES, SnapshotPolicy
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Run
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from tests.support.checkpoints import Checkpoint

STATE_MB = (20, 200)
TAIL_CHANGELOGS = 10
CHANGED_ROWS = 200
ROW_BYTES = 1_000
KEPT = {"cold": 0, "warm": KEPT_BYTES}


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name, s3_process() as bucket:
        passes = {size: _Passes(Path(name) / str(size), size, bucket) for size in STATE_MB}
        for of_size in passes.values():
            # The first pass is cold in both places.
            for _ in range(options.rounds + 1):
                of_size.round()
    rows, targets = [], []
    for size, of_size in passes.items():
        for contender in KEPT:
            read, requests, cpu = of_size.samples(contender)
            rows.append(
                [
                    f"{size} MB of state, {contender}",
                    Spread.of(flat(read)).shown(2),
                    Spread.of(flat(requests)).shown(),
                    Spread.of(flat(cpu)).shown(2),
                ]
            )
        cold, warm = of_size.samples("cold"), of_size.samples("warm")
        targets.append(f"{size} MB: bytes, cold to warm: {ratio(cold[0], warm[0]).shown(1, 'x')}")
        targets.append(f"{size} MB: requests, cold to warm: {ratio(cold[1], warm[1]).shown(2, 'x')}")
        targets.append(f"{size} MB: CPU, cold to warm: {ratio(cold[2], warm[2]).shown(2, 'x')}")
    small, large = (passes[size].samples("warm")[0] for size in STATE_MB)
    targets.append(verdict("Bytes of a warm pass, ten times the state", ratio(large, small), at_most=1.5))
    return [
        Table(
            title="A maintenance pass with a snapshot, with and without kept SST files",
            columns=["", "MB read", "requests", "CPU seconds"],
            rows=rows,
            targets=targets,
            notes=[
                f"One store in a bucket, with values of {ROW_BYTES:,} bytes. Before each pass, {TAIL_CHANGELOGS} batches "
                f"change {CHANGED_ROWS} rows each. A pass takes the snapshot and audits, in mode `snapshots`. "
                f"{options.rounds} rounds, after one warm-up round.",
                "Each pass is a new process. CPU is user and system time of all its threads after the imports. The S3 "
                "server is another process.",
            ],
        )
    ]


class _Passes:
    """Two copies of a root of a size: the passes over one are cold, the passes over the other warm."""

    def __init__(self, folder: Path, size_mb: int, bucket: StorageSpec) -> None:
        self._rows = size_mb * 1_000_000 // ROW_BYTES
        self._folder = folder
        self._bucket = bucket
        first = Checkpoint(open_storage(str(folder / "root")), folder / "job", partitions=1)
        first.batch({self._key(number): os.urandom(ROW_BYTES) for number in range(self._rows)})
        _visited(first.storage, folder / "scratch", 0, changelogs=1)
        self._roots: dict[str, Checkpoint] = {}
        for name in KEPT:
            storage = open_storage(self._spec(name))
            self._roots[name] = first.copied_to(storage, folder / f"job {name}")
        self._samples: dict[str, list[tuple[float, float, float]]] = {name: [] for name in KEPT}

    def round(self) -> None:
        """Change both roots alike, and make a pass over each."""
        for name, kept_bytes in KEPT.items():
            for batch in range(TAIL_CHANGELOGS):
                first = batch * CHANGED_ROWS
                keys = map(self._key, range(first, first + CHANGED_ROWS))
                self._roots[name].batch({key: os.urandom(ROW_BYTES) for key in keys})
            spec = self._spec(name)
            scratch = str(self._folder / f"scratch {name}")
            arguments = (spec.url, json.dumps(spec.options), scratch, str(kept_bytes))
            done = peak_of("benchmarks.warm_snapshots", "pass_over", *arguments)
            read, requests = done.result
            self._samples[name].append((read / 1e6, requests, done.cpu_seconds))

    def samples(self, contender: str) -> list[list[list[float]]]:
        """Return megabytes, requests and CPU seconds of each round, without the warm-up round."""
        return [[[one[kind]] for one in self._samples[contender][1:]] for kind in range(3)]

    def _key(self, number: int) -> bytes:
        return b"row %09d" % number

    def _spec(self, name: str) -> StorageSpec:
        return StorageSpec(f"{self._bucket.url}/{self._rows}-{name}", self._bucket.options)


def pass_over(url: str, options: str, scratch: str, kept_bytes: str) -> tuple[int, int]:
    """Make a pass. Returns the bytes that it read, and its requests."""
    spec = StorageSpec(url, tuple((key, value) for key, value in json.loads(options)))
    return _visited(open_storage(spec), Path(scratch), int(kept_bytes), changelogs=TAIL_CHANGELOGS)


def _visited(storage: Storage, scratch: Path, kept_bytes: int, *, changelogs: int) -> tuple[int, int]:
    run = Run(
        storage=storage,
        policies=Policies(SnapshotPolicy(changelogs=changelogs), mode=Mode.SNAPSHOTS),
        by=Maintainer("a benchmark", SystemClock(), RandomIds()),
        scratch=scratch,
        kept_bytes=kept_bytes,
    )
    made = visit("benchmark", run)
    if len(made.taken.taken) != 1 or made.errors:
        raise RuntimeError(f"no snapshot was taken: {made.text}")
    return made.requests.bytes_read, made.requests.total
