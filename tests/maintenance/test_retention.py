"""What retention keeps and deletes: on disk and on S3, against a model that knows what each version holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from statestore import catalog
from statestore.clock import RandomIds, SystemClock
from statestore.errors import (
    CorruptFile,
    LeaseLost,
    NotACheckpoint,
    RefusedAsUnsafe,
    RootHeld,
    StatekeeperError,
    VersionNotLoadable,
)
from statestore.format import logs, names
from statestore.format.names import EMPTY, VersionId
from statestore.format.snapshot import read_snapshot
from statestore.maintenance import announcements, lease, retention, runs, snapshot
from statestore.maintenance.retention import Deleted, DeletionOutcome, RetentionPlan, RetentionPolicy, Rule
from statestore.maintenance.snapshot import Taken, TakeSnapshot
from statestore.storage import Entry, Storage, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.hosts import column
from tests.support.snapshots import with_a_table_of_its_own
from tests.support.structures import as_sparks

AT_ONCE = RetentionPolicy(versions=5, grace_seconds=0)
"""Keeps the five newest versions, however young the others are."""


@pytest.fixture
def checkpoint(storage: Storage, tmp_path: Path) -> Checkpoint:
    return Checkpoint(storage, tmp_path / "job")


@pytest.fixture(scope="module")
def twenty_versions(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """With a snapshot of each fifth."""
    folder = tmp_path_factory.mktemp("twenty")
    made = Checkpoint(open_storage(str(folder / "root")), folder / "job")
    for _ in range(4):
        made.grow(5)
        take_snapshots(made.storage, folder)
    return made


@pytest.fixture
def maintained(twenty_versions: Checkpoint, storage: Storage, tmp_path: Path) -> Checkpoint:
    return twenty_versions.copied_to(storage, tmp_path / "job")


def planned(storage: Storage, policy: RetentionPolicy = AT_ONCE) -> RetentionPlan:
    return retention.plan(retention.gather(storage, policy, clock=SystemClock()), policy)


def collect(storage: Storage, plan: RetentionPlan) -> list[Deleted]:
    run = RandomIds().fresh()
    with lease.held(storage, "gc", run=run, holder="a test", clock=SystemClock()) as held:
        return list(retention.execute(storage, plan, run=run, lease=held, clock=SystemClock()))


def take_snapshots(storage: Storage, scratch: Path) -> list[snapshot.Taken]:
    plan = snapshot.plan(snapshot.gather(storage), snapshot.SnapshotPolicy(), take_all=True)
    return [
        snapshot.execute(storage, action, scratch=scratch, clock=SystemClock(), ids=RandomIds()) for action in plan.take
    ]


def snapshots_that_failed(storage: Storage, scratch: Path) -> list[TakeSnapshot]:
    """Of a run that is on record."""
    plan, failed = snapshot.plan(snapshot.gather(storage), snapshot.SnapshotPolicy(), take_all=True), []

    def ended(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            failed.append(action)

    runs.take_snapshots(
        storage, plan.take, ended, scratch=scratch, holder="a test", clock=SystemClock(), ids=RandomIds()
    )
    return failed


def rules(plan: RetentionPlan) -> dict[str, Rule]:
    return {verdict.path: verdict.rule for verdict in plan.verdicts}


def paths(storage: Storage, folder: str = names.STATE) -> set[str]:
    return {entry.path for entry in storage.list(folder)}


# -- what stays, what goes ---------------------------------------------------------------------------------------------


def test_what_is_below_the_base_of_the_floor_goes_and_each_retained_version_is_what_it_was(
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


def test_what_only_one_store_has_lost_at_its_old_end_stays_in_the_others(maintained: Checkpoint) -> None:
    storage = as_sparks(maintained).storage
    gone, kept = maintained.stores
    files = catalog.files(storage)[gone]
    old = [entry.path for kind in (files.changelogs, files.snapshots) for v, entry in kind.items() if v.version < 10]
    storage.delete(old)
    policy = replace(AT_ONCE, versions=18)
    plan = planned(storage, policy)
    assert (plan.wanted_floor, plan.floor, plan.findings) == (3, 10, ())
    assert not {verdict.path for verdict in plan.deletions if verdict.path.startswith(kept.folder)}


def test_a_version_with_a_file_left_holds_all_of_them_until_it_loads(maintained: Checkpoint) -> None:
    storage = as_sparks(maintained).storage
    damaged = maintained.stores[0]
    storage.delete([damaged.changelog(maintained.versions[number][0]) for number in (1, 2)])
    plan = planned(storage, replace(AT_ONCE, versions=18))
    assert (plan.wanted_floor, plan.floor) == (3, None)
    assert any("does not load" in finding for finding in plan.findings)
    assert not any(verdict.path.startswith(names.STATE) for verdict in plan.deletions)


def test_every_file_has_a_verdict_and_what_is_not_known_is_kept(checkpoint: Checkpoint, tmp_path: Path) -> None:
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


def test_what_is_young_stays_however_old_its_version(maintained: Checkpoint) -> None:
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


def test_attempts_that_were_never_committed_go_and_those_newer_than_the_head_stay(
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


def test_a_store_of_which_no_snapshot_could_be_made_holds_the_floor_at_the_one_that_it_has(
    storage: Storage, tmp_path: Path
) -> None:
    """Its changelogs are all there: that one is damaged, only who reads them knows."""
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


def test_a_run_of_snapshots_that_failed_as_a_whole_says_nothing_of_a_store(maintained: Checkpoint) -> None:
    storage = maintained.storage
    before = planned(storage)
    with pytest.raises(CorruptFile), runs.recorded(storage, "snapshot", RandomIds().fresh(), [], SystemClock()):
        raise CorruptFile("a commit cannot be read", path=names.commits(19))
    assert planned(storage).floor == before.floor


def test_one_damaged_store_holds_the_floor_of_all_and_what_is_below_it_goes_all_the_same(
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


def test_when_no_version_loads_everywhere_only_what_was_never_committed_goes(
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


def test_what_is_no_checkpoint_is_said(storage: Storage) -> None:
    with pytest.raises(NotACheckpoint):
        planned(storage)


def test_a_run_deletes_no_more_than_it_may_and_the_next_goes_on(maintained: Checkpoint, tmp_path: Path) -> None:
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


# -- the losing schedules ----------------------------------------------------------------------------------------------


def test_a_table_that_a_snapshot_names_since_the_plan_was_made_is_spared(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
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


def test_a_snapshot_that_names_a_doomed_table_is_no_base_to_rest_on(maintained: Checkpoint) -> None:
    store = maintained.stores[0]
    base = snapshot_tables(maintained, maintained.versions[15][0])
    announcements.announce(maintained.storage, "a run that sleeps", [store.table_file(name) for name in base])
    plan = planned(maintained.storage)
    [of_store] = [verdicts for verdicts in plan.stores if verdicts.store == store]
    assert of_store.base is not None
    assert of_store.base.version < 15


def test_a_snapshot_whose_table_is_announced_while_the_facts_are_gathered_is_no_base_to_rest_on(
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


def test_a_doomed_table_is_sent_again_under_another_name(checkpoint: Checkpoint, tmp_path: Path) -> None:
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


def test_a_base_that_was_lost_since_the_plan_was_made_saves_its_store(maintained: Checkpoint, tmp_path: Path) -> None:
    plan = planned(maintained.storage)
    victim = maintained.stores[0]
    maintained.storage.delete([victim.snapshot(maintained.versions[15][0])])
    done = collect(maintained.storage, plan)
    assert [step.store for step in done if step.outcome is DeletionOutcome.CHANGED] == [victim]
    assert sum(step.files for step in done) == 0, "what the others have may be needed, too"
    maintained.assert_right(tmp_path / "host", 17)


def test_a_run_that_sleeps_until_everything_has_changed_does_no_harm(maintained: Checkpoint, tmp_path: Path) -> None:
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


def test_a_holder_that_stalled_leaves_the_lease_of_its_successor_alone(storage: Storage) -> None:
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


def test_who_lost_the_lease_stops_before_the_next_deletion(maintained: Checkpoint, tmp_path: Path) -> None:
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


def test_a_plan_that_has_grown_old_is_not_carried_out(maintained: Checkpoint) -> None:
    plan = planned(maintained.storage)
    clock = SleeplessClock(SystemClock().now_seconds())
    mine = lease.acquire(maintained.storage, "gc", run="mine", holder="a test", clock=clock)
    steps = retention.execute(maintained.storage, plan, run="mine", lease=mine, clock=clock)
    next(step for step in steps if step.outcome is DeletionOutcome.DONE)
    clock.sleep(announcements.DELETES_FOR_SECONDS + 1)
    with pytest.raises(RefusedAsUnsafe, match="the plan is older than 3,600 s"):
        next(steps)


def test_of_two_maintainers_the_second_is_told_who_is_at_it(storage: Storage) -> None:
    clock = SleeplessClock(SystemClock().now_seconds())
    with (
        lease.held(storage, "gc", run="first", holder="here:1", clock=clock),
        pytest.raises(RootHeld, match="here:1 holds the lease for: gc"),
    ):
        lease.acquire(storage, "gc", run="second", holder="there:2", clock=clock)
    second = lease.acquire(storage, "gc", run="second", holder="there:2", clock=clock)
    second.require()
    clock.sleep(lease.LIFE_SECONDS * 2)
    third = lease.acquire(storage, "gc", run="third", holder="there:3", clock=clock)
    third.require()
    with pytest.raises(LeaseLost):
        second.require()


def test_more_versions_may_be_asked_for_than_an_earlier_pass_has_left(maintained: Checkpoint) -> None:
    collect(maintained.storage, planned(maintained.storage, RetentionPolicy(versions=2, grace_seconds=0)))
    plan = planned(maintained.storage, RetentionPolicy(versions=18, grace_seconds=0))
    assert (plan.floor, plan.findings) == (19, ())


def test_a_commit_that_a_sleeping_driver_writes_again_proves_nothing(maintained: Checkpoint) -> None:
    collect(maintained.storage, planned(maintained.storage))
    ids = tuple((RandomIds().fresh(),) for _ in maintained.stores)
    maintained.storage.create(names.commits(9), logs.encode_commit(logs.CommitLog(0, {0: ids})))
    plan = planned(maintained.storage)
    assert (plan.floor, plan.findings) == (16, ())
    assert rules(plan)[names.commits(9)] is Rule.OLD_LOG


def test_logs_go_oldest_first(maintained: Checkpoint) -> None:
    going = [v.path for v in planned(maintained.storage).deletions if v.path.startswith(f"{names.COMMITS}/")]
    assert going == [names.commits(batch) for batch in range(15)]


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"path": 1}', b"\xff"])
def test_an_announcement_that_cannot_be_read_stops_retention_by_name(
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


# -- checkpoints that Spark writes -------------------------------------------------------------------------------------


@pytest.fixture
def native(maintained: Checkpoint) -> Checkpoint:
    """The same files, with nothing of ours: to who looks it is Spark's, at work."""
    maintained.storage.delete([names.BINDING])
    return maintained


def batches(storage: Storage, folder: str) -> list[int]:
    return sorted(int(path.rpartition("/")[2]) for path in paths(storage, folder))


def test_logs_of_a_checkpoint_of_sparks_are_deleted_below_the_floor_but_for_what_a_start_reads(
    native: Checkpoint, tmp_path: Path
) -> None:
    plan = planned(native.storage, AT_ONCE)
    assert not plan.is_own
    assert (plan.floor, plan.findings) == (16, ())
    found = rules(plan)
    assert (
        {found[names.commits(n)] for n in range(15)} == {found[names.offsets(n)] for n in range(14)} == {Rule.OLD_LOG}
    )
    assert found[names.offsets(14)] is Rule.STARTS, "to start after batch 15, Spark reads the offsets of the one before"
    assert {found[path(n)] for n in range(15, 20) for path in (names.commits, names.offsets)} == {Rule.LOG}
    assert collect(native.storage, plan)
    assert batches(native.storage, names.COMMITS) == list(range(15, 20))
    assert batches(native.storage, names.OFFSETS) == list(range(14, 20))
    base = native.stores[0].changelog(native.versions[15][0])
    assert base in paths(native.storage), "Spark may fall back on the changelog of its snapshot's own version"
    assert native.stores[0].changelog(native.versions[14][0]) not in paths(native.storage)
    for batch in range(15, 20):
        native.assert_right(tmp_path / f"host {batch}", batch)
    again = planned(native.storage, AT_ONCE)
    assert (again.floor, again.findings, again.deletions) == (16, (), []), "a second run has nothing to do"
    more = planned(native.storage, replace(AT_ONCE, versions=12))
    assert (more.floor, more.findings, more.deletions) == (16, (), []), "what is gone is not asked for"


def test_of_a_checkpoint_of_sparks_only_its_logs_of_batches_are_purged(native: Checkpoint) -> None:
    """What sources and sinks log, compacted or not, is theirs; and a name that nobody gives is nobody's to delete."""
    theirs = {
        "sources/0/0",
        "sources/0/9.compact",
        "sources/0/10",
        "_spark_metadata/3",
        "commits/3.compact",
        "offsets/007",
        "offsets/3.bak",
        "offsets/before/3",
        "offsets/.3.tmp",
    }
    for path in theirs:
        native.storage.create(path, b"v1")
    plan = planned(native.storage, AT_ONCE)
    assert {path: rule for path, rule in rules(plan).items() if path in theirs} == dict.fromkeys(
        ("commits/3.compact", "offsets/007", "offsets/3.bak", "offsets/before/3"), Rule.UNKNOWN
    )
    collect(native.storage, plan)
    assert theirs <= {entry.path for entry in native.storage.list("", hidden=True)}


def test_a_checksum_of_hadoops_goes_with_its_log_and_one_that_was_left_goes_later(native: Checkpoint) -> None:
    left, kept = names.hidden_checksum(names.commits(3)), names.hidden_checksum(names.commits(17))
    for path in (left, kept, names.hidden_checksum(names.offsets(2))):
        native.storage.create(path, b"crc")
    native.storage.delete([names.commits(3)])
    native.storage.create(left, b"crc")
    for _ in range(2):  # on a bucket, where nothing takes a checksum with its file, the next run finds it
        collect(native.storage, planned(native.storage, AT_ONCE))
    hidden = {entry.path for folder in ("commits", "offsets") for entry in native.storage.list(folder, hidden=True)}
    assert {path for path in hidden if "/." in path} == {kept}


def test_young_logs_of_a_checkpoint_of_sparks_stay(native: Checkpoint) -> None:
    plan = planned(native.storage, RetentionPolicy(versions=5, grace_seconds=3600))
    assert not [verdict for verdict in plan.logs if verdict.rule.deletes]


def test_without_a_floor_the_logs_of_a_checkpoint_of_sparks_stay(native: Checkpoint) -> None:
    storage = native.storage
    storage.delete([path for path in paths(storage) if path.endswith(".zip")])
    storage.delete([native.stores[0].changelog(native.versions[number][0]) for number in range(1, 21)])
    plan = planned(storage, AT_ONCE)
    assert plan.floor is None
    assert {v.rule for v in plan.logs if v.path.startswith((names.COMMITS, names.OFFSETS))} == {Rule.LOG}


def test_tables_that_spark_may_name_again_stay_and_go_when_it_is_stopped(native: Checkpoint) -> None:
    storage, policy = native.storage, RetentionPolicy(versions=1, grace_seconds=0)
    # Retained by Spark's own count are a hundred versions: so many are not here, and all names count.
    old = native.stores[0].snapshot(native.versions[5][0])
    table = with_a_table_of_its_own(storage, old, by_spark=False)
    gathered = retention.gather(storage, policy, clock=SystemClock())
    at_work, stopped = (rules(retention.plan(gathered, policy, stopped=said)) for said in (False, True))
    assert (at_work[old], at_work[table]) == (Rule.SUPERSEDED, Rule.REUSABLE)
    assert (stopped[old], stopped[table]) == (Rule.SUPERSEDED, Rule.UNNAMED)


def test_tables_since_sparks_newest_snapshot_stay_as_it_may_have_loaded_any_of_them_since(
    native: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("statestore.maintenance.retention.plan"), "RETAINED_VERSIONS", 1)
    storage, policy = native.storage, RetentionPolicy(versions=1, grace_seconds=0)
    of_ours, newest, older = (
        with_a_table_of_its_own(storage, native.stores[0].snapshot(native.versions[number][0]), by_spark=by_spark)
        for number, by_spark in ((15, False), (10, True), (5, True))
    )
    found = rules(planned(storage, policy))
    assert (found[of_ours], found[newest], found[older]) == (Rule.REUSABLE, Rule.REUSABLE, Rule.UNNAMED)


def test_a_table_that_no_snapshot_names_may_be_one_that_spark_is_about_to_name(native: Checkpoint) -> None:
    orphan = f"{native.stores[0].folder}/{names.TABLES}000077-{RandomIds().fresh()}.sst"
    native.storage.create(orphan, b"a table")
    gathered = retention.gather(native.storage, AT_ONCE, clock=SystemClock())
    at_work, stopped = (retention.plan(gathered, AT_ONCE, stopped=said) for said in (False, True))
    assert (rules(at_work)[orphan], rules(stopped)[orphan]) == (Rule.UPLOADED, Rule.UNNAMED)


def test_checksums_go_behind_their_files_and_what_spark_fails_over_is_told(native: Checkpoint) -> None:
    storage, store = native.storage, native.stores[0]
    gone, kept = store.changelog(native.versions[3][0]), store.snapshot(native.versions[20][0])
    for path in (gone, kept):
        storage.create(f"{path}.crc", b"{}")
    storage.create(f"{store.folder}/foo.zip", b"whatever")
    plan = planned(storage)
    assert (rules(plan)[f"{gone}.crc"], rules(plan)[f"{kept}.crc"]) == (Rule.SUPERSEDED, Rule.RESTORES)
    order = [verdict.path for verdict in plan.deletions]
    assert order.index(f"{gone}.crc") == order.index(gone) + 1
    assert rules(plan)[f"{store.folder}/foo.zip"] is Rule.UNKNOWN
    refused, finding = plan.findings
    assert finding.startswith(f"{store.folder}/foo.zip: Spark reads the name as a version and fails")
    assert refused.startswith(
        f"{kept}.crc: lacks what a sidecar holds; Spark rejects the snapshot, and it cannot be a base"
    )
