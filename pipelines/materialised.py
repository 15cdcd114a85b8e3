"""The Spark jobs of one attempt: rows routed to their partitions, the operator run once, its output kept and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from pipelines.spark_errors import FOREIGN_BLOCK
from pipelines.task import GROUP_COLUMN, MARKER_COLUMN, TAG_COLUMN, PartitionReport, TaskPlan
from statestore.binding import Binding


class Reports(AccumulatorParam[list[PartitionReport]]):
    def zero(self, value: list[PartitionReport]) -> list[PartitionReport]:
        del value
        return []

    def addInPlace(  # noqa: N802 - Spark's name
        self, value1: list[PartitionReport], value2: list[PartitionReport]
    ) -> list[PartitionReport]:
        return value1 + value2


def _column(name: str) -> Column:
    """The column of just this name; unquoted, Spark takes a dot for a field of a struct."""
    return F.col("`" + name.replace("`", "``") + "`")


class Materialised:
    """The operator's output of one attempt, computed once, its lineage cut; freed on leaving.

    With the lineage cut a lost block is an error when it is read; it never makes Spark run the operator a second time.
    """

    def __init__(self, plan: TaskPlan, binding: Binding, rows: DataFrame) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        session = rows.sparkSession
        # Adaptive execution can turn an empty shuffle into no tasks, and each partition must commit its version.
        session.conf.set("spark.sql.adaptive.enabled", "false")
        keys = [_column(name) for name in plan.operator.keys]
        order = [_column(name) for name in plan.operator.order_by]
        group = F.pmod(F.hash(*keys), F.lit(binding.key_groups))
        partition = F.floor(F.col(GROUP_COLUMN) * F.lit(binding.partitions) / F.lit(binding.key_groups)).cast("int")
        routed = (
            rows.withColumn(GROUP_COLUMN, group)
            .repartitionById(binding.partitions, partition)
            .sortWithinPartitions(GROUP_COLUMN, *keys, *order)
        )
        # PySpark looks columns up unquoted on this way. The tasks know them by their places.
        routed = routed.toDF(*(f"_{place}" for place in range(len(routed.columns))))
        output = routed.mapInArrow(plan, from_arrow_schema(plan.output_schema()))
        self._frame = output.localCheckpoint(eager=True)
        self._nullable = plan.operator.output
        self.reports: Sequence[PartitionReport] = plan.reports.value

    def rows_of(self, tags: Sequence[int]) -> DataFrame:
        """The output without markers; reading a row of another attempt than its partition's one of `tags` fails."""
        # The tags stand in an array, since Spark compiles single numbers into its code, anew for each batch (0.15 s).
        chosen = F.element_at(F.lit(list(tags)), F.spark_partition_id() + 1) == F.col(TAG_COLUMN)
        foreign = F.raise_error(F.lit(FOREIGN_BLOCK)).cast("boolean")
        return self._frame.where(F.when(chosen, ~F.col(MARKER_COLUMN)).otherwise(foreign)).drop(
            TAG_COLUMN, MARKER_COLUMN
        )

    def __enter__(self) -> Materialised:
        return self

    def __exit__(self, *_: object) -> None:
        plan: Any = self._frame._jdf.queryExecution().logical()  # noqa: SLF001 - Spark frees it only when Java's GC runs
        plan.rdd().unpersist(False)
