"""Retention keeps the retained versions and unknown files, and damage holds the floor."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import CorruptFile, NotACheckpoint, StatekeeperError, VersionNotLoadable
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.maintenance.records import former_queries
from statekeeper.statestore.maintenance.upkeep import retention, snapshot
from statekeeper.statestore.maintenance.upkeep.retention import DeletionOutcome, RetentionPolicy, Rule
from statekeeper.statestore.maintenance.upkeep.snapshot import Taken, TakeSnapshot
from statekeeper.statestore.storage import Storage
from tests.support import runs
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.hosts import column
from tests.support.retention import AT_ONCE, collect, paths, planned, rules, take_snapshots
from tests.support.structures import as_sparks


def snapshots_that_failed(storage: Storage, scratch: Path) -> list[TakeSnapshot]:
    """Of a run that is on record."""
    plan, failed = snapshot.plan(snapshot.gather(storage), snapshot.SnapshotPolicy(), take_all=True), []

    def ended(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            failed.append(action)

    runs.take_snapshots(storage, plan, ended, scratch=scratch, holder="a test", clock=SystemClock(), ids=RandomIds())
    return failed


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_spark", [False, True], ids=["own", "native"])
def test_the_plan_of_a_rewind_stays_if_only_it_has_the_former_id_of_the_query(
    maintained: Checkpoint, of_spark: bool
) -> None:
    """A Python job has its former ids in its binding."""
    storage = as_sparks(maintained).storage if of_spark else maintained.storage
    head = {"former_query_id": "a query", "query_id": "another", "newest_batch": 15}
    made = set[str]()
    for verb in ("rewind", "repair"):
        run = RandomIds().fresh()
        for part in ("plan", "outcome"):
            path = names.history("20260101T000000Z", verb, run, part)
            storage.create(path, json.dumps(head).encode() + b"\n")
            made.add(path)
    policy = replace(AT_ONCE, history_seconds=0)
    for _ in range(2):
        collect(storage, planned(storage, policy))
    left = paths(storage, names.HISTORY) & made
    assert left == ({path for path in made if "-rewind-" in path} if of_spark else set())
    known = former_queries.ids(former_queries.earlier_rewinds(storage, left), None)
    assert known == ({"a query", "another"} if of_spark else set())


# -- kept and deleted files--------------------------------------------------------------------------------------------


def test_files_below_the_base_of_the_floor_are_deleted_and_each_retained_version_is_unchanged(
    maintained: Checkpoint, tmp_path: Path
) -> None:
    plan = planned(maintained.storage)
    assert (plan.head, plan.floor, plan.findings) == (20, 16, ())
    assert {store.base.version for store in plan.stores if store.base} == {15}
    before = paths(maintained.storage)
    done = collect(maintained.storage, plan)
    assert {step.outcome for step in done} == {DeletionOutcome.READ, DeletionOutcome.DONE}
    assert before - paths(maintained.storage) == {v.path for v in plan.deletions if v.path.startswith("state/")}
    for store in maintained.stores:
        files = catalog.files(maintained.storage)[store]
        assert {version.version for version in files.changelogs} == {16, 17, 18, 19, 20}
        assert {version.version for version in files.snapshots} == {15, 20}
    for batch in range(14, 20):
        maintained.assert_right(tmp_path / f"host-{batch}", batch)
    with pytest.raises(VersionNotLoadable):
        maintained.assert_right(tmp_path / "too old", 12)
    assert {entry.path for entry in maintained.storage.list(names.COMMITS)} == {f"commits/{n}" for n in range(15, 20)}
    assert planned(maintained.storage).deletions == [], "a second run has nothing to do"


@pytest.mark.parametrize("of_spark", [False, True], ids=["own", "native"])
def test_files_that_an_earlier_pass_deleted_neither_hold_the_floor_nor_are_a_finding(
    maintained: Checkpoint, of_spark: bool
) -> None:
    storage = as_sparks(maintained).storage if of_spark else maintained.storage
    collect(storage, planned(storage))
    for versions in (5, 7, 100):
        policy = replace(AT_ONCE, versions=versions)
        plan = planned(storage, policy)
        assert plan.floor in (15, 16)
        assert plan.findings == ()
        assert {store.base.version for store in plan.stores if store.base} == {15}
        assert {verdict.path for verdict in plan.deletions if verdict.path.startswith(names.STATE)} == set()
        assert Rule.HELD not in rules(plan).values()


def test_versions_that_one_store_lost_at_its_old_end_stay_in_the_others(maintained: Checkpoint) -> None:
    storage = as_sparks(maintained).storage
    gone, kept = maintained.stores
    files = catalog.files(storage)[gone]
    old = [entry.path for kind in (files.changelogs, files.snapshots) for v, entry in kind.items() if v.version < 10]
    storage.delete(old)
    policy = replace(AT_ONCE, versions=18)
    plan = planned(storage, policy)
    assert (plan.wanted_floor, plan.floor, plan.findings) == (3, 10, ())
    assert not {verdict.path for verdict in plan.deletions if verdict.path.startswith(kept.folder)}


def test_a_version_with_one_remaining_file_holds_the_floor_until_it_loads(maintained: Checkpoint) -> None:
    storage = as_sparks(maintained).storage
    damaged = maintained.stores[0]
    storage.delete([damaged.changelog(maintained.versions[number][0]) for number in (1, 2)])
    plan = planned(storage, replace(AT_ONCE, versions=18))
    assert (plan.wanted_floor, plan.floor) == (3, None)
    assert any("does not load" in finding for finding in plan.findings)
    assert not any(verdict.path.startswith(names.STATE) for verdict in plan.deletions)


def test_every_file_has_a_verdict_and_unknown_files_are_kept(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(12)
    take_snapshots(checkpoint.storage, tmp_path)
    foreign = "state/0/0/notes.txt"
    checkpoint.storage.create(foreign, b"mine")
    plan = planned(checkpoint.storage)
    found = rules(plan)
    state = {path for path in paths(checkpoint.storage) if "_metadata" not in path}
    assert state <= set(found)
    assert found[foreign] is Rule.UNKNOWN
    assert max(Counter(verdict.path for verdict in plan.verdicts).values()) == 1


def test_without_a_snapshot_below_the_floor_everything_stays(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(12)
    take_snapshots(checkpoint.storage, tmp_path)
    plan = planned(checkpoint.storage)
    assert {store.base for store in plan.stores} == {EMPTY}
    assert all(verdict.rule is Rule.OLD_LOG for verdict in plan.deletions)
    collect(checkpoint.storage, plan)
    for batch in range(12):
        checkpoint.assert_right(tmp_path / f"host-{batch}", batch)


def test_recent_files_stay_even_if_their_version_is_old(maintained: Checkpoint) -> None:
    policy = RetentionPolicy(versions=5, grace_seconds=3600)
    plan = planned(maintained.storage, policy)
    assert plan.floor == 1, "all versions are younger than the grace period"
    assert plan.deletions == []
    later = SleeplessClock(SystemClock().now_seconds() + 3601)
    plan = retention.plan(retention.gather(maintained.storage, policy, clock=later), policy)
    assert plan.floor == 16
    assert plan.deletions


def test_a_clock_that_ran_backwards_makes_everything_young(maintained: Checkpoint) -> None:
    plan = retention.plan(retention.gather(maintained.storage, AT_ONCE, clock=SleeplessClock(1000.0)), AT_ONCE)
    assert plan.deletions == []


def test_uncommitted_attempts_are_deleted_unless_they_are_newer_than_the_head(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.grow(6)
    store = checkpoint.stores[0]
    lost = _commit_beside(checkpoint, 3, tmp_path)
    running = _commit_beside(checkpoint, 6, tmp_path)
    orphan = store.table_file(f"000999-{RandomIds().fresh()}.sst")
    checkpoint.storage.create(orphan, b"a table that no zip names")
    found = rules(planned(checkpoint.storage))
    assert found[store.changelog(lost)] is Rule.DEAD_BRANCH
    assert found[store.changelog(running)] is Rule.RUNNING
    assert found[orphan] is Rule.UNNAMED
    collect(checkpoint.storage, planned(checkpoint.storage))
    left = paths(checkpoint.storage)
    assert store.changelog(lost) not in left
    assert orphan not in left
    assert store.changelog(running) in left
    checkpoint.assert_right(tmp_path / "host")


def _commit_beside(checkpoint: Checkpoint, number: int, tmp_path: Path, partition: int = 0) -> VersionId:
    """Another attempt at the version after `number`."""
    base = checkpoint.versions[number][partition]
    with checkpoint.load(checkpoint.stores[partition], base, tmp_path / f"zombie-{number}") as opened:
        opened.put(column([b"of a zombie"]), column([b"x"]))
        return opened.commit()


# -- damage holds the floor --------------------------------------------------------------------------------------------


def test_a_store_without_a_new_snapshot_holds_the_floor_at_its_last_one(storage: Storage, tmp_path: Path) -> None:
    """All its changelogs exist. Only a reader of the damaged one detects the damage."""
    made = Checkpoint(storage, tmp_path / "job")
    made.grow(5)
    take_snapshots(storage, tmp_path)
    made.grow(10)
    [damaged, _] = made.stores
    path = damaged.changelog(made.versions[8][0])
    body = storage.read(path)
    storage.replace(path, body[: len(body) // 2])
    failed = snapshots_that_failed(storage, tmp_path)
    assert [action.store for action in failed] == [damaged]
    plan = planned(storage)
    assert plan.floor == 5
    [finding] = plan.findings
    assert "the last snapshot of the store failed" in finding
    assert path in finding
    collect(storage, plan)
    for version in (5, 6, 7):
        made.assert_right(tmp_path / f"host-{version}", batch=version - 1)
    storage.replace(path, body)
    assert snapshots_that_failed(storage, tmp_path) == []
    assert planned(storage).floor == 11


def test_a_failed_run_of_snapshots_is_not_attributed_to_a_store(maintained: Checkpoint) -> None:
    storage = maintained.storage
    before = planned(storage)
    with pytest.raises(CorruptFile), runs.recorded(storage, "snapshot", RandomIds().fresh(), [], SystemClock()):
        raise CorruptFile("a commit cannot be read", path=names.commits(19))
    assert planned(storage).floor == before.floor


def test_one_damaged_store_holds_the_floor_of_all_and_files_below_it_are_deleted(
    maintained: Checkpoint, tmp_path: Path
) -> None:
    victim = maintained.stores[0]
    # Neither snapshot of 15 or 20 nor the changelogs between: the store loads up to version 12.
    maintained.storage.delete([victim.snapshot(maintained.versions[v][0]) for v in (15, 20)])
    maintained.storage.delete([victim.changelog(maintained.versions[13][0])])
    plan = planned(maintained.storage)
    assert (plan.wanted_floor, plan.floor) == (16, 12)
    assert any(victim.changelog(maintained.versions[13][0]) in finding for finding in plan.findings)
    assert any(verdict.rule is Rule.SUPERSEDED for verdict in plan.deletions), "below version 10 all goes"
    collect(maintained.storage, plan)
    maintained.assert_right(tmp_path / "restart", 11)


def test_if_no_version_loads_in_all_stores_only_uncommitted_files_are_deleted(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.grow(12)
    first, second = checkpoint.stores
    checkpoint.storage.delete([first.changelog(checkpoint.versions[1][0])])
    lost = _commit_beside(checkpoint, 8, tmp_path, partition=1)
    plan = planned(checkpoint.storage)
    assert plan.floor is None
    assert [verdict.path for verdict in plan.deletions] == [second.changelog(lost)]


def test_an_unreadable_commit_log_stops_all_deletion(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(12)
    checkpoint.storage.replace("commits/7", b"v2\n{")
    with pytest.raises(CorruptFile, match="commits/7"):
        planned(checkpoint.storage)


def test_a_snapshot_that_cannot_be_read_keeps_all_tables_of_its_store(maintained: Checkpoint) -> None:
    victim = maintained.stores[0]
    damaged = victim.snapshot(maintained.versions[20][0])
    maintained.storage.replace(damaged, maintained.storage.read(damaged)[:100])
    plan = planned(maintained.storage)
    tables = {rule for path, rule in rules(plan).items() if path.startswith(f"{victim}/SSTs/")}
    assert Rule.UNNAMED not in tables
    assert any(damaged in finding for finding in plan.findings)


def test_a_commit_log_and_a_lineage_that_contradict_each_other_hold_everything(maintained: Checkpoint) -> None:
    other = RandomIds().fresh()
    path = names.commits(17)
    body = maintained.storage.read(path).decode().replace(str(maintained.versions[18][0].id), other)
    maintained.storage.replace(path, body.encode())
    plan = planned(maintained.storage)
    assert plan.floor is None
    assert any(other in finding for finding in plan.findings)
    assert plan.deletions == []


def test_a_folder_without_a_checkpoint_is_an_error(storage: Storage) -> None:
    with pytest.raises(NotACheckpoint):
        planned(storage)


def test_a_run_deletes_at_most_its_limit_and_the_next_run_continues(maintained: Checkpoint, tmp_path: Path) -> None:
    few = RetentionPolicy(versions=5, grace_seconds=0, most_files=7)
    everything = {verdict.path for verdict in planned(maintained.storage).deletions}
    runs = 0
    while (plan := planned(maintained.storage, few)).deletions:
        assert len(plan.deletions) <= 7
        collect(maintained.storage, plan)
        maintained.assert_right(tmp_path / f"host-{runs}", 15)
        runs += 1
    assert runs >= len(everything) // 7
    assert not everything & (paths(maintained.storage) | paths(maintained.storage, names.COMMITS))
