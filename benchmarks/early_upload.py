"""Commit of a large changelog: uploaded in parts while the update function runs, and as a whole at the commit."""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import Spread, Table, flat, ratio, verdict
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.partitioning import GROUP_COLUMN, Partitioning
from statekeeper.pipelines.task.reports import PartitionReport, Reported, TaskReport
from statekeeper.pipelines.task.task_outputs import TaskOutputs
from statekeeper.pipelines.task.work import Task, TaskPlan, Worker
from statekeeper.statestore.format.names import EMPTY
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.attempts import DEFAULT_OUTPUT
from statekeeper.statestore.root.times import BatchTimes
from statekeeper.statestore.storage import StorageSpec
from statekeeper.statestore.storage.parts import PART_BYTES
from statekeeper.statestore.store.engine.sweep import SweepLimits
from statekeeper.statestore.store.state_store import CommitMetrics, StoreLimits
from tests.support.s3_server import S3Server

_KEYS = 280_000
_BLOB_BYTES = 230
_PARTITIONS = 2
_WANTED_BYTES = 64_000_000
_NEVER_BYTES = 1 << 40
_ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64())])
_STATE = pa.schema([("blob", pa.binary())])
_OUTPUT = pa.schema([("key", pa.int64())])
_FIRST_BYTE_SECONDS = 0.1
_MEGABYTES_PER_SECOND = (100, 25, 10)
"""Of one request to the server."""


@dataclass
class _Mode:
    """One way to upload, and its samples by round."""

    part_bytes: int
    task_seconds: list[list[float]] = field(default_factory=list)
    commits: list[list[CommitMetrics]] = field(default_factory=list)

    def commit_seconds(self) -> list[list[float]]:
        return [[one.upload_milliseconds / 1000 for one in commits] for commits in self.commits]


class _Reports:
    def __init__(self) -> None:
        self.all: list[PartitionReport] = []

    def add(self, report: Reported) -> None:
        assert isinstance(report, TaskReport)
        self.all += report.partitions


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    rows, targets = [], []
    for speed in _MEGABYTES_PER_SECOND:
        modes = early, late = _Mode(PART_BYTES), _Mode(_NEVER_BYTES)
        with _server(speed) as buckets:
            for number in range(options.rounds):
                for mode in modes:
                    _add_round(mode, next(buckets), number)
        shares = [one.early_bytes / one.uploaded_bytes for commits in early.commits for one in commits]
        rows.append(
            [
                f"{speed} MB/s",
                f"{100 * min(shares):.0f} %",
                Spread.of(flat(early.commit_seconds())).shown(1),
                Spread.of(flat(late.commit_seconds())).shown(1),
                Spread.of(flat(early.task_seconds)).shown(1),
                Spread.of(flat(late.task_seconds)).shown(1),
                f"{Spread.of([one.back_pressure_seconds for c in early.commits for one in c]).median:.1f}",
            ]
        )
        percent = [100 * share for share in shares]
        targets.append(verdict(f"{speed} MB/s, bytes before the commit", Spread.of(percent), at_least=80, unit=" %"))
        faster = ratio(late.task_seconds, early.task_seconds)
        targets.append(f"{speed} MB/s, task faster by {faster.shown(2, 'x')}")
    return [
        Table(
            title="Seconds of a task with 64 MB of changes per partition",
            columns=[
                "one request",
                "before the commit, least",
                "commit, in parts",
                "commit, as a whole",
                "task, in parts",
                "task, as a whole",
                "back-pressure",
            ],
            rows=rows,
            targets=targets,
            notes=[
                f"A task without Spark with {_PARTITIONS} partitions, one after another. Each writes {_KEYS:,} keys with "
                f"{_BLOB_BYTES} random bytes; the changelog has {late.commits[0][0].uploaded_bytes / 1e6:.1f} MB. "
                "Back-pressure is per partition.",
                "An S3 server over HTTP, in another process. A request waits 0.1 s, and for its body at the speed in the "
                f"first column. Parts of {PART_BYTES / 2**20:.0f} MiB; at the commit, pieces of 16 MiB in turn.",
                f"{options.rounds} rounds in turns.",
            ],
        )
    ]


def _add_round(mode: _Mode, spec: StorageSpec, seed: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="statekeeper-upload-"))
    try:
        started = perf_counter()
        reports = _run_task(spec, folder, mode.part_bytes, seed)
        mode.task_seconds.append([perf_counter() - started])
    finally:
        # The task's background thread may still write to it.
        shutil.rmtree(folder, ignore_errors=True)
    commits = [report.stores[0].commit for report in reports]
    assert all(one.uploaded_bytes >= _WANTED_BYTES for one in commits)
    mode.commits.append(commits)


def _run_task(spec: StorageSpec, folder: Path, part_bytes: int, seed: int) -> list[PartitionReport]:
    chance = np.random.default_rng(seed)

    def update(rows: pa.Table, state: pa.Table) -> Update:
        del state
        blobs = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_BLOB_BYTES), rows.num_rows, [None, pa.py_buffer(chance.bytes(rows.num_rows * _BLOB_BYTES))]
        )
        new = pa.table({"key": rows.column("key"), "blob": blobs.cast(pa.binary())})
        return Update(new.select(["key"]), new)

    reports = _Reports()
    plan = TaskPlan(
        root=spec,
        root_id="root",
        local_folder=str(folder),
        operator=StatefulOperator(["key"], ["value"], state=_STATE, output=_OUTPUT, update=update),
        row_columns=_ROWS,
        partitioning=Partitioning(_PARTITIONS, _PARTITIONS, 1),
        assignments=Assignments.of({0: (EMPTY,) * _PARTITIONS}, {}),
        rewrites={},
        structure=Structure.V2,
        batch_log=None,
        limits=StoreLimits(part_bytes=part_bytes),
        times=BatchTimes(batch=0, time_ms=0),
        sweep=SweepLimits(),
        output=TaskOutputs(rows={DEFAULT_OUTPUT: _OUTPUT}, reporter=reports),
    )
    numbers = np.arange(_KEYS * _PARTITIONS)
    columns = [pa.array(numbers), pa.array(numbers), pa.array((numbers // _KEYS).astype(np.int32))]
    rows = pa.table(columns, schema=_ROWS.append(pa.field(GROUP_COLUMN, pa.int32())))
    for _ in Task(plan, 0, Worker.of(plan)).run(iter(rows.to_batches(max_chunksize=10_000))):
        pass
    return reports.all


class _SlowServer(S3Server):
    """Takes time for the body of each request."""

    bytes_per_second = 1e6

    def _answer(self, environ: dict[str, Any], start: Any) -> Any:
        sleep(_FIRST_BYTE_SECONDS + int(environ.get("CONTENT_LENGTH") or 0) / self.bytes_per_second)
        return super()._answer(environ, start)


@contextmanager
def _server(speed: int) -> Iterator[Iterator[StorageSpec]]:
    """A slow S3 server in a process of its own, so that it does not share the client's interpreter. Yields new roots."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, speed), daemon=True)
    process.start()

    def roots() -> Iterator[StorageSpec]:
        while True:
            here.send("bucket")
            options, bucket = here.recv()
            yield StorageSpec(f"s3://{bucket}/root", tuple(options.items()))

    try:
        yield roots()
    finally:
        here.send("stop")
        process.join()


def _serve(connection: Connection, speed: int) -> None:
    server = _SlowServer()
    server.bytes_per_second = speed * 1e6
    server.start()
    while connection.recv() == "bucket":
        connection.send((server.options, server.make_bucket()))
    server.stop()
