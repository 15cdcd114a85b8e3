"""Spark keeps its checkpoint on HDFS, Statekeeper works on the same folder by WebHDFS, and Spark goes on after each verb
as a twin does that nobody touched. `make interop-hdfs`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statestore.cli import main
from statestore.clock import RandomIds
from statestore.format.structure import Structure
from statestore.storage import TEMP_FOLDER, open_storage
from tests.interop.hdfs import HdfsQuery
from tests.interop.native import FORMAT, OPERATORS, state
from tests.interop.soak import Maintenance, expected
from tests.interop.test_rescues import held
from tests.interop.test_s3a import AT_HEAD, VERBS
from tests.interop.test_switchover_of_sparks import switched
from tests.interop.twins import changelogs, statekeeper, take_wrong_snapshots
from tests.storage.hdfs import MiniHdfs

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def hdfs() -> Iterator[MiniHdfs]:
    server = MiniHdfs()
    server.start()
    yield server
    server.stop()


def clean(query: HdfsQuery) -> None:
    found = json.loads(statekeeper("audit", query.root, "--deep", "--output", "json"))
    assert (found["findings"], len(found["stores"]) > 0) == ([], True)


def test_what_spark_keeps_on_hdfs_is_audited_snapshotted_and_cleaned_and_spark_goes_on(
    spark: SparkSession, hdfs: MiniHdfs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("hdfs")
    query = HdfsQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "2"}, hdfs)
    query.run(2)
    # What Spark leaves when it dies before it gives a file its name, and what Statekeeper leaves.
    open_storage(query.root).create(f"commits/.2.{RandomIds().fresh()}.tmp", b"half")
    open_storage(query.root).create(f"{TEMP_FOLDER}/{RandomIds().fresh()}", b"half")
    clean(query)
    statekeeper("snapshot", query.root, "--at-head", "--mode", "snapshots", "--scratch", str(folder))
    statekeeper("gc", query.root, "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    assert len(changelogs(open_storage(query.root))) == 2, "nothing but the snapshots leads to the head"
    assert not [path for path in query.files() if path.startswith(TEMP_FOLDER)]
    query.run(1)
    clean(query)
    outputs, end = expected(3)
    assert query.outputs == outputs
    assert held(query) == end


@pytest.mark.parametrize(
    ("name", "confs"),
    [("aggregation", {FORMAT: "1"}), ("transformWithState", {FORMAT: "2"}), ("join 2", {FORMAT: "2"})],
)
def test_spark_on_hdfs_goes_on_after_each_verb_as_a_twin_that_nobody_touched_does(
    spark: SparkSession,
    hdfs: MiniHdfs,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    confs: dict[str, str],
) -> None:
    folder = tmp_path_factory.mktemp("hdfs")
    query = HdfsQuery(spark, folder / "query", OPERATORS[name], confs, hdfs)
    query.run(3)
    query.saved("middle")
    for _ in VERBS:
        query.run(1)  # each start may run a batch without data, too
    outputs, end = query.outputs, state(query)

    query.restored("middle")
    for verb, *options in VERBS:
        statekeeper(verb, query.root, *options)
        query.run(1)
        clean(query)
    assert query.outputs == outputs
    assert state(query) == end

    # The same with a key less in each store: what is compared above can tell.
    query.restored("middle")
    middle = state(query)
    take_wrong_snapshots(query, folder)
    assert state(query) != middle


@pytest.mark.parametrize("structure", ["1", "2"])
def test_a_query_that_runs_on_hdfs_is_maintained_meanwhile(
    spark: SparkSession, hdfs: MiniHdfs, tmp_path_factory: pytest.TempPathFactory, structure: str
) -> None:
    folder = tmp_path_factory.mktemp("hdfs")
    query = HdfsQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: structure}, hdfs)
    with Maintenance(query.root, str(folder)) as maintenance:
        query.run(15)
        query.run(15)
    assert maintenance.failures == []
    assert sum(maintenance.is_ours.values()) >= 4
    outputs, end = expected(30)
    assert query.outputs == outputs
    assert held(query) == end


def test_a_query_that_was_taken_back_on_hdfs_goes_on_after_a_repair(
    spark: SparkSession, hdfs: MiniHdfs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("hdfs")
    query = HdfsQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "1"}, hdfs)
    query.run(4)
    statekeeper("snapshot", query.root, *AT_HEAD, "--scratch", str(folder))
    query.forget(*(f"{log}/{batch}" for log in ("commits", "offsets", "sources/0") for batch in (2, 3)))
    assert "was taken back" in CliRunner().invoke(main, ["audit", query.root]).output
    before = query.files()
    repaired = statekeeper("repair", query.root, "--apply", "--i-stopped-it")
    assert {"state/0/0/4.zip", "state/0/1/4.zip"} <= before - query.files(), "Spark would load them later"
    run = repaired.partition("--undo ")[2].split()[0]
    statekeeper("repair", query.root, "--undo", run, "--i-stopped-it")
    assert {path for path in before if path.startswith("state/")} <= query.files()
    statekeeper("repair", query.root, "--apply", "--i-stopped-it")
    query.run(1)
    outputs, end = expected(5)
    assert query.outputs == outputs
    assert held(query) == end
    clean(query)


def test_a_query_on_hdfs_is_moved_to_the_other_structure_and_back(
    spark: SparkSession, hdfs: MiniHdfs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("hdfs")
    query = HdfsQuery(spark, folder / "query", OPERATORS["aggregation"], Structure.V1.conf, hdfs)
    query.run(2)
    for structure in (Structure.V2, Structure.V1):
        switched(query, structure, folder)
        clean(query)
        query.run(2)
        clean(query)
    outputs, end = expected(6)
    assert query.outputs == outputs
    assert held(query) == end
