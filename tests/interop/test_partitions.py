"""Operators that have other partitions than their metadata says: of aggregations over all rows, of limits, and of
checkpoints that Spark has repartitioned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import main
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import open_storage
from tests.support.dumped import dumped, expected, shown
from tests.support.native import FORMAT, OPERATORS, NativeQuery, state, views_as_json
from tests.support.twins import clean, statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SHUFFLED = 2


@pytest.mark.parametrize(
    ("name", "structure", "partitions"),
    [
        ("aggregation", "1", 3),
        ("aggregation", "2", 1),
        ("transformWithState", "1", 1),
        ("transformWithState", "2", 3),
        ("join 2", "1", 1),
        ("join 2", "2", 3),
        ("two operators", "1", 3),
        ("two operators", "2", 1),
    ],
)
def test_a_checkpoint_repartitioned_by_spark_is_maintained(
    spark: SparkSession, tmp_path: Path, name: str, structure: str, partitions: int
) -> None:
    query = NativeQuery(spark, tmp_path / "query", OPERATORS[name], {FORMAT: structure})
    query.run(3)
    before = state(query)
    query.repartition(partitions)
    query.saved("repartitioned")
    for _ in range(2):
        query.run(1)  # each start may run a batch without data, too
    outputs, end = query.outputs, state(query)

    query.restored("repartitioned")
    storage = open_storage(str(query.checkpoint))
    heads = catalog.heads(storage)
    assert heads is not None
    assert {store.partition for store in heads.heads} == set(range(partitions))
    clean(storage, tmp_path)
    rows = dumped(query.checkpoint)
    for view, found in views_as_json(query).items():
        assert shown(rows, json.loads(view)) == expected(found, json.loads(view)), view
    # The batches before it have other stores.
    earlier = catalog.heads_at(storage, heads.batch - 1)
    assert {store.partition for store in earlier.heads} == set(range(SHUFFLED))
    assert dumped(query.checkpoint, "--version", heads.batch)
    refused = CliRunner().invoke(main, ["diff", str(query.checkpoint)])
    assert "repartitioned between them" in refused.output

    root, free = str(query.checkpoint), ["--grace", "0s", "--mode", "full", "--apply"]
    statekeeper("gc", root, "--retain", "100", *free)
    assert audit.judge(audit.gather(storage)).findings == ()
    query.run(1)
    statekeeper("snapshot", root, "--at-head", "--confirm-stopped", "--scratch", str(tmp_path), "--mode", "snapshots")
    clean(storage, tmp_path)
    statekeeper("gc", root, "--retain", "1", *free)
    clean(storage, tmp_path)
    query.run(1)
    assert query.outputs == outputs
    assert state(query) == end
    assert before != end


def test_an_added_partition_is_not_missing_in_earlier_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Of the floor as of the audit: a version before a store's first one needs nothing of it."""
    query = NativeQuery(spark, tmp_path / "query", OPERATORS["aggregation"], {FORMAT: "2"})
    query.run(3)
    query.repartition(3)
    query.run(1)
    storage = open_storage(str(query.checkpoint))
    log = catalog.commit_log(storage)
    assert log is not None
    of_stores = [log.of_store(StorePath(0, partition)) for partition in range(3)]
    assert [next(n for n in sorted(one) if log.is_first(one, n)) for one in of_stores] == [1, 1, 4]
    newest = next((query.checkpoint / "state/0/2").glob("5_*.changelog"))
    newest.unlink()
    assert audit.judge(audit.gather(storage)).restart.batch == 3
    next((query.checkpoint / "state/0/2").glob("4_*.zip")).unlink()
    assert audit.judge(audit.gather(storage)).restart.batch == 2
