"""The Spark job of one attempt: route rows to the tasks of their partitions, run the operator."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.pipelines.batch.initial import InitialState
from statekeeper.pipelines.task.partitioning import GROUP_COLUMN
from statekeeper.pipelines.task.reports import Reported
from statekeeper.pipelines.task.work import TaskPlan


def operator_job(plan: TaskPlan, rows: DataFrame, initial: InitialState | None) -> DataFrame:
    """Return the results of the tasks, see `TaskOutputs.result_schema`. Each evaluation runs the operator again.

    initial   initial rows, which go to the tasks with the rows of batch 0
    """
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
    columns = [place[name] for name in rows.columns]
    placed = rows.toDF(*columns)
    added: list[str] = []
    first: list[Column] = []
    if initial is not None:
        placed, added = initial.added_to(placed), initial.added_columns
        first = [F.col(added[0]).asc_nulls_last()]
    routed = (
        placed.selectExpr(*columns, f"{group} AS {place[GROUP_COLUMN]}", *added)
        .repartitionById(plan.partitioning.tasks, F.expr(task))
        .sortWithinPartitions(place[GROUP_COLUMN], *first, *keys, *order)
    )
    return routed.mapInArrow(plan, from_arrow_schema(plan.output.result_schema()))


def run_to_files(plan: TaskPlan, rows: DataFrame, initial: InitialState | None) -> Sequence[Reported]:
    """Run the operator, whose tasks write data files, and return one report per task.

    Spark keeps the first result of each task: the reports of failed attempts and of speculative twins never arrive.
    """
    results = operator_job(plan, rows, initial).collect()
    return [pickle.loads(row[0]) for row in results]  # noqa: S301 - of this query's own tasks
