"""Spark continues from a rescaled checkpoint like a twin that has had the new number of partitions from its first batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.native import HERE, OPERATORS, NativeQuery, state
from tests.support.twins import SHUFFLE_PARTITIONS, clean, forgetful, rescale, without

pytestmark = pytest.mark.spark

MATRIX = [(name, structure) for structure in Structure for name in HERE]
IN_CI = [("aggregation", Structure.V1), ("join 4", Structure.V2)]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]

BEFORE, AFTER = 2, 5
WRONG_IN_SPARK = ("join 4", "aggregation of all rows", "limit")
"""The operators that the tool of Spark 4.2 breaks or rejects."""


def _shown(value: object) -> str:
    return value.value if isinstance(value, Structure) else str(value).replace(" ", "-")


def query_with(spark: SparkSession, folder: Path, name: str, structure: Structure, partitions: int) -> NativeQuery:
    """Return a query that starts with this number of partitions."""
    return NativeQuery(spark, folder, OPERATORS[name], {**structure.conf, SHUFFLE_PARTITIONS: str(partitions)})


@pytest.mark.parametrize("after", [AFTER, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "structure"), CASES, ids=_shown)
def test_spark_continues_from_a_rescaled_checkpoint_like_a_twin_with_that_number(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: Structure, after: int
) -> None:
    folder = tmp_path_factory.mktemp("rescaled")
    twin = query_with(spark, folder / "twin", name, structure, after)
    twin.run(3)
    middle = state(twin)
    twin.run(2)
    query = query_with(spark, folder / "query", name, structure, BEFORE)
    query.run(3)
    appended = rescale(query, after, folder)
    assert state(query) == middle
    clean(open_storage(query.root), folder)
    query.run(2)
    assert without(query.outputs, appended) == twin.outputs
    assert state(query) == state(twin)
    clean(open_storage(query.root), folder)


@pytest.mark.parametrize(
    ("name", "structure"), [case for case in CASES if not any(name in str(case) for name in WRONG_IN_SPARK)], ids=_shown
)
def test_each_row_is_in_the_partition_to_which_sparks_own_tool_moves_it(
    spark: SparkSession, tmp_path: Path, name: str, structure: Structure
) -> None:
    query = query_with(spark, tmp_path / "query", name, structure, BEFORE)
    query.run(3)
    query.saved("before")
    query.repartition(AFTER)
    by_spark = state(query)
    query.restored("before")
    rescale(query, AFTER, tmp_path)
    found = state(query)
    assert "partition_id=" in str(found)
    assert found == by_spark


@pytest.mark.slow
def test_sparks_own_tool_loses_the_total_over_all_rows_and_a_rescale_keeps_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = query_with(spark, tmp_path / "query", "aggregation of all rows", Structure.V2, BEFORE)
    query.run(3)
    query.saved("before")
    query.run(1)
    twin = query.outputs[3]
    query.restored("before")
    query.repartition(AFTER)
    query.run(1)
    assert query.outputs[max(query.outputs)] != twin
    query.restored("before")
    rescale(query, AFTER, tmp_path)
    query.run(1)
    assert query.outputs[max(query.outputs)] == twin


def test_the_comparison_detects_a_rescale_that_loses_a_key(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    query = query_with(spark, folder / "query", "aggregation", Structure.V2, BEFORE)
    query.run(3)
    before = state(query)
    with forgetful(), pytest.raises(AssertionError, match="digest"):
        rescale(query, AFTER, folder)
    assert state(query) == before
