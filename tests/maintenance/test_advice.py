"""Settings of a query that its checkpoint reveals."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore.cli import main
from statestore.clock import RandomIds, SystemClock
from statestore.format import names
from statestore.maintenance import snapshot
from statestore.maintenance.advice import Advice, advice
from statestore.storage import Storage, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.snapshots import with_a_table_of_its_own


@pytest.fixture
def native(tmp_path: Path) -> Checkpoint:
    """Four versions, snapshots of the third that are ours, in a checkpoint that is not."""
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job")
    made.grow(3)
    for action in snapshot.plan(snapshot.gather(made.storage), snapshot.SnapshotPolicy(), take_all=True).take:
        snapshot.execute(made.storage, action, scratch=tmp_path, clock=SystemClock(), ids=RandomIds())
    made.grow(1)
    made.storage.delete([names.BINDING])
    return made


def advised(storage: Storage) -> list[Advice]:
    return advice(storage, snapshot.gather(storage, at_head=True))


def test_a_query_configured_for_statekeeper_needs_no_advice(native: Checkpoint) -> None:
    assert advised(native.storage) == []


def test_sparks_own_snapshots_are_detected_and_inspect_prints_the_confs_to_disable_them(
    native: Checkpoint, tmp_path: Path
) -> None:
    path = native.stores[0].snapshot(native.versions[3][0])
    with_a_table_of_its_own(native.storage, path, by_spark=True)
    [found] = advised(native.storage)
    assert found.seen.startswith("Spark takes its own snapshots")
    told = CliRunner().invoke(main, ["inspect", str(tmp_path / "root")])
    assert told.exit_code == 0
    assert "  spark.sql.streaming.stateStore.minDeltasForSnapshot=250\n" in told.output
    assert "  spark.sql.streaming.stateStore.forceSnapshotUploadOnLag=false\n" in told.output


def test_snapshots_per_batch_without_changelogs_are_detected(native: Checkpoint) -> None:
    state = [entry.path for entry in native.storage.list(names.STATE)]
    native.storage.delete(path for path in state if path.endswith(".changelog"))
    [found] = advised(native.storage)
    assert found.confs == {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}


def test_an_own_root_needs_no_advice(tmp_path: Path) -> None:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job")
    made.grow(1)
    assert advised(made.storage) == []
