"""Spark's file sink and its readers continue after a rescale or a load with --file-sink, and fail after one without it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.file_sink import EMPTY, INTERVAL_CONF, LOG
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.file_queries import file_query
from tests.support.twins import clean, rescale, statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = 12


@pytest.fixture(scope="module")
def expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """The output without a rescale."""
    twin = file_query(spark, tmp_path_factory.mktemp("twin"), Structure.V2)
    twin.run(BATCHES)
    assert (twin.output / LOG / "0").read_bytes() == EMPTY  # as Spark writes it for a batch without files
    return twin.rows()


@pytest.mark.parametrize(
    ("before", "interval", "entry"), [(5, 10, "5.compact"), (5, 6, "5.compact"), (5, 4, "5"), (9, 10, "9.compact")]
)
@pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
def test_the_sink_and_its_readers_continue_after_a_rescale(
    spark: SparkSession,
    tmp_path: Path,
    expected: Counter[str],
    before: int,
    interval: int,
    entry: str,
    structure: Structure,
) -> None:
    query = file_query(spark, tmp_path, structure, {INTERVAL_CONF: str(interval)})
    query.run(before)
    shown = query.rows()
    assert rescale(query, 3, tmp_path, "--file-sink", str(query.output)) == before
    assert (query.output / LOG / entry).exists()
    assert query.rows() == shown
    query.run(BATCHES - before)
    assert query.rows() == expected
    # The next compaction reads the entry.
    of_first = before + 1 if entry.endswith(".compact") else interval
    assert (query.output / LOG / f"{2 * of_first - 1}.compact").exists() == (2 * of_first <= BATCHES)
    clean(open_storage(query.root), tmp_path)


@pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
def test_the_sink_and_its_readers_continue_after_a_load(
    spark: SparkSession, tmp_path: Path, expected: Counter[str], structure: Structure
) -> None:
    query, scratch = file_query(spark, tmp_path, structure), ("--scratch", str(tmp_path / "scratch"))
    query.run(5)
    shown = query.rows()
    statekeeper("savepoint", query.root, str(tmp_path / "rows"), "--rows", "--confirm-stopped", *scratch)
    load = "load", str(tmp_path / "rows"), query.root, "--replace-state", "--file-sink", str(query.output)
    statekeeper(*load, "--for-spark", "4.2", "--apply", "--confirm-stopped", *scratch)
    assert (query.output / LOG / "5.compact").exists()
    assert query.rows() == shown
    query.run(BATCHES - 5)
    assert query.rows() == expected
    clean(open_storage(query.root), tmp_path)


def test_without_the_option_readers_fail_after_the_next_batch(spark: SparkSession, tmp_path: Path) -> None:
    query = file_query(spark, tmp_path, Structure.V2)
    query.run(3)
    rescale(query, 3, tmp_path)
    query.run(1)
    with pytest.raises(Exception, match=f"{LOG}/3 doesn't exist"):
        query.rows()
