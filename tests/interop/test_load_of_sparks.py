"""Spark continues from a loaded savepoint like the query that the savepoint is of.

The query of the savepoint runs through. Another query with the same operators and another number of partitions runs one
batch; its state is then replaced. Both get the same batches afterwards.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.loads import savepoint
from tests.support.native import HERE, OPERATORS, NativeQuery, state
from tests.support.twins import SHUFFLE_PARTITIONS, clean, forgetful, statekeeper

pytestmark = pytest.mark.spark

PARTITION = re.compile(r", partition_id=\d+")
MATRIX = [(name, structure, ahead) for structure in Structure for name in HERE for ahead in (False, True)]
IN_CI = [("windows", Structure.V2, True)]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]


def _shown(value: object) -> str:
    return value.value if isinstance(value, Structure) else str(value).replace(" ", "-")


def query_with(spark: SparkSession, folder: Path, name: str, structure: Structure, partitions: int) -> NativeQuery:
    return NativeQuery(spark, folder, OPERATORS[name], {**structure.conf, SHUFFLE_PARTITIONS: str(partitions)})


def after(query: NativeQuery, batch: int) -> list[Counter[str]]:
    """Return the outputs after a batch, in order, without the empty ones."""
    return [query.outputs[one] for one in sorted(query.outputs) if one > batch and query.outputs[one]]


def rows(query: NativeQuery) -> dict[str, Counter[str]]:
    """Return the rows that Spark's reader shows, whatever their partitions."""
    return {
        view: Counter({PARTITION.sub("", row): count for row, count in found.items()})
        for view, found in state(query).items()
    }


def started(query: NativeQuery, *, ahead: bool) -> None:
    """Run the first batch of a query. `ahead`: its rows are later than all others, and so is its watermark."""
    query.batches = 9 if ahead else 0
    query.run(1)


def load(query: NativeQuery, of: str, scratch: Path) -> None:
    given = ("--replace-state", "--apply", "--confirm-stopped", "--scratch", str(scratch), "--for-spark", "4.2")
    statekeeper("load", of, query.root, *given)


@pytest.mark.parametrize(("name", "structure", "ahead"), CASES, ids=_shown)
def test_spark_continues_from_a_loaded_savepoint_like_a_twin_that_ran_through(
    spark: SparkSession, tmp_path: Path, name: str, structure: Structure, ahead: bool
) -> None:
    twin = query_with(spark, tmp_path / "twin", name, structure, 2)
    twin.run(3)
    middle, last = rows(twin), max(twin.outputs)
    of = savepoint(open_storage(twin.root), tmp_path / "savepoint")
    twin.run(2)
    query = query_with(spark, tmp_path / "query", name, structure, 5)
    started(query, ahead=ahead)
    load(query, of.url, tmp_path / "scratch")
    loaded = max(query.outputs)
    assert rows(query) == middle
    clean(open_storage(query.root), tmp_path)
    query.batches = 3
    query.run(2)
    assert after(query, loaded) == after(twin, last)
    assert rows(query) == rows(twin)
    clean(open_storage(query.root), tmp_path)


def test_the_comparison_detects_a_load_that_loses_a_key(spark: SparkSession, tmp_path: Path) -> None:
    twin = query_with(spark, tmp_path / "twin", "aggregation", Structure.V2, 2)
    twin.run(1)
    of = savepoint(open_storage(twin.root), tmp_path / "savepoint")
    before = state(twin)
    with forgetful(), pytest.raises(AssertionError, match="digest"):
        load(twin, of.url, tmp_path / "scratch")
    assert state(twin) == before
