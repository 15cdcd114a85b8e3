"""Settings of a query that its checkpoint reveals."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records.history import History
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.verbs.advice import Advice, advice
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
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


DAY = 86_400.0
RUN = "0badc0de-0000-4000-8000-00000000000a"


def advised(storage: Storage, mode: Mode = Mode.FULL, days_later: float = 0.0) -> list[Advice]:
    clock = SleeplessClock(SystemClock().now_seconds() + days_later * DAY)
    return advice(storage, snapshot.gather(storage, at_head=True), mode, clock=clock)


def record_runs(storage: Storage, verb: str, *days_ago: float) -> None:
    for number, days in enumerate(days_ago):
        clock = SleeplessClock(SystemClock().now_seconds() - days * DAY)
        History.begin(storage, verb, f"{RUN[:-1]}{number}", clock).outcome([{}])


def with_a_snapshot_of_spark(native: Checkpoint) -> Storage:
    path = native.stores[0].snapshot(native.versions[3][0])
    with_a_table_of_its_own(native.storage, path, by_spark=True)
    return native.storage


def test_a_query_configured_for_statekeeper_needs_no_advice(native: Checkpoint) -> None:
    assert advised(native.storage) == []


@pytest.mark.parametrize("verb", ["snapshot", "gc"])
def test_the_query_of_a_checkpoint_that_a_schedule_maintains_is_advised_to_disable_sparks_own_snapshots(
    native: Checkpoint, verb: str
) -> None:
    storage = with_a_snapshot_of_spark(native)
    record_runs(storage, verb, 0.1, 1.1, 2.1)
    [found] = advised(storage)
    assert found.seen.startswith("Spark takes its own snapshots")


def test_a_query_that_no_schedule_maintains_keeps_sparks_own_snapshots(native: Checkpoint) -> None:
    storage = with_a_snapshot_of_spark(native)
    assert advised(storage) == [], "no run is recorded"
    record_runs(storage, "repair", 0.1, 1.1, 2.1)
    assert advised(storage) == [], "a repair is not maintenance"
    record_runs(storage, "gc", 0.1)
    assert advised(storage) == [], "a person ran it once"
    record_runs(storage, "gc", 0.11, 0.12, 0.13)
    assert advised(storage) == [], "a person ran it several times in one evening"
    record_runs(storage, "snapshot", 0.1, 1.1, 2.1)
    assert advised(storage, Mode.OBSERVE) == [], "the configuration allows no snapshots"
    assert advised(storage, days_later=3) == [], "the maintenance has ended"
    assert advised(storage, days_later=1) != [], "a night without a run"


def test_inspect_prints_the_confs_that_disable_sparks_own_snapshots(native: Checkpoint, tmp_path: Path) -> None:
    record_runs(with_a_snapshot_of_spark(native), "snapshot", 0.1, 1.1, 2.1)
    unmaintained = CliRunner().invoke(main, ["inspect", str(tmp_path / "root")])
    assert "minDeltasForSnapshot" not in unmaintained.output, "the default mode of a native query is observe"
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text('[roots.orders]\nurl = "root"\nmode = "snapshots"\n')
    told = CliRunner().invoke(main, ["--config", str(configuration), "inspect", "orders"])
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
