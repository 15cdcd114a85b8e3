"""Memory, bytes and requests of a running job by partitions and batches, without running Spark jobs."""

from __future__ import annotations

import argparse
import itertools
import json
import pickletools
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark import cloudpickle
from pyspark.accumulators import Accumulator

from benchmarks.measure import Table
from statekeeper.pipelines.batch.snapshots import KnownSnapshots
from statekeeper.pipelines.sinks.delta_log import DeltaLog
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.emergency import EMERGENCY_CHANGELOGS, EmergencySnapshots
from statekeeper.pipelines.task.reports import ReportChannel, TaskReport
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.storage import RequestCounts, open_storage

PARTITIONS = (10, 200, 1_000)
BATCHES = (10, 1_000, 100_000)
MOST_GROWTH = 1.3

_CEILING = 840
_BATCHES_BETWEEN_SNAPSHOTS = 50
_MEMORY = Path("/dev/shm")


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    del options
    return [_kept(), _sent(), _asked()]


def _kept() -> Table:
    rows, most = [], 0
    for partitions, batches in itertools.product(PARTITIONS, BATCHES):
        kept = _reports_kept(partitions, batches)
        most = max(most, kept)
        rows.append([f"{partitions:,}, {batches:,}", f"{kept:,}", f"{partitions * batches:,}", str(_tries(batches))])
    return Table(
        title="Reports that a driver keeps, by partitions and batches",
        columns=["partitions, batches", "reports kept", "reports received", "failed attempts of emergency snapshots"],
        rows=rows,
        targets=[f"reports kept after the last batch: {most:,}, target 0: {'reached' if not most else 'missed'}"],
        notes=[
            "The accumulator of a job receives the reports of all batches in the same way as from PySpark's server.",
            f"Attempts: each batch adds one changelog, from {EMERGENCY_CHANGELOGS} to {_CEILING}. Each attempt fails.",
        ],
    )


class _Context:
    """Creates accumulators like a SparkContext."""

    _ids = itertools.count()

    def accumulator(self, value: Any, param: Any) -> Accumulator[Any]:
        return Accumulator(next(self._ids), value, param)


def _reports_kept(partitions: int, batches: int) -> int:
    context: Any = _Context()
    channel = ReportChannel(context)
    report = TaskReport(task=0, tag=0, partitions=(), requests=RequestCounts())
    reporter = None
    for number in range(batches):
        reporter = channel.open(str(number))
        reporter.accumulator.add([(reporter.attempt, report)] * partitions)
        assert len(channel.take(reporter)) == partitions
    return 0 if reporter is None else len(reporter.accumulator.value)


def _tries(batches: int) -> int:
    """Count the attempts to read an unreadable checkpoint until the lineage reaches its ceiling."""
    with _folder() as folder:
        storage = open_storage(str(folder))
        storage.create(names.commits(0), b"no commit")
        snapshots = EmergencySnapshots(
            storage,
            changelogs=EMERGENCY_CHANGELOGS,
            scratch=folder / "scratch",
            clock=SystemClock(),
            ids=RandomIds(),
            warn=lambda _: None,
        )
        return sum(snapshots.before(batch, batch) for batch in range(min(batches, _CEILING)))


def _sent() -> Table:
    rows, objects, microseconds = [], [], []
    for partitions in PARTITIONS:
        bases, snapshots = _versions(partitions)
        packed = _sent_bytes(Assignments.of(bases, snapshots))
        plain = _sent_bytes((bases, snapshots))
        now = _seconds(lambda packed=packed: cloudpickle.loads(packed).of_partition(7))
        before = _seconds(lambda plain=plain: cloudpickle.loads(plain))
        objects.append(sum(1 for _ in pickletools.genops(packed)))
        microseconds.append(now * 1e6)
        rows.append(
            [
                f"{partitions:,}",
                f"{objects[-1]:,}",
                f"{len(packed):,}",
                f"{now * 1e6:,.0f}",
                f"{before * 1e6:,.0f}",
                f"{before / now:,.0f}x",
            ]
        )
    growth = objects[-1] / objects[0]
    return Table(
        title="Unpickling the stores of a task, by partitions",
        columns=["partitions", "steps", "bytes received", "us", "us, versions of all stores as objects", "ratio"],
        rows=rows,
        targets=[
            f"steps of unpickling, {PARTITIONS[-1]:,} partitions to {PARTITIONS[0]}: {growth:.2f}x, target at most "
            f"{MOST_GROWTH}x: {'reached' if growth <= MOST_GROWTH else 'missed'}",
        ],
        notes=[
            "Each partition has one store with three snapshots. Medians of 30 rounds.",
            f"The copied bytes grow with the partitions: {PARTITIONS[-1]:,} partitions take "
            f"{microseconds[-1] - microseconds[0]:,.0f} us more. They do not depend on the batches.",
        ],
    )


def _sent_bytes(value: object) -> bytes:
    """Pickle a value in the same way as Spark does for its workers."""
    found: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return found


def _versions(partitions: int) -> tuple[dict[int, tuple[VersionId, ...]], dict[StorePath, frozenset[VersionId]]]:
    def version(number: int) -> VersionId:
        return VersionId(number, str(uuid.uuid4()))

    stores = (StorePath(0, partition) for partition in range(partitions))
    snapshots = {store: frozenset(map(version, (700, 800, 850))) for store in stores}
    return {0: tuple(version(900) for _ in range(partitions))}, snapshots


def _seconds(work: Any) -> float:
    found = []
    for _ in range(30):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return sorted(found)[len(found) // 2]


def _asked() -> Table:
    rows = []
    looks: dict[int, list[int]] = {}
    sinks: dict[int, list[int]] = {}
    for partitions, batches in itertools.product(PARTITIONS, BATCHES):
        listed, of_all = _snapshot_look(partitions, batches)
        requests, size_bytes, whole_bytes = _sink_look(partitions, batches)
        looks.setdefault(partitions, []).append(listed)
        sinks.setdefault(partitions, []).append(size_bytes)
        cells = (listed, of_all, requests, size_bytes, whole_bytes)
        rows.append([f"{partitions:,}, {batches:,}", *(f"{cell:,}" for cell in cells)])
    growth = max(max(of) / min(of) for of in (*looks.values(), *sinks.values()))
    return Table(
        title="Requests of a driver, by partitions and batches",
        columns=[
            "partitions, batches",
            "objects listed to find snapshots",
            "objects below state/",
            "requests to the sink per batch",
            "bytes read from the sink per batch",
            "bytes of the whole sink log",
        ],
        rows=rows,
        targets=[
            f"largest ratio of the most batches to the fewest: {growth:.2f}x, target at most {MOST_GROWTH}x: "
            f"{'reached' if growth <= MOST_GROWTH else 'missed'}",
        ],
        notes=[
            "Listing without a maintenance run since the last one. After a run, the job lists the records (four per run of "
            "the last 30 days) and reads the new ones.",
            "The sink is a Delta table with one file per batch and a checkpoint in its log. The job queries it before each "
            "batch and after the write. The commit of the write has one file per partition.",
        ],
    )


def _snapshot_look(partitions: int, batches: int) -> tuple[int, int]:
    """Return the number of listed objects, and of objects below `state/`."""
    with _folder() as folder:
        storage = open_storage(str(folder))
        versions = min(batches, 2 * _BATCHES_BETWEEN_SNAPSHOTS)
        for partition in range(partitions):
            place = folder / StorePath(0, partition).folder
            place.mkdir(parents=True)
            for number in range(versions):
                (place / f"{number + 1}.changelog").touch()
        storage.create(names.lease(1), b"{}")
        known = KnownSnapshots(storage)
        counting = _CountsEntries(storage)
        known.look(counting)  # type: ignore[arg-type]
        return counting.entries, len(storage.list(names.STATE))


class _CountsEntries:
    """Counts the objects in listings."""

    def __init__(self, storage: Any) -> None:
        self.entries = 0
        self._storage = storage

    def list(self, prefix: str) -> list[Any]:
        found: list[Any] = self._storage.list(prefix)
        self.entries += len(found)
        return found


class _CountsReads(DeltaLog):
    def __init__(self, path: Path) -> None:
        super().__init__(str(path), {})
        self.sizes: list[int] = []

    def _read(self, version: int, length: int | None) -> bytes | None:
        found = super()._read(version, length)
        self.sizes.append(len(found or b""))
        return found


def _sink_look(partitions: int, batches: int) -> tuple[int, int, int]:
    """Return requests and bytes read from the sink for one batch, and the bytes read to open the table."""
    with _folder() as folder:
        write_deltalake(folder / "facts", pa.table({"n": [1]}))
        log = folder / "facts" / "_delta_log"
        _commit(log, 1, (f"{number}.parquet" for number in range(batches)))
        DeltaTable(folder / "facts").create_checkpoint()
        _commit(log, 2, (f"before-{number}.parquet" for number in range(partitions)))
        counting = _CountsReads(folder / "facts")
        assert counting.look() is not None
        counting.sizes.clear()
        counting.look()
        _commit(log, 3, (f"new-{number}.parquet" for number in range(partitions)))
        counting.look()
        whole = sum(file.stat().st_size for file in log.iterdir() if not file.name.startswith(f"{1:020}.json"))
        return len(counting.sizes), sum(counting.sizes), whole


def _commit(log: Path, version: int, files: Iterator[str]) -> None:
    actions: list[dict[str, Any]] = [{"commitInfo": {"timestamp": version, "operation": "WRITE"}}]
    for path in files:
        add = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
        actions.append({"add": add})
    (log / f"{version:020}.json").write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in actions))


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name)
