"""The outputs of one attempt as DataFrames, for sinks that take rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from statekeeper.pipelines.initial import InitialState
from statekeeper.pipelines.operator_job import operator_job
from statekeeper.pipelines.spark_errors import FOREIGN_BLOCK
from statekeeper.pipelines.task import TaskPlan
from statekeeper.pipelines.task_outputs import MARKER_COLUMN, TAG_COLUMN


class Materialised:
    """The operator's output of one attempt: computed once, with its Spark lineage cut; freed on exit.

    Because the lineage is cut, reading a lost block raises an error; Spark never runs the operator a second time.
    """

    def __init__(self, plan: TaskPlan, rows: DataFrame, initial: InitialState | None) -> None:
        self._is_one = len(plan.output.rows) == 1
        self._frame = operator_job(plan, rows, initial).localCheckpoint(eager=True)

    def rows_of(self, output: str, tags: Sequence[int]) -> DataFrame:
        """Return the rows of an output without markers. `tags`: of each task. Reading a row of another attempt fails."""
        # The tags are in an array, because Spark compiles single numbers into code, again for each batch (0.15 s).
        chosen = f"element_at(array({', '.join(f'{tag}L' for tag in tags)}), spark_partition_id() + 1) = {TAG_COLUMN}"
        foreign = f"CAST(raise_error('{FOREIGN_BLOCK}') AS BOOLEAN)"
        column = f"`{output}`"
        # One condition: Spark could drop rows by a second one before it compares their tags.
        wanted = f"NOT {MARKER_COLUMN}" if self._is_one else f"NOT {MARKER_COLUMN} AND {column} IS NOT NULL"
        rows = self._frame.where(f"CASE WHEN {chosen} THEN {wanted} ELSE {foreign} END")
        return rows.drop(TAG_COLUMN, MARKER_COLUMN) if self._is_one else rows.selectExpr(f"{column}.*")

    def __enter__(self) -> Materialised:
        return self

    def __exit__(self, *_: object) -> None:
        plan: Any = self._frame._jdf.queryExecution().logical()  # noqa: SLF001 - Spark frees it only when Java's GC runs
        plan.rdd().unpersist(False)
