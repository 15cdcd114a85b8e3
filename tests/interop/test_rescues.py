"""Queries that Spark cannot start, and the command after which each continues."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.statestore.format.names import parse_store_path
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.native import FORMAT, OPERATORS, NativeQuery, rows
from tests.support.native_queries import held
from tests.support.twins import changelogs, statekeeper

pytestmark = pytest.mark.spark

V2 = {FORMAT: "2"}


@pytest.fixture
def query(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> NativeQuery:
    return NativeQuery(spark, tmp_path_factory.mktemp("rescued") / "query", OPERATORS["aggregation"], V2)


def snapshots(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list("state") if entry.path.endswith(".zip")]


def of_version(paths: list[str], number: int) -> list[str]:
    return [path for path in paths if (place := parse_store_path(path)) and place[1].version.version == number]


def take_snapshots(query: NativeQuery, scratch: Path) -> None:
    statekeeper("snapshot", str(query.checkpoint), "--at-head", "--mode", "snapshots", "--scratch", str(scratch))


def expected(batches: int) -> Counter[tuple[str, int, int]]:
    """Return the expected state of the aggregation after this number of batches."""
    seen: dict[str, list[int]] = {}
    for batch in range(batches):
        for row in rows(batch).to_pylist():
            seen.setdefault(row["k"], []).append(row["x"])
    return Counter((key, len(xs), sum(xs)) for key, xs in seen.items())


def test_later_sparks_read_snapshots_of_spark_4_0_after_a_repair(query: NativeQuery, tmp_path: Path) -> None:
    query.run(2)
    take_snapshots(query, tmp_path)
    storage, root = open_storage(str(query.checkpoint)), str(query.checkpoint)
    for path in snapshots(storage):
        found = read_snapshot(storage.read(path), path)
        storage.replace(path, encode_snapshot(replace(found, metadata=replace(found.metadata, header="v2"))))
    storage.delete(changelogs(storage))
    with pytest.raises(StreamingQueryException, match="AUTO_SNAPSHOT_REPAIR_FAILED"):
        query.run(1)
    statekeeper("repair", root, "--for-spark", "4.2", "--apply", "--confirm-stopped")
    query.run(1)
    assert held(query) == expected(4), "the batch that failed was run as well"


def test_a_query_with_a_missing_presumed_snapshot_continues_from_one_at_its_head(
    query: NativeQuery, tmp_path: Path
) -> None:
    for _ in range(3):
        query.run(2)
        take_snapshots(query, tmp_path)
    query.run(1)
    storage = open_storage(str(query.checkpoint))
    # Spark's cleanup keeps the files from an older snapshot on. Spark follows the lineage back farther than that.
    cleaned = [path for number in (1, 2, 3) for path in of_version(changelogs(storage), number)]
    storage.delete([*cleaned, *of_version(snapshots(storage), 2), *of_version(snapshots(storage), 6)])
    with pytest.raises(StreamingQueryException, match="CANNOT_LOAD_STATE_STORE"):
        query.run(1)
    take_snapshots(query, tmp_path)
    query.run(1)
    assert held(query) == expected(9), "the batch that failed was run as well"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_query_that_died_at_the_lineage_ceiling_continues_from_a_snapshot_at_its_head(
    query: NativeQuery, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match=r"FAILED_TO_GET_CHANGELOG_WRITER|UTFDataFormat"):
        query.run(900)
    died_after = len(query.outputs)
    assert 800 < died_after < 900
    with pytest.raises(StreamingQueryException):
        query.run(0)
    take_snapshots(query, tmp_path)
    query.run(0)
    assert held(query) == expected(900)
