"""Spark runs each operator with keys of several columns and types, and the rule places each row where Spark put it.

`tests/format/test_sparks_partitions.py` does the same with checkpoints that Spark wrote before.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import UnknownPartitioning
from statekeeper.statestore.contents.rows import Contents, contents_at, layout, opened
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.partition_keys import PartitionColumns, key_hashes, require_partition
from statekeeper.statestore.storage import open_storage
from tests.support.keyed_operators import KEYED
from tests.support.native import FORMAT, NativeQuery, Operator
from tests.support.placed_rows import placed_rows, rules_of

pytestmark = pytest.mark.spark

PARTITIONS = 5
SHUFFLED = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
STRICT_DISTRIBUTION = "spark.sql.streaming.statefulOperator.useStrictDistribution"
IN_CI = ("sessions", "join 4", "transformWithStateInPandas")
CASES = [name if name in IN_CI else pytest.param(name, marks=pytest.mark.slow) for name in KEYED]

ALL, ALL_BUT_LAST = PartitionColumns.ALL, PartitionColumns.ALL_BUT_LAST
FIRST, SECOND, NESTED = PartitionColumns.FIRST, PartitionColumns.SECOND, PartitionColumns.FIRST_OF_SECOND
Expected = dict[str, PartitionColumns]


def of_both_sides(columns: Expected) -> Expected:
    return {f"{side}-{name}": found for side in ("left", "right") for name, found in columns.items()}


def of_variables(value: str, several: str, by_user_key: str) -> Expected:
    return {value: ALL, several: ALL, by_user_key: FIRST}


def of_timers(kind: str) -> Expected:
    return {f"${kind}Timers_keyToTimestamp": FIRST, f"${kind}Timers_timestampToKey": SECOND}


COLUMNS: dict[str, Expected] = {
    "sessions": {"": ALL_BUT_LAST},
    "join 2": of_both_sides({"keyToNumValues": ALL, "keyWithIndexToValue": ALL_BUT_LAST}),
    "join 3": of_both_sides({"keyToNumValues": ALL, "keyWithIndexToValue": ALL_BUT_LAST}),
    "join 4": of_both_sides({"keyWithTsToValues": ALL_BUT_LAST, "tsWithKey": ALL_BUT_LAST}),
    "transformWithStateInPandas": {
        **of_variables("brief_value", "brief_list", "brief_map"),
        **of_variables("lasting_value", "lasting_list", "lasting_map"),
        "$min_brief_list": ALL,
        "$count_brief_list": ALL,
        "$rowCounter_lasting_list": ALL,
        "$ttl_brief_value": SECOND,
        "$ttl_brief_list": SECOND,
        "$ttl_brief_map": NESTED,
        **of_timers("proc"),
    },
    "transformWithState": {
        **of_variables("value", "list", "map"),
        "$rowCounter_list": ALL,
        **of_timers("event"),
    },
}
"""The stores and families with rows, and the columns by which they are partitioned. Other operators have one store."""
FEWEST_ROWS = 10
"""Of each store and family."""


def checkpoint_of(spark: SparkSession, operator: Operator, folder: Path, batches: int = 2) -> Path:
    query = NativeQuery(spark, folder / "query", operator, {FORMAT: "2", **SHUFFLED})
    query.run(batches)
    return query.checkpoint


@pytest.mark.parametrize("name", CASES)
def test_spark_has_each_row_in_the_partition_of_its_key(spark: SparkSession, tmp_path: Path, name: str) -> None:
    checkpoint = checkpoint_of(spark, KEYED[name], tmp_path, 1 if name in IN_CI else 2)
    found = placed_rows(checkpoint, tmp_path)
    found.print()
    assert +found.elsewhere == {}
    assert {place.family: place.columns for place in found.rows} == COLUMNS.get(name, {"": ALL})
    assert min(found.rows.values()) >= FEWEST_ROWS
    assert len(found.used) > 1


def contents_of(checkpoint: Path) -> tuple[Contents, StorePath]:
    contents = contents_at(open_storage(str(checkpoint)))
    assert contents is not None
    return contents, min(contents.stores)


def test_rows_that_spark_partitions_by_some_of_the_key_columns_are_rejected(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As a query does that was first started before Spark 3.3. Its rows are seen in other partitions, too."""

    def by_some(left: DataFrame, _: DataFrame) -> DataFrame:
        return left.repartition(PARTITIONS, "k").groupBy("k", F.col("x") % 5).count()

    checkpoint = checkpoint_of(spark, Operator(by_some, "update", {STRICT_DISTRIBUTION: "false"}), tmp_path)
    contents, store = contents_of(checkpoint)
    with pytest.raises(UnknownPartitioning, match=r"first started before Spark 3\.3"):
        rules_of(contents, store)
    strict = replace(contents, conf=replace(contents.conf, is_strictly_distributed=True))
    rules = rules_of(strict, store)
    of_store = layout(contents, store)
    with opened(contents, store, of_store, scratch=tmp_path, clock=SystemClock(), ids=RandomIds()) as rows:
        [pairs] = rows.pairs()
    with pytest.raises(
        UnknownPartitioning,
        match=f"is in partition 0, but by the known rule, its key belongs to partition . of {PARTITIONS}",
    ):
        require_partition(key_hashes(pairs.keys, rules[None]), rules[None], PARTITIONS)


def test_keys_with_a_map_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    """Spark partitions by them after sorting, although its `hash` function rejects them."""

    def by_map(left: DataFrame, _: DataFrame) -> DataFrame:
        return left.groupBy(F.create_map("k", F.col("x") % 5).alias("m")).count()

    contents, store = contents_of(checkpoint_of(spark, Operator(by_map, "update"), tmp_path))
    with pytest.raises(UnknownPartitioning, match=r"column _groupingmapsort .*map.* which Spark's hash"):
        rules_of(contents, store)
