"""Spark continues from a converted checkpoint like a twin that kept its state store provider."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.conversions import BOTH, convert, of
from tests.support.native import OPERATORS, NativeQuery, state
from tests.support.twins import clean, forgetful, without

pytestmark = pytest.mark.spark

MATRIX = [(name, structure) for structure in Structure for name in BOTH]
IN_CI = [("sessions", Structure.V2)]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]


def _shown(value: object) -> str:
    return value.value if isinstance(value, Structure) else str(value).replace(" ", "-")


@pytest.mark.parametrize(("name", "structure"), CASES, ids=_shown)
def test_spark_continues_from_a_conversion_to_rocksdb_like_its_twin(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("converted")
    twin = NativeQuery(spark, folder / "twin", OPERATORS[name], of(Provider.HDFS_BACKED))
    twin.run(3)
    middle = state(twin)
    twin.run(2)
    query = NativeQuery(spark, folder / "query", OPERATORS[name], of(Provider.HDFS_BACKED))
    query.run(3)
    appended = convert(query, Provider.ROCKSDB, structure)
    assert state(query) == middle
    clean(open_storage(query.root), folder)
    query.run(2)
    assert without(query.outputs, appended) == twin.outputs
    assert state(query) == state(twin)
    clean(open_storage(query.root), folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH, ids=_shown)
def test_spark_continues_from_a_conversion_to_the_default_provider_like_its_twin(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    folder = tmp_path_factory.mktemp("back")
    twin = NativeQuery(spark, folder / "twin", OPERATORS[name], Structure.V1.conf)
    # With a watermark, each run ends with a batch without input.
    twin.run(3)
    twin.run(2)
    query = NativeQuery(spark, folder / "query", OPERATORS[name], Structure.V1.conf)
    query.run(3)
    appended = convert(query, Provider.HDFS_BACKED)
    query.run(2)
    assert without(query.outputs, appended) == twin.outputs
    assert state(query) == state(twin)


def test_the_comparison_detects_a_conversion_that_loses_a_key(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    query = NativeQuery(spark, folder / "query", OPERATORS["aggregation"], of(Provider.HDFS_BACKED))
    query.run(3)
    before = state(query)
    with forgetful(), pytest.raises(AssertionError, match="digest"):
        convert(query, Provider.ROCKSDB)
    assert state(query) == before
