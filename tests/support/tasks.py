"""Tasks and drivers that fail at a selected moment. Spark's workers import this module."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from statekeeper.pipelines.batch.driver import BatchDriver
from statekeeper.pipelines.task.reports import TaskReport, tag_of
from statekeeper.pipelines.task.work import TaskPlan

STRANGER = "ffffffff-0000-4000-8000-000000000000"


def rearmed(plan: TaskPlan, kind: type[TaskPlan], **more: Any) -> TaskPlan:
    """The same plan as another kind of plan."""
    return kind(**{field.name: getattr(plan, field.name) for field in fields(plan)}, **more)


@dataclass(frozen=True)
class _FailsOnceAfterCommit(TaskPlan):
    flag: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().__call__(batches)
        if self.assignments.of_partition(0)[0].base.version == 1:
            try:
                Path(self.flag).touch(exist_ok=False)
            except FileExistsError:
                return
            raise RuntimeError("after the commit, before Spark hears of it")


class FailsAfterCommit(BatchDriver):
    """One task of batch 1 fails when its stores are committed and its report is made."""

    def _plan(self, *rest: Any) -> TaskPlan:
        return rearmed(super()._plan(*rest), _FailsOnceAfterCommit, flag=f"{self._host.local_folder}.failed")


@dataclass(frozen=True)
class _TellsItsExecutor(TaskPlan):
    folder: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # The worker's parent is the daemon that forked it, whose parent is the executor.
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        Path(self.folder).mkdir(exist_ok=True)
        Path(self.folder, daemon[1]).touch()
        yield from super().__call__(batches)


class KnowsItsExecutors(BatchDriver):
    """Its tasks leave the process ids of their executors in `<root>.executors`."""

    def _plan(self, *rest: Any) -> TaskPlan:
        return rearmed(super()._plan(*rest), _TellsItsExecutor, folder=executors_folder(self._root_spec.url))


def executors_folder(root: str) -> str:
    return f"{root}.executors"


@dataclass(frozen=True)
class _Twins(TaskPlan):
    folder: str = ""
    attempt: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from super().__call__(batches)
        context = TaskContext.get()
        assert context is not None
        base = self.assignments.of_partition(0)[0].base.version
        meeting = Path(self.folder, str(base))
        # Only the first attempt at a batch has twins; which one is the first, the first of its tasks says.
        meeting.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            Path(meeting, "attempt").symlink_to(self.attempt)
        if context.partitionId() or os.readlink(Path(meeting, "attempt")) != self.attempt:
            return
        Path(meeting, f"committed-{os.getpid()}").touch()
        until = time.monotonic() + TWIN_SECONDS
        while len(list(meeting.glob("committed-*"))) < 2 and time.monotonic() < until:
            time.sleep(0.02)


TWIN_SECONDS = 20


class HasTwins(BatchDriver):
    """Partition 0 of each batch waits after its commit until a speculative twin has committed too."""

    def _plan(self, *rest: Any) -> TaskPlan:
        more = {"folder": f"{self._root_spec.url}.twins", "attempt": str(uuid.uuid4())}
        return rearmed(super()._plan(*rest), _Twins, **more)


def choosing_others(times: int) -> type[BatchDriver]:
    """Return a driver that chooses other attempts than those of the rows, this number of times, as if twins had won."""
    left = [None] * times

    class ChoosesOthers(BatchDriver):
        def _checked(self, *rest: Any) -> list[TaskReport]:
            chosen = super()._checked(*rest)
            if not left:
                return chosen
            left.pop()
            [partition, *others] = chosen[0].partitions
            store = partition.stores[0]
            other = replace(partition, stores=(replace(store, new=replace(store.new, id=STRANGER)),))
            return [replace(chosen[0], partitions=(other, *others), tag=tag_of(STRANGER)), *chosen[1:]]

    return ChoosesOthers
