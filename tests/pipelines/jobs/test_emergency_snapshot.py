"""Without maintenance, a job takes snapshots before its lineage is too long; on real Spark."""

from __future__ import annotations

import logging

import pytest

from statekeeper.pipelines.task.host import Host
from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.storage import LocalStorage
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.streams import Stream


@pytest.fixture
def stream(delta_session, tmp_path):
    return Stream(delta_session, tmp_path, ROWS)


def host_of(stream, changelogs):
    """A host on which the job takes a snapshot of each store with so many changelogs since its newest one."""
    return Host(str(stream.folder / "local"), emergency_changelogs=changelogs)


@pytest.mark.spark
def test_a_job_without_maintenance_takes_emergency_snapshots_and_logs_them(stream, caplog):
    for value in range(6):
        stream.append(rows_of((1, value), (2, value)))
    with caplog.at_level(logging.WARNING, "statekeeper"):
        reports = stream.run(adding(), host=host_of(stream, 4))
    tails = [max(s.commit.tail_changelogs for p in report.partitions for s in p.stores) for report in reports]
    assert max(tails) == 4, tails
    assert f"Schedule for this root: statekeeper maintain {stream.root.as_uri()}" in caplog.text
    assert len(list(stream.root.glob("state/0/*/*.zip"))) == caplog.text.count("emergency snapshot of batch")
    assert stream.state() == {(1,): (6, 15), (2,): (6, 15)}

    # Another host replays only the changelogs after the newest snapshot.
    stream.append(rows_of((1, 100)))
    (stream.folder / "local").rename(stream.folder / "the host that was")
    [report] = stream.run(adding(), host=host_of(stream, 4))
    loads = [store.load for partition in report.partitions for store in partition.stores]
    assert {load.base for load in loads} == {BaseKind.SNAPSHOT}
    assert all(load.replayed_changelogs < 4 for load in loads)
    assert stream.state() == {(1,): (7, 115), (2,): (6, 15)}


@pytest.mark.spark
def test_a_failed_emergency_snapshot_is_reported_and_the_job_continues(stream, monkeypatch, caplog):
    create = LocalStorage.create

    def full(self, path, data, *, like=None):
        if path.endswith(".sst"):
            raise StorageError("no space left", path=path)
        return create(self, path, data, like=like)

    monkeypatch.setattr(LocalStorage, "create", full)
    for value in range(3):
        # Keys in both partitions: a store without rows has no table that could fail.
        stream.append(rows_of(*((key, value) for key in range(16))))
    with caplog.at_level(logging.WARNING, "statekeeper"):
        stream.run(adding(), host=host_of(stream, 2))
    assert "emergency snapshots of 2 of 2 stores failed, the first: state/0/" in caplog.text
    assert stream.state() == {(key,): (3, 3) for key in range(16)}


@pytest.mark.spark
@pytest.mark.slow
def test_emergency_snapshots_are_taken_even_if_their_record_cannot_be_written(stream, monkeypatch, caplog):
    create = LocalStorage.create

    def forgetful(self, path, data, *, like=None):
        if path.startswith("_statekeeper/history/"):
            raise StorageError("permission denied", path=path)
        return create(self, path, data, like=like)

    monkeypatch.setattr(LocalStorage, "create", forgetful)
    for value in range(3):
        stream.append(rows_of((1, value), (2, value)))
    with caplog.at_level(logging.WARNING, "statekeeper"):
        stream.run(adding(), host=host_of(stream, 2))
    assert "the emergency snapshots exist, but the job cannot write their record" in caplog.text
    assert list(stream.root.glob("state/0/*/*.zip"))
    assert "stores failed" not in caplog.text
