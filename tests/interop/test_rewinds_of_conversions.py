"""Spark continues after a rewind to a batch before a conversion like a twin that was never converted."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.conversions import BOTH, convert, of
from tests.support.native import OPERATORS, NativeQuery, state
from tests.support.twins import clean, statekeeper, without

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def _rewind(query: NativeQuery, batch: int) -> str:
    """Rewind, and return the id of the run."""
    options = ("--to-batch", str(batch), "--apply", "--confirm-stopped", "--scratch", str(query.folder))
    told = statekeeper("rewind", query.root, *options)
    query.outputs = {done: rows for done, rows in query.outputs.items() if done <= batch}
    return told.partition("--undo ")[2].split()[0]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("structure", Structure)
def test_spark_continues_after_a_rewind_before_the_conversion_like_its_twin(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("rewound")
    twin = NativeQuery(spark, folder / "twin", OPERATORS[name], of(Provider.HDFS_BACKED))
    twin.run(3)
    twin.run(2)
    query = NativeQuery(spark, folder / "query", OPERATORS[name], of(Provider.HDFS_BACKED))
    query.run(3)
    newest = catalog.newest_batch(open_storage(query.root))
    assert newest is not None
    convert(query, Provider.ROCKSDB, structure)
    query.run(2)
    converted = state(query)
    statekeeper("rewind", query.root, "--undo", _rewind(query, newest), "--confirm-stopped")
    assert state(query) == converted
    _rewind(query, newest)
    query.confs = {**query.confs, **of(Provider.HDFS_BACKED)}
    statekeeper("audit", query.root, "--deep")
    # The input of the later batches is still there.
    query.run(0)
    assert query.outputs == twin.outputs
    assert state(query) == state(twin)
    appended = convert(query, Provider.ROCKSDB, structure)
    clean(open_storage(query.root), folder)
    twin.run(1)
    query.run(1)
    assert without(query.outputs, appended) == twin.outputs
    assert state(query) == state(twin)
