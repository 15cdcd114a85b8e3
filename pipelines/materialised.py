"""The output of one attempt as a DataFrame, for a sink that takes rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from pipelines.initial import InitialState
from pipelines.operator_job import operator_job
from pipelines.spark_errors import FOREIGN_BLOCK
from pipelines.task import MARKER_COLUMN, TAG_COLUMN, TaskPlan


class Materialised:
    """The operator's output of one attempt: computed once, with its Spark lineage cut; freed on exit.

    Because the lineage is cut, reading a lost block raises an error; Spark never runs the operator a second time.
    """

    def __init__(self, plan: TaskPlan, rows: DataFrame, initial: InitialState | None) -> None:
        self._frame = operator_job(plan, rows, initial).localCheckpoint(eager=True)

    def rows_of(self, tags: Sequence[int]) -> DataFrame:
        """Return the output without markers. `tags`: of each task. Reading a row of another attempt fails."""
        # The tags are in an array, because Spark compiles single numbers into code, again for each batch (0.15 s).
        chosen = f"element_at(array({', '.join(f'{tag}L' for tag in tags)}), spark_partition_id() + 1) = {TAG_COLUMN}"
        foreign = f"CAST(raise_error('{FOREIGN_BLOCK}') AS BOOLEAN)"
        return self._frame.where(f"CASE WHEN {chosen} THEN NOT {MARKER_COLUMN} ELSE {foreign} END").drop(
            TAG_COLUMN, MARKER_COLUMN
        )

    def __enter__(self) -> Materialised:
        return self

    def __exit__(self, *_: object) -> None:
        plan: Any = self._frame._jdf.queryExecution().logical()  # noqa: SLF001 - Spark frees it only when Java's GC runs
        plan.rdd().unpersist(False)
