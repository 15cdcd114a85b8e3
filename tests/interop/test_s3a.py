"""Spark keeps its checkpoint in a bucket through `s3a://`, Statekeeper works on the same bucket, and Spark goes on after
each verb as a twin does that nobody touched.

Most of it takes minutes: `make interop-s3a`.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statestore.cli import main
from statestore.clock import RandomIds
from statestore.format.structure import Structure
from statestore.storage import open_storage
from tests.interop.native import FORMAT, OPERATORS, NativeQuery, state
from tests.interop.s3a import BucketQuery, connect, environment
from tests.interop.soak import Maintenance, expected
from tests.interop.test_rescues import held
from tests.interop.test_switchover_of_sparks import switched
from tests.interop.twins import changelogs, statekeeper, take_wrong_snapshots
from tests.s3_server import S3Server

pytestmark = pytest.mark.spark

CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
RENAMES = {
    CHECKPOINT_FILES: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
}
"""Not what Spark takes for a bucket by itself, which is the one on FileContext."""

AT_HEAD = ("--at-head", "--i-stopped-it", "--mode", "snapshots")
VERBS = [
    ("inspect",),
    ("audit", "--deep"),
    ("dump", "--output", "jsonl"),
    ("diff",),
    ("snapshot", "--changelogs", "1", "--mode", "snapshots"),
    ("gc", "--retain", "2", "--grace", "0s"),
    ("repair",),
    ("snapshot", *AT_HEAD),
    ("gc", "--retain", "1", "--grace", "0s", "--mode", "full", "--apply"),
    ("gc", "--orphans", "--i-stopped-it", "--retain", "1", "--grace", "0s", "--mode", "full", "--apply"),
]
"""What is said to the checkpoint, one after the other, with a batch of Spark's after each."""

ONLY_LOOK = ("inspect", "audit", "dump", "diff", "repair")


@pytest.fixture
def bucket(spark: SparkSession, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, known to Spark and to the command."""
    connect(spark, s3_server)
    for name, value in environment(s3_server).items():
        monkeypatch.setenv(name, value)
    return s3_server


def spelled(query: NativeQuery, scheme: str) -> str:
    """The checkpoint's URL, as one of its users writes it."""
    return f"{scheme}://{str(query.checkpoint).partition('://')[2]}"


def clean(query: NativeQuery) -> None:
    found = json.loads(statekeeper("audit", str(query.checkpoint), "--deep", "--output", "json"))
    assert (found["findings"], len(found["stores"]) > 0) == ([], True)


def test_what_spark_keeps_in_a_bucket_is_audited_snapshotted_and_cleaned_and_spark_goes_on(
    spark: SparkSession, bucket: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    query = BucketQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "2"}, bucket)
    query.run(2)
    assert [key for key in query.keys if key.endswith("/")], "Hadoop marks folders"
    for unfinished in ("commits/.2.{}.tmp", "state/0/0/.3.changelog.{}.tmp"):
        # What Spark leaves when it dies before it gives a file its name.
        bucket.put(query.bucket, f"jobs/query/checkpoint/{unfinished.format(RandomIds().fresh())}", b"half")
    clean(query)
    statekeeper("snapshot", query.checkpoint, "--at-head", "--mode", "snapshots", "--scratch", str(folder))
    statekeeper("gc", spelled(query, "s3"), "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    assert len(changelogs(open_storage(query.checkpoint))) == 2, "nothing but the snapshots leads to the head"
    query.run(1)
    clean(query)
    outputs, end = expected(3)
    assert query.outputs == outputs
    assert held(query) == end


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "confs"),
    [
        ("aggregation", {FORMAT: "1"}),
        ("aggregation", {FORMAT: "2", **RENAMES}),
        ("transformWithState", {FORMAT: "2"}),
        ("join 2", {FORMAT: "1", **RENAMES}),
    ],
)
def test_spark_goes_on_after_each_verb_as_a_twin_that_nobody_touched_does(
    spark: SparkSession,
    bucket: S3Server,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    confs: dict[str, str],
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    query = BucketQuery(spark, folder / "query", OPERATORS[name], confs, bucket)
    query.run(3)
    query.saved("middle")
    for _ in VERBS:
        query.run(1)  # each start may run a batch without data, too
    outputs, end = query.outputs, state(query)

    query.restored("middle")
    for number, (verb, *options) in enumerate(VERBS):
        schemes = ("s3", "s3a") if number % 2 else ("s3a", "s3")
        said = statekeeper(verb, spelled(query, schemes[0]), *options)
        if verb in ONLY_LOOK:
            assert statekeeper(verb, spelled(query, schemes[1]), *options) == said
        query.run(1)
        clean(query)
    assert query.outputs == outputs
    assert state(query) == end

    # The same with a key less in each store: what is compared above can tell.
    query.restored("middle")
    middle = state(query)
    take_wrong_snapshots(query, folder)
    assert state(query) != middle


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("structure", ["1", "2"])
def test_a_query_that_runs_on_a_bucket_is_maintained_meanwhile(
    spark: SparkSession, bucket: S3Server, tmp_path_factory: pytest.TempPathFactory, structure: str
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    query = BucketQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: structure}, bucket)
    with Maintenance(query.checkpoint, str(folder)) as maintenance:
        query.run(15)
        query.run(15)
    assert maintenance.failures == []
    assert sum(maintenance.is_ours.values()) >= 4
    outputs, end = expected(30)
    assert query.outputs == outputs
    assert held(query) == end


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_query_that_was_taken_back_in_a_bucket_goes_on_after_a_repair(
    spark: SparkSession, bucket: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    query = BucketQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "1"}, bucket)
    query.run(4)
    statekeeper("snapshot", query.checkpoint, *AT_HEAD, "--scratch", str(folder))
    query.forget(*(f"{log}/{batch}" for log in ("commits", "offsets", "sources/0") for batch in (2, 3)))
    found = CliRunner().invoke(main, ["audit", spelled(query, "s3")])
    assert "was taken back" in found.output
    before = files(query)
    repaired = statekeeper("repair", query.checkpoint, "--apply", "--i-stopped-it")
    assert {"state/0/0/4.zip", "state/0/1/4.zip"} <= before - files(query), "Spark would load them later"
    run = repaired.partition("--undo ")[2].split()[0]
    statekeeper("repair", spelled(query, "s3"), "--undo", run, "--i-stopped-it")
    assert files(query) >= before
    statekeeper("repair", spelled(query, "s3"), "--apply", "--i-stopped-it")
    query.run(1)
    outputs, end = expected(5)
    assert query.outputs == outputs
    assert held(query) == end
    clean(query)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_query_in_a_bucket_is_moved_to_the_other_structure_and_back(
    spark: SparkSession, bucket: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    query = BucketQuery(spark, folder / "query", OPERATORS["aggregation"], Structure.V1.conf, bucket)
    query.run(2)
    for structure in (Structure.V2, Structure.V1):
        switched(query, structure, folder)
        clean(query)
        query.run(2)
        clean(query)
    outputs, end = expected(6)
    assert query.outputs == outputs
    assert held(query) == end


def files(query: NativeQuery) -> set[str]:
    """The files of its stores, but for tables."""
    listed = open_storage(str(query.checkpoint)).list("state")
    return {entry.path for entry in listed if entry.path.endswith((".changelog", ".zip"))}
