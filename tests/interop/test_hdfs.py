"""Spark keeps its checkpoint on HDFS, Statekeeper maintains it over WebHDFS, and Spark continues after each verb
like an unmaintained twin: `make interop-hdfs`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import TEMP_FOLDER, open_storage
from tests.support import remote_queries
from tests.support.hdfs_server import MiniHdfs
from tests.support.native import FORMAT, OPERATORS
from tests.support.spark_on_hdfs import HdfsQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def hdfs() -> Iterator[MiniHdfs]:
    server = MiniHdfs()
    server.start()
    yield server
    server.stop()


def test_a_checkpoint_on_hdfs_is_audited_compacted_and_cleaned_and_spark_continues(
    spark: SparkSession, hdfs: MiniHdfs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("hdfs")
    query = HdfsQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "2"}, server=hdfs)
    query.run(2)
    # Spark and Statekeeper leave such files if they die before the rename.
    open_storage(query.root).create(f"commits/.2.{RandomIds().fresh()}.tmp", b"half")
    open_storage(query.root).create(f"{TEMP_FOLDER}/{RandomIds().fresh()}", b"half")
    remote_queries.goes_on_from_the_snapshots_alone(query, folder)
    assert not [path for path in query.files() if path.startswith(TEMP_FOLDER)]


@pytest.mark.parametrize(
    ("name", "confs"),
    [("aggregation", {FORMAT: "1"}), ("transformWithState", {FORMAT: "2"}), ("join 2", {FORMAT: "2"})],
)
def test_spark_on_hdfs_continues_after_each_verb_like_an_unmaintained_twin(
    spark: SparkSession,
    hdfs: MiniHdfs,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    confs: dict[str, str],
) -> None:
    folder = tmp_path_factory.mktemp("hdfs")
    query = HdfsQuery(spark, folder / "query", OPERATORS[name], confs, server=hdfs)
    remote_queries.goes_on_after_each_verb_as_a_twin(query, folder)


@pytest.mark.parametrize("structure", ["1", "2"])
def test_a_running_query_on_hdfs_is_maintained(
    spark: SparkSession, hdfs: MiniHdfs, tmp_path_factory: pytest.TempPathFactory, structure: str
) -> None:
    folder = tmp_path_factory.mktemp("hdfs")
    query = HdfsQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: structure}, server=hdfs)
    remote_queries.is_maintained_meanwhile(query, folder)


def test_a_query_rolled_back_on_hdfs_continues_after_a_repair(
    spark: SparkSession, hdfs: MiniHdfs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("hdfs")
    query = HdfsQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "1"}, server=hdfs)
    remote_queries.goes_on_after_a_repair_when_it_was_taken_back(query, folder)


def test_a_query_on_hdfs_is_switched_and_switched_back(
    spark: SparkSession, hdfs: MiniHdfs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("hdfs")
    query = HdfsQuery(spark, folder / "query", OPERATORS["aggregation"], Structure.V1.conf, server=hdfs)
    remote_queries.is_moved_to_the_other_structure_and_back(query, folder)
