"""Checkpoints that Spark wrote by itself: it goes on from our snapshots as if nobody had been there.

Here on the project's own Spark; on all others `make interop-matrix` does the same, and goes from one to the other.
"""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statestore.cli import main
from statestore.storage import open_storage
from tests.interop import twins
from tests.interop.native import FORMAT, HERE, OPERATORS, NativeQuery, state, views_as_json

pytestmark = pytest.mark.spark

MATRIX = [(name, structure) for structure in ("1", "2") for name in HERE]
IN_CI = [("aggregation", "1"), ("transformWithState", "2"), ("join 3", "1"), ("two operators", "2")]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_spark_goes_on_from_our_snapshots_as_a_twin_without_them_does(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: str
) -> None:
    folder = tmp_path_factory.mktemp("twins")
    query = NativeQuery(spark, folder / "query", OPERATORS[name], {FORMAT: structure})
    oracle = twins.Oracle(lambda: state(query), lambda: views_as_json(query))
    twin = twins.untouched(query, oracle)

    query.restored("middle")
    storage = open_storage(str(query.checkpoint))
    twins.clean(storage, folder)
    files = storage.list("")
    refused = CliRunner().invoke(main, ["snapshot", str(query.checkpoint), *twins.AT_HEAD, "--scratch", str(folder)])
    assert refused.exit_code == 13, "nobody has allowed to write into a checkpoint of Spark's"
    assert storage.list("") == files
    twins.take_snapshots(query, folder)
    twins.clean(storage, folder)
    assert oracle.state() == twin.middle
    twins.goes_on(query, oracle, twin)

    query.restored("middle")
    twins.take_wrong_snapshots(query, folder)
    assert oracle.state() != twin.middle
