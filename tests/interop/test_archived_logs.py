"""Snapshots that name archived write-ahead logs: part of Spark's format, but no Spark query can write one.

Spark captures a database with RocksDB's `Checkpoint`, which does not copy archived logs, and Spark disables the log. So the
tests add one to a captured database, and Spark's `RocksDBFileManager` writes the snapshot, as in Spark's own tests.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.storage import open_storage
from tests.support.dumped import dumped
from tests.support.native import CHANGELOGS, FORMAT, OPERATORS, NativeQuery, state
from tests.support.native_queries import LOG, archive_a_log
from tests.support.twins import statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def query(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> NativeQuery:
    """Three versions with a snapshot each, of which the newest names an archived log. Later versions have changelogs."""
    folder = tmp_path_factory.mktemp("archived")
    query = NativeQuery(spark, folder / "query", OPERATORS["aggregation"], {FORMAT: "1", CHANGELOGS: "false"})
    query.run(3)
    query.saved("before")
    for partition in range(2):
        scratch = folder / str(partition)
        scratch.mkdir()
        archive_a_log(spark, query.checkpoint / "state/0" / str(partition), 3, scratch)
    query.confs[CHANGELOGS] = "true"
    query.saved("archived")
    return query


def test_spark_writes_and_loads_snapshots_that_name_an_archived_log(query: NativeQuery) -> None:
    query.restored("archived")
    snapshot = query.checkpoint / "state/0/0/3.zip"
    [log] = read_snapshot(snapshot.read_bytes(), "3.zip").metadata.archived_logs
    assert (query.checkpoint / "state/0/0/logs" / log.dfs_name).read_bytes() == LOG
    with zipfile.ZipFile(snapshot) as archive:
        assert "logFiles" in json.loads(archive.read("metadata").decode().partition("\n")[2])
    here = state(query)
    query.restored("before")
    assert state(query) == here
    assert sum(map(len, here.values())) > 0


def test_such_a_checkpoint_is_audited_dumped_compacted_and_cleaned_and_spark_continues(
    query: NativeQuery, tmp_path: Path
) -> None:
    query.restored("archived")
    query.run(2)
    storage = open_storage(str(query.checkpoint))
    assert audit.judge(audit.gather(storage, scratch=tmp_path)).findings == ()
    assert dumped(query.checkpoint, "--version", 3)
    at_head = ["--at-head", "--confirm-stopped", "--mode", "snapshots", "--scratch", str(tmp_path)]
    statekeeper("snapshot", str(query.checkpoint), *at_head)
    path = StorePath(0, 0).snapshot(VersionId(5))
    ours = read_snapshot(storage.read(path), path)
    assert ours.metadata.archived_logs == ()
    assert audit.judge(audit.gather(storage, scratch=tmp_path)).findings == ()
    cleaning = ["gc", str(query.checkpoint), "--retain", "1", "--grace", "0s", "--mode", "full", "--apply"]
    statekeeper(*cleaning)
    logs = sorted(query.checkpoint.glob("state/0/*/logs/*.log"))
    assert len(logs) == 2, "a Spark that is at work may name them again"
    statekeeper(*cleaning, "--confirm-stopped", "--orphans")
    assert sorted(query.checkpoint.glob("state/0/*/logs/*.log")) == []
    assert audit.judge(audit.gather(storage, scratch=tmp_path)).findings == ()
    query.run(1)
    outputs, end = query.outputs, state(query)

    query.restored("before")
    query.run(3)
    assert query.outputs == outputs
    assert state(query) == end


def test_a_snapshot_without_its_archived_log_does_not_load_in_spark_and_is_a_finding(query: NativeQuery) -> None:
    query.restored("archived")
    [log] = (query.checkpoint / "state/0/0/logs").glob("0*.log")
    log.unlink()
    found = audit.judge(audit.gather(open_storage(str(query.checkpoint))))
    assert [(one.kind, one.file) for one in found.findings] == [
        (FindingKind.TABLE_MISSING, f"state/0/0/logs/{log.name}"),
    ]
    with pytest.raises(Exception, match="does not exist"):
        state(query)
