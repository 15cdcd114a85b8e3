"""A query that fails on one key of its state, and its twin whose state never had the key."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

POISON = "key 3"
BEFORE = 4
"""The batches before the one that fails."""
OLD = 100 * BEFORE
"""Rows of these batches have smaller numbers."""


def _sums(key: tuple[str], frames: Iterator[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
    """Sum the rows of a key. The state of the poison key that an old batch wrote is one that a new batch cannot process."""
    total, since = group.get if group.exists else (0, None)
    for frame in frames:
        numbers = frame["x"].tolist()
        since = min(numbers) if since is None else since
        if key[0] == POISON and since < OLD <= max(numbers):
            raise ValueError("the state of this key cannot be processed")
        total += sum(numbers)
    group.update((total, since))
    yield pd.DataFrame({"k": [key[0]], "total": [total]})


def by_key(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.groupBy("k").applyInPandasWithState(
        _sums, "k string, total bigint", "total bigint, since bigint", "update", GroupStateTimeout.NoTimeout
    )


def without_poison(left: DataFrame, right: DataFrame) -> DataFrame:
    return by_key(left.where((F.col("k") != POISON) | (F.col("x") >= OLD)), right)
