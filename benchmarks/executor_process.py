"""What `benchmarks.executors` measures, in a process of its own: snapshots, and a map over many stores."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

from benchmarks.measure import cpu_of_processes
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint.lineage import BaseKind, LoadPlan
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.maintenance.executors import Executor, LocalExecutor, Place
from statekeeper.statestore.maintenance.executors.spark import SparkExecutor
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy, SnapshotReason, TakeSnapshot
from statekeeper.statestore.storage import Storage, open_storage

_MEMORY_BYTES = 512 * 2**20
_CHANGELOGS = 20


def snapshots(executors: str, root: str, scratch: str) -> dict[str, Any]:
    """Take a snapshot of each store of copies of a root, twice: the first time starts the Python workers. Returns the
    seconds and the CPU seconds of the second time. `executors`: 0 for this machine."""
    executor, found = _executor(int(executors), Path(scratch)), {}
    for turn in ("first", "second"):
        copied = Path(scratch) / turn
        shutil.copytree(root, copied)
        storage = open_storage(str(copied))
        planned = snapshot.plan(snapshot.gather(storage), SnapshotPolicy(), take_all=True)
        failed: list[StatekeeperError] = []

        def ended(_: TakeSnapshot, outcome: Any, failed: list[StatekeeperError] = failed) -> None:
            if isinstance(outcome, StatekeeperError):
                failed.append(outcome)

        _, before = cpu_of_processes()
        started = perf_counter()
        snapshot.execute_all(storage, planned.take, ended, executor=executor)
        seconds = perf_counter() - started
        _, after = cpu_of_processes()
        if failed:
            raise failed[0]
        found = {"seconds": seconds, "cpu_seconds": after - before, "stores": len(planned.take)}
        shutil.rmtree(copied)
    return found


@dataclass(frozen=True)
class _Nothing:
    """A task that does nothing: what is left is the work of the executor."""

    @property
    def storages(self) -> Sequence[Storage]:
        return ()

    def __call__(self, action: TakeSnapshot, place: Place) -> int:
        return action.store.partition


def many_stores(stores: str) -> dict[str, Any]:
    """Map a task that does nothing over planned snapshots with 20 changelogs each. Returns the seconds, and the MiB that
    this process and its JVM gained."""
    executor = _executor(2, Path())
    executor.map(_Nothing(), _planned(8), lambda item, outcome: None)
    actions = _planned(int(stores))
    before = _resident_mib()
    ended = set[int]()
    started = perf_counter()
    executor.map(_Nothing(), actions, lambda item, outcome: ended.add(item.store.partition))
    seconds = perf_counter() - started
    assert len(ended) == int(stores)
    return {"seconds": seconds, "python_mib": _resident_mib()[0] - before[0], "jvm_mib": _resident_mib()[1] - before[1]}


def _planned(stores: int) -> list[TakeSnapshot]:
    ids = RandomIds()
    planned = []
    for partition in range(stores):
        replay = tuple(VersionId(number + 1, ids.fresh()) for number in range(_CHANGELOGS))
        planned.append(
            TakeSnapshot(
                store=StorePath(0, partition),
                version=replay[-1],
                load=LoadPlan(BaseKind.NOTHING, EMPTY, replay, replay),
                tail_bytes=0,
                reason=SnapshotReason.ASKED,
            )
        )
    return planned


def _executor(executors: int, scratch: Path) -> Executor:
    if not executors:
        return LocalExecutor(clock=SystemClock(), scratch=scratch / "scratch", memory_bytes=_MEMORY_BYTES)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local-cluster[{executors},1,1024]").config("spark.ui.enabled", "false")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return SparkExecutor(memory_bytes=_MEMORY_BYTES)


def _resident_mib() -> tuple[float, float]:
    mine = psutil.Process()
    jvm = next(one for one in mine.children() if "java" in one.name())
    return mine.memory_info().rss / 2**20, jvm.memory_info().rss / 2**20
