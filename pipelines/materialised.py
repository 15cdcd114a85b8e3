"""Spark jobs of one attempt: route rows to their partitions, run the operator once, keep and check its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from pipelines.spark_errors import FOREIGN_BLOCK
from pipelines.task import GROUP_COLUMN, MARKER_COLUMN, TAG_COLUMN, TaskPlan
from statestore.binding import Binding


class Materialised:
    """The operator's output of one attempt: computed once, with its Spark lineage cut; freed on exit.

    Because the lineage is cut, reading a lost block raises an error; Spark never runs the operator a second time.
    """

    def __init__(self, plan: TaskPlan, binding: Binding, rows: DataFrame) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        session = rows.sparkSession
        # Adaptive execution can turn an empty shuffle into no tasks, and each partition must commit its version.
        session.conf.set("spark.sql.adaptive.enabled", "false")
        # Columns are addressed by position, because PySpark resolves names here without quotes; tasks use positions too.
        # SQL text, because each call of `pyspark.sql.functions` costs several round trips to the JVM.
        place = {name: f"_{number}" for number, name in enumerate((*rows.columns, GROUP_COLUMN))}
        keys = [place[name] for name in plan.operator.keys]
        order = [place[name] for name in plan.operator.order_by]
        group = f"pmod(hash({', '.join(keys)}), {binding.key_groups})"
        partition = f"CAST(floor({place[GROUP_COLUMN]} * {binding.partitions} / {binding.key_groups}) AS INT)"
        routed = (
            rows.toDF(*(place[name] for name in rows.columns))
            .selectExpr("*", f"{group} AS {place[GROUP_COLUMN]}")
            .repartitionById(binding.partitions, F.expr(partition))
            .sortWithinPartitions(place[GROUP_COLUMN], *keys, *order)
        )
        output = routed.mapInArrow(plan, from_arrow_schema(plan.output_schema()))
        self._frame = output.localCheckpoint(eager=True)
        self._nullable = plan.operator.output

    def rows_of(self, tags: Sequence[int]) -> DataFrame:
        """Return the output without markers. Reading a row of an attempt that is not in `tags` fails."""
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
