"""Spark keeps its checkpoint in a bucket through `s3a://`, Statekeeper maintains it, and Spark continues after each
verb like an unmaintained twin. Most tests take minutes: `make interop-s3a`.

Most of it takes minutes: `make interop-s3a`.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.format.structure import Structure
from tests.support import remote_queries
from tests.support.native import FORMAT, OPERATORS
from tests.support.quick_spark import BY_FILE_SYSTEM
from tests.support.s3_server import S3Server
from tests.support.spark_on_s3a import BucketQuery, connect, environment

pytestmark = pytest.mark.spark


@pytest.fixture
def bucket(spark: SparkSession, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, known to Spark and to the command."""
    connect(spark, s3_server)
    for name, value in environment(s3_server).items():
        monkeypatch.setenv(name, value)
    return s3_server


def test_a_checkpoint_in_a_bucket_is_audited_compacted_and_cleaned_and_spark_continues(
    spark: SparkSession, bucket: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    query = BucketQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "2"}, server=bucket)
    query.run(2)
    assert [key for key in query.keys if key.endswith("/")], "Hadoop marks folders"
    for unfinished in ("commits/.2.{}.tmp", "state/0/0/.3.changelog.{}.tmp"):
        # Spark leaves such a file if it dies before the rename.
        bucket.put(query.bucket, f"jobs/query/checkpoint/{unfinished.format(RandomIds().fresh())}", b"half")
    remote_queries.goes_on_from_the_snapshots_alone(query, folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "confs"),
    [
        ("aggregation", {FORMAT: "1"}),
        ("aggregation", {FORMAT: "2", **BY_FILE_SYSTEM}),
        ("transformWithState", {FORMAT: "2"}),
        ("join 2", {FORMAT: "1", **BY_FILE_SYSTEM}),
    ],
)
def test_spark_on_s3_continues_after_each_verb_like_an_unmaintained_twin(
    spark: SparkSession,
    bucket: S3Server,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    confs: dict[str, str],
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    query = BucketQuery(spark, folder / "query", OPERATORS[name], confs, server=bucket)
    remote_queries.goes_on_after_each_verb_as_a_twin(query, folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("structure", ["1", "2"])
def test_a_running_query_on_s3_is_maintained(
    spark: SparkSession, bucket: S3Server, tmp_path_factory: pytest.TempPathFactory, structure: str
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    query = BucketQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: structure}, server=bucket)
    remote_queries.is_maintained_meanwhile(query, folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_query_rolled_back_on_s3_continues_after_a_repair(
    spark: SparkSession, bucket: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    query = BucketQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "1"}, server=bucket)
    remote_queries.goes_on_after_a_repair_when_it_was_taken_back(query, folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_query_on_s3_is_switched_and_switched_back(
    spark: SparkSession, bucket: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    query = BucketQuery(spark, folder / "query", OPERATORS["aggregation"], Structure.V1.conf, server=bucket)
    remote_queries.is_moved_to_the_other_structure_and_back(query, folder)
