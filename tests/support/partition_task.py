"""One partition of an operator, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from statekeeper.pipelines.operator.declaration import Frames, StatefulOperator, Update
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.partitioning import GROUP_COLUMN, Partitioning
from statekeeper.pipelines.task.reports import PartitionReport, TaskReport
from statekeeper.pipelines.task.task_outputs import MARKER_COLUMN, TaskOutputs
from statekeeper.pipelines.task.work import Task as SparkTask
from statekeeper.pipelines.task.work import TaskPlan, Worker
from statekeeper.statestore.format.names import EMPTY
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.times import BatchTimes
from statekeeper.statestore.storage import StorageSpec
from statekeeper.statestore.store.engine.sweep import SweepLimits
from statekeeper.statestore.store.state_store import StoreLimits

ROWS = pa.schema([("key", pa.int64()), ("name", pa.string()), ("value", pa.int64())])


STATE = pa.schema(
    [
        pa.field("total", pa.int32(), nullable=False),
        ("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
    ]
)


OUTPUT = pa.schema([("key", pa.int64()), pa.field("label", pa.string(), nullable=False)])


GIVEN = pa.table({"key": [1, 1, 2, None], "name": ["a", "a", "b", None], "value": [5, 6, 7, 8]}, schema=ROWS)


NEW = pa.table(
    {
        "key": pa.array([1, 2, None]),
        "name": ["a", "b", None],
        "total": pa.array([11, 7, 8], pa.int32()),
        "tags": pa.array([["x"], [], None], STATE.field("tags").type),
    }
)


OUT = pa.table({"key": pa.array([1, 2], pa.int64()), "label": ["one", "two"]})


class Reports:
    """Stands where the reporter does that has Spark's accumulator."""

    def __init__(self) -> None:
        self.all: list[PartitionReport] = []

    def add(self, report: TaskReport) -> None:
        self.all += report.partitions


class Task:
    """One partition of an operator whose update function returns the given results."""

    def __init__(self, folder: Path, **declared: Any) -> None:
        self.folder = folder
        self.reports = Reports()
        self.returned: Any = Update(OUT, NEW)
        self.limits = StoreLimits()
        self.declared = {"state": STATE, "output": OUTPUT, "frames": Frames.ARROW, **declared}
        self.bases = dict.fromkeys(range(len(self._operator().stores)), (EMPTY,))

    def run(self, rows: pa.Table = GIVEN) -> list[dict[str, Any]]:
        plan = TaskPlan(
            root=StorageSpec(str(self.folder / "root")),
            root_id="root",
            local_folder=str(self.folder / "local"),
            operator=self._operator(),
            row_columns=ROWS,
            partitioning=Partitioning(1, 1, 1),
            assignments=Assignments.of(self.bases, {}),
            rewrites={},
            structure=Structure.V2,
            batch_log=None,
            limits=self.limits,
            times=BatchTimes(batch=0, time_ms=0),
            sweep=SweepLimits(),
            output=TaskOutputs(rows=self._operator().outputs, reporter=self.reports),
        )
        batch = rows.append_column(GROUP_COLUMN, pa.array(np.zeros(rows.num_rows, np.int32)))
        found = pa.Table.from_batches(list(SparkTask(plan, 0, Worker.of(plan)).run(iter(batch.to_batches()))))
        self.bases = {store.operator: (store.new,) for store in self.reports.all[-1].stores}
        return [row for row in found.to_pylist() if not row[MARKER_COLUMN]]

    def nothing_was_committed(self) -> bool:
        return not self.reports.all and not list(self.folder.glob("root/state/**/*.changelog"))

    def no_file_is_left_over(self) -> bool:
        return not list(self.folder.glob("local/**/*.tmp")) and not list(self.folder.glob("local/**/private-*"))

    def _operator(self) -> StatefulOperator:
        return StatefulOperator(["key", "name"], ["value"], update=self._update, **self.declared)

    def _update(self, rows: Any, state: Any) -> Any:
        del rows
        self.state = state
        return self.returned
