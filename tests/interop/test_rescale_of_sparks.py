"""Spark continues from a rescaled checkpoint like a twin that has had the new number of partitions from its first batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statestore.format.structure import Structure
from statestore.storage import open_storage
from tests.support.native import HERE, OPERATORS, NativeQuery, state
from tests.support.twins import SHUFFLE_PARTITIONS, clean, forgetful, rescale, without

pytestmark = pytest.mark.spark

MATRIX = [(name, structure) for structure in Structure for name in HERE]
IN_CI = [("aggregation", Structure.V1), ("join 4", Structure.V2)]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]

BEFORE, AFTER = 2, 5


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
