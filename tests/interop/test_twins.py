"""Checkpoints that Spark wrote by itself: it goes on from our snapshots as if nobody had been there.

The twin of a query is the same query over the same batches, with nothing done to its checkpoint in between. What both put
out, and what Spark's own reader shows of their state, must be equal. `make interop-matrix` runs all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statestore import catalog
from statestore.cli import main
from statestore.engine.rocks import Database
from statestore.maintenance import audit
from statestore.storage import Storage, open_storage
from tests.interop.native import FORMAT, OPERATORS, NativeQuery, state

pytestmark = pytest.mark.spark

MATRIX = [(name, structure) for structure in ("1", "2") for name in OPERATORS]
IN_CI = [("aggregation", "1"), ("transformWithState", "2"), ("join 3", "1"), ("two operators", "2")]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]


def statekeeper(*arguments: str) -> str:
    """What the command says; it must end well."""
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def changelogs(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list("state") if entry.path.endswith(".changelog")]


def clean(storage: Storage, scratch: Path) -> None:
    found = audit.judge(audit.gather(storage, scratch=scratch))
    assert found.findings == ()
    assert found.stores


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_spark_goes_on_from_our_snapshots_as_a_twin_without_them_does(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: str, monkeypatch
) -> None:
    folder = tmp_path_factory.mktemp("twins")
    query = NativeQuery(spark, folder / "query", OPERATORS[name], {FORMAT: structure})
    query.run(3)
    query.saved("middle")
    middle = state(query)
    query.run(2)
    outputs, end = query.outputs, state(query)

    query.restored("middle")
    storage = open_storage(str(query.checkpoint))
    clean(storage, folder)
    files = storage.list("")
    root, at_head = str(query.checkpoint), ["--at-head", "--i-stopped-it", "--scratch", str(folder)]
    refused = CliRunner().invoke(main, ["snapshot", root, *at_head])
    assert refused.exit_code == 13, "nobody has allowed to write into a checkpoint of Spark's"
    assert storage.list("") == files
    statekeeper("snapshot", root, *at_head, "--mode", "snapshots")
    clean(storage, folder)
    # What a restart could replay instead of loading our snapshots goes.
    statekeeper("gc", root, "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    assert len(changelogs(storage)) == len(catalog.heads(storage).heads)
    clean(storage, folder)
    assert state(query) == middle
    query.run(2)
    assert query.outputs == outputs
    assert state(query) == end

    # The same with a key less in each store: what is compared above can tell.
    query.restored("middle")
    capture = Database.capture

    def forgetful(database: Database, path: Path) -> None:
        first = next((keys[0] for keys, _ in database.scan()), None)
        if first is not None:
            database.apply([[(first, None)]], None)
        capture(database, path)

    monkeypatch.setattr(Database, "capture", forgetful)
    statekeeper("snapshot", root, *at_head, "--mode", "snapshots")
    storage.delete(changelogs(storage))
    assert state(query) != middle
