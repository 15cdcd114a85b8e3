"""Spark restarts from snapshots of its default provider that Statekeeper's encoder wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.hdfs_snapshots import take_snapshots
from tests.support.native import DEFAULT_PROVIDER, ON_DEFAULT_PROVIDER, OPERATORS, STATE_STORE, NativeQuery, state

pytestmark = pytest.mark.spark

CONFS: Mapping[str, Mapping[str, str]] = {
    "lz4": {},
    "lz4 with row checksums": {f"{STATE_STORE}rowChecksum.enabled": "true"},
    **{codec: {f"{STATE_STORE}compression.codec": codec} for codec in ("zstd", "snappy", "lzf")},
}
MATRIX = [
    *(("aggregation", how) for how in CONFS),
    *((name, "lz4") for name in ON_DEFAULT_PROVIDER if name != "aggregation"),
]
IN_CI = [("aggregation", "lz4 with row checksums")]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]


def _query(spark: SparkSession, folder: Path, name: str, how: str) -> NativeQuery:
    query = NativeQuery(spark, folder / "query", OPERATORS[name], {**DEFAULT_PROVIDER, **CONFS[how]})
    query.run(3)
    query.saved("middle")
    return query


@pytest.mark.parametrize(("name", "how"), CASES, ids=lambda value: str(value).replace(" ", "-"))
def test_spark_continues_from_our_snapshot_like_its_twin(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, how: str
) -> None:
    folder = tmp_path_factory.mktemp("snapshots")
    query = _query(spark, folder, name, how)
    middle = state(query)
    query.run(2)
    outputs, end = dict(query.outputs), state(query)
    query.restored("middle")
    take_snapshots(query, folder / "scratch")
    assert state(query) == middle
    query.run(2)
    assert query.outputs == outputs
    assert state(query) == end


def test_the_comparison_detects_a_snapshot_that_lacks_a_key(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def without_first(keys: Sequence[bytes], values: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[bytes]]:
        return keys[1:], values[1:]

    folder = tmp_path_factory.mktemp("wrong")
    query = _query(spark, folder, "aggregation", "lz4")
    middle = state(query)
    take_snapshots(query, folder / "scratch", change=without_first)
    assert state(query) != middle
