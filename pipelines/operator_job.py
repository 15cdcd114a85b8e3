"""The Spark job of one attempt: route rows to the tasks of their partitions, run the operator."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from pipelines.partitioning import GROUP_COLUMN
from pipelines.reports import Reported
from pipelines.task import TaskPlan


def operator_job(plan: TaskPlan, rows: DataFrame) -> DataFrame:
    """Return the results of the tasks, see `TaskPlan.result_schema`. Each evaluation runs the operator again."""
    from pyspark.sql.pandas.types import from_arrow_schema

    session = rows.sparkSession
    # Adaptive execution can turn an empty shuffle into no tasks, and each partition must commit its version.
    session.conf.set("spark.sql.adaptive.enabled", "false")
    # Columns are addressed by position, because PySpark resolves names here without quotes; tasks use positions too.
    # SQL text, because each call of `pyspark.sql.functions` costs several round trips to the JVM.
    place = {name: f"_{number}" for number, name in enumerate((*rows.columns, GROUP_COLUMN))}
    keys = [place[name] for name in plan.operator.keys]
    order = [place[name] for name in plan.operator.order_by]
    group = f"pmod(hash({', '.join(keys)}), {plan.partitioning.key_groups})"
    task = plan.partitioning.task_sql(place[GROUP_COLUMN])
    routed = (
        rows.toDF(*(place[name] for name in rows.columns))
        .selectExpr("*", f"{group} AS {place[GROUP_COLUMN]}")
        .repartitionById(plan.partitioning.tasks, F.expr(task))
        .sortWithinPartitions(place[GROUP_COLUMN], *keys, *order)
    )
    return routed.mapInArrow(plan, from_arrow_schema(plan.result_schema()))


def run_to_files(plan: TaskPlan, rows: DataFrame) -> Sequence[Reported]:
    """Run the operator, whose tasks write data files, and return one report per task.

    Spark keeps the first result of each task: the reports of failed attempts and of speculative twins never arrive.
    """
    results = operator_job(plan, rows).collect()
    return [pickle.loads(row[0]) for row in results]  # noqa: S301 - of this query's own tasks
