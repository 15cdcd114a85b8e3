"""Tasks and drivers that go wrong at a chosen moment; a module of its own, since Spark's workers import it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.driver import BatchDriver
from pipelines.task import PartitionReport, TaskPlan

STRANGER = "ffffffff-0000-4000-8000-000000000000"


def rearmed(plan: TaskPlan, kind: type[TaskPlan], **more: Any) -> TaskPlan:
    """The same plan as another kind of plan."""
    return kind(**{field.name: getattr(plan, field.name) for field in fields(plan)}, **more)


@dataclass(frozen=True)
class _FailsOnceAfterCommit(TaskPlan):
    flag: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().__call__(batches)
        if next(iter(self.bases.values()))[0].version == 1:
            try:
                Path(self.flag).touch(exist_ok=False)
            except FileExistsError:
                return
            raise RuntimeError("after the commit, before Spark hears of it")


class FailsAfterCommit(BatchDriver):
    """One task of batch 1 fails when its stores are committed and its report is made."""

    def _plan(self, *rest: Any) -> TaskPlan:
        return rearmed(super()._plan(*rest), _FailsOnceAfterCommit, flag=f"{self._host.local_folder}.failed")


def choosing_others(times: int) -> type[BatchDriver]:
    """A driver that chooses other attempts than those that left the rows, so many times: as if twins had."""
    left = [None] * times

    class ChoosesOthers(BatchDriver):
        def _checked(self, reports: Sequence[PartitionReport], *rest: Any) -> list[PartitionReport]:
            chosen = super()._checked(reports, *rest)
            if not left:
                return chosen
            left.pop()
            store = chosen[0].stores[0]
            other = replace(store, new=replace(store.new, id=STRANGER))
            return [replace(chosen[0], stores=(other,)), *chosen[1:]]

    return ChoosesOthers
