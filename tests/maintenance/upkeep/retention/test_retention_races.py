"""Retention beside running queries, other maintainers and stalled runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import CorruptFile, LeaseLost, RefusedAsUnsafe, RootHeld
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.maintenance.records import announcements, lease
from statekeeper.statestore.maintenance.upkeep import retention
from statekeeper.statestore.maintenance.upkeep.retention import DeletionOutcome, RetentionPolicy, Rule
from statekeeper.statestore.storage import Entry, Storage
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.retention import AT_ONCE, collect, paths, planned, rules, take_snapshots


def test_a_table_that_a_snapshot_names_after_the_plan_is_kept(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(6)
    [taken, _] = take_snapshots(checkpoint.storage, tmp_path)
    store = taken.action.store
    zip_path = store.snapshot(taken.action.version)
    body = checkpoint.storage.read(zip_path)
    # As it looks between the upload of the tables and that of the zip.
    checkpoint.storage.delete([zip_path])
    plan = planned(checkpoint.storage)
    tables = {v.path for v in plan.deletions if v.rule is Rule.UNNAMED}
    assert tables
    checkpoint.storage.create(zip_path, body)
    done = collect(checkpoint.storage, plan)
    assert {path for step in done for path in step.spared} == tables
    checkpoint.assert_snapshots_are_right(tmp_path / "host")


def test_a_snapshot_that_names_a_table_pending_deletion_is_no_base(maintained: Checkpoint) -> None:
    store = maintained.stores[0]
    base = snapshot_tables(maintained, maintained.versions[15][0])
    announcements.announce(maintained.storage, "a run that sleeps", [store.table_file(name) for name in base])
    plan = planned(maintained.storage)
    [of_store] = [verdicts for verdicts in plan.stores if verdicts.store == store]
    assert of_store.base is not None
    assert of_store.base.version < 15


def test_a_snapshot_whose_table_is_announced_during_gathering_is_no_base(
    maintained: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, listed = maintained.stores[0], maintained.storage.list
    pending_delete = [store.table_file(name) for name in snapshot_tables(maintained, maintained.versions[15][0])]

    def list_late(prefix: str, *, hidden: bool = False) -> list[Entry]:
        if prefix == names.STATE:
            # As if the snapshot of version 15 had been published between the other run's last look and now.
            announcements.announce(maintained.storage, "a run that sleeps", pending_delete)
        return listed(prefix, hidden=hidden)

    monkeypatch.setattr(maintained.storage, "list", list_late)
    collect(maintained.storage, planned(maintained.storage))
    maintained.storage.delete(pending_delete)
    maintained.assert_right(tmp_path / "host", 15)


def test_a_table_pending_deletion_is_uploaded_again_under_another_name(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(5)
    take_snapshots(checkpoint.storage, tmp_path)
    store = checkpoint.stores[0]
    base = snapshot_tables(checkpoint, checkpoint.versions[5][0])
    pending_delete = [store.table_file(name) for name in base]
    announcements.announce(checkpoint.storage, "a run that sleeps", pending_delete)
    checkpoint.grow(1)
    take_snapshots(checkpoint.storage, tmp_path)
    assert not set(base) & set(snapshot_tables(checkpoint, checkpoint.versions[6][0]))
    checkpoint.storage.delete(pending_delete)
    checkpoint.assert_snapshots_are_right(tmp_path / "host")


def snapshot_tables(checkpoint: Checkpoint, version: VersionId) -> list[str]:
    path = checkpoint.stores[0].snapshot(version)
    return [table.dfs_name for table in read_snapshot(checkpoint.storage.read(path), path).metadata.tables]


def test_if_a_base_is_lost_after_the_plan_nothing_is_deleted(maintained: Checkpoint, tmp_path: Path) -> None:
    plan = planned(maintained.storage)
    victim = maintained.stores[0]
    maintained.storage.delete([victim.snapshot(maintained.versions[15][0])])
    done = collect(maintained.storage, plan)
    assert [step.store for step in done if step.outcome is DeletionOutcome.CHANGED] == [victim]
    assert sum(step.files for step in done) == 0, "what the others have may be needed, too"
    maintained.assert_right(tmp_path / "host", 17)


def test_a_run_that_stalls_until_all_files_changed_loses_no_version(maintained: Checkpoint, tmp_path: Path) -> None:
    stale = planned(maintained.storage)
    for _ in range(3):
        maintained.grow(5)
        take_snapshots(maintained.storage, tmp_path)
        collect(maintained.storage, planned(maintained.storage))
    # Deleted as it was planned, without a second look and without a lease: the worst that a sleeper can do.
    maintained.storage.delete([verdict.path for verdict in stale.deletions])
    for batch in range(30, 35):
        maintained.assert_right(tmp_path / f"host-{batch}", batch)
    maintained.assert_snapshots_are_right(tmp_path / "fresh")


def test_a_stalled_holder_does_not_change_the_lease_of_its_successor(storage: Storage) -> None:
    clock = SleeplessClock(SystemClock().now_seconds())
    stalled = lease.acquire(storage, "gc", run="stalled", holder="here:1", clock=clock)
    clock.sleep(lease.LIFE_SECONDS * 2)
    successor = lease.acquire(storage, "switch", run="successor", holder="there:2", clock=clock)
    before = {entry.path: storage.read(entry.path) for entry in storage.list(names.LEASES)}
    stalled.beat()
    stalled.release()
    assert {entry.path: storage.read(entry.path) for entry in storage.list(names.LEASES)} == before
    successor.require()
    successor.release()
    found = lease.current(storage)
    assert found is not None
    assert (found.lease.run, found.lease.released) == ("successor", True)


def test_a_run_that_lost_its_lease_stops_before_the_next_deletion(maintained: Checkpoint, tmp_path: Path) -> None:
    plan = planned(maintained.storage)
    storage, clock = maintained.storage, SystemClock()
    mine = lease.acquire(storage, "gc", run="mine", holder="a test", clock=clock)
    steps = retention.execute(storage, plan, run="mine", lease=mine, clock=clock)
    next(step for step in steps if step.outcome is DeletionOutcome.DONE)
    lease.break_lease(storage, run="another", holder="a person", clock=clock)
    before = paths(storage)
    with pytest.raises(LeaseLost):
        next(steps)
    assert paths(storage) == before
    maintained.assert_right(tmp_path / "host", 17)


def test_an_old_plan_is_not_executed(maintained: Checkpoint) -> None:
    plan = planned(maintained.storage)
    clock = SleeplessClock(SystemClock().now_seconds())
    mine = lease.acquire(maintained.storage, "gc", run="mine", holder="a test", clock=clock)
    steps = retention.execute(maintained.storage, plan, run="mine", lease=mine, clock=clock)
    next(step for step in steps if step.outcome is DeletionOutcome.DONE)
    clock.sleep(announcements.DELETES_FOR_SECONDS + 1)
    with pytest.raises(RefusedAsUnsafe, match="the deletions took longer than 3,600 s"):
        next(steps)


def test_the_second_of_two_maintainers_fails_with_the_name_of_the_first(storage: Storage) -> None:
    clock = SleeplessClock(SystemClock().now_seconds())
    with (
        lease.held(storage, "gc", run="first", holder="here:1", clock=clock),
        pytest.raises(RootHeld, match="here:1 holds the lease of this root for the command gc"),
    ):
        lease.acquire(storage, "gc", run="second", holder="there:2", clock=clock)
    second = lease.acquire(storage, "gc", run="second", holder="there:2", clock=clock)
    second.require()
    clock.sleep(lease.LIFE_SECONDS * 2)
    third = lease.acquire(storage, "gc", run="third", holder="there:3", clock=clock)
    third.require()
    with pytest.raises(LeaseLost):
        second.require()


def test_a_later_pass_can_retain_more_versions_than_an_earlier_one(maintained: Checkpoint) -> None:
    collect(maintained.storage, planned(maintained.storage, RetentionPolicy(versions=2, grace_seconds=0)))
    plan = planned(maintained.storage, RetentionPolicy(versions=18, grace_seconds=0))
    assert (plan.floor, plan.findings) == (19, ())


def test_a_commit_rewritten_by_a_stalled_driver_is_no_evidence(maintained: Checkpoint) -> None:
    collect(maintained.storage, planned(maintained.storage))
    ids = tuple((RandomIds().fresh(),) for _ in maintained.stores)
    maintained.storage.create(names.commits(9), logs.encode_commit(logs.CommitLog(0, {0: ids})))
    plan = planned(maintained.storage)
    assert (plan.floor, plan.findings) == (16, ())
    assert rules(plan)[names.commits(9)] is Rule.OLD_LOG


def test_logs_are_deleted_oldest_first(maintained: Checkpoint) -> None:
    going = [v.path for v in planned(maintained.storage).deletions if v.path.startswith(f"{names.COMMITS}/")]
    assert going == [names.commits(batch) for batch in range(15)]


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"path": 1}', b"\xff"])
def test_an_unreadable_announcement_stops_retention_with_its_name(
    checkpoint: Checkpoint, tmp_path: Path, damage: bytes
) -> None:
    checkpoint.grow(12)
    checkpoint.storage.create(names.deleting("someone"), damage)
    with pytest.raises(CorruptFile, match=r"deleting/someone\.jsonl"):
        planned(checkpoint.storage)


def test_a_clock_that_is_ahead_does_not_make_an_announcement_old(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(12)
    announcements.announce(checkpoint.storage, "a run that lives", ["state/0/0/SSTs/1-x.sst"])
    ahead = SleeplessClock(SystemClock().now_seconds() + 30 * 86_400)
    plan = retention.plan(retention.gather(checkpoint.storage, AT_ONCE, clock=ahead), AT_ONCE)
    assert rules(plan)[names.deleting("a run that lives")] is Rule.YOUNG
