"""Spark continues from a clone of a native checkpoint as from the checkpoint itself."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.native import DEFAULT_PROVIDER, HERE, ON_DEFAULT_PROVIDER, OPERATORS, NativeQuery, state
from tests.support.twins import clean, statekeeper, take_wrong_snapshots

pytestmark = pytest.mark.spark

ROCKSDB = {f"RocksDB {structure.value}": structure.conf for structure in Structure}
CONFS = {**ROCKSDB, "default provider": DEFAULT_PROVIDER}
MATRIX = [
    *((name, kind) for kind in ROCKSDB for name in HERE),
    *((name, "default provider") for name in ON_DEFAULT_PROVIDER),
]
IN_CI = [("aggregation", "RocksDB v2"), ("applyInPandasWithState", "default provider")]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]


def _shown(value: object) -> str:
    return str(value).replace(" ", "-")


def cloned(query: NativeQuery, batch: int) -> None:
    """Clone the checkpoint, and let the query continue from the clone."""
    to = query.folder / "clone"
    options = ("--batch", str(batch), "--confirm-stopped", "--scratch", str(query.folder))
    statekeeper("clone", query.root, str(to), *options)
    query.checkpoint = to
    query.outputs = {done: rows for done, rows in query.outputs.items() if done <= batch}


@pytest.mark.parametrize("back", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(("name", "kind"), CASES, ids=_shown)
def test_spark_continues_from_a_clone_like_its_twin(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, kind: str, back: int
) -> None:
    folder = tmp_path_factory.mktemp("cloned")
    query = NativeQuery(spark, folder / "query", OPERATORS[name], CONFS[kind])
    query.run(3)
    original = query.checkpoint
    # With a watermark, Spark adds a batch without input.
    batch = catalog.newest_batch(open_storage(query.root))
    assert batch is not None
    if back:
        query.run(2)
        outputs, end = dict(query.outputs), state(query)
        cloned(query, batch)
        # The input of both later batches is there.
        query.run(0)
    else:
        cloned(query, batch)
        query.run(2)
        outputs, end = dict(query.outputs), state(query)
        query.checkpoint, query.batches = original, 3
        query.run(2)
    assert query.outputs == outputs
    assert state(query) == end
    clean(open_storage(str(folder / "query" / "clone")), folder)
    clean(open_storage(str(original)), folder)


def test_the_comparison_detects_a_clone_that_lacks_a_key(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    query = NativeQuery(spark, folder / "query", OPERATORS["aggregation"], Structure.V2.conf)
    query.run(5)
    end = state(query)
    cloned(query, 2)
    take_wrong_snapshots(query, folder)
    query.run(0)
    assert state(query) != end
