"""A query whose state is wrong after a bad release, and its twin whose state is right."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

WRONG, LOST = "key 3", "key 4"
"""The key whose sum is wrong, and the key that is lost."""
BEFORE = 3
"""The batches of the bad release."""
_OLD = 100 * BEFORE
"""Rows of these batches have smaller numbers."""


def right(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.groupBy("k").agg(F.count("x").alias("n"), F.sum("x").alias("total"))


def wrong(left: DataFrame, right_side: DataFrame) -> DataFrame:
    old = F.col("x") < _OLD
    seen = left.where(~(old & (F.col("k") == LOST)))
    return right(
        seen.withColumn("x", F.when(old & (F.col("k") == WRONG), F.col("x") + 1000).otherwise(F.col("x"))), right_side
    )
