"""Retention of checkpoints that Spark writes: its logs, tables and checksum files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep import retention
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy, Rule
from statekeeper.statestore.storage import Storage
from tests.support.checkpoints import Checkpoint
from tests.support.retention import AT_ONCE, collect, paths, planned, rules
from tests.support.snapshots import with_a_table_of_its_own


def batches(storage: Storage, folder: str) -> list[int]:
    return sorted(int(path.rpartition("/")[2]) for path in paths(storage, folder))


def test_native_logs_below_the_floor_are_deleted_except_those_that_a_start_reads(
    native: Checkpoint, tmp_path: Path
) -> None:
    plan = planned(native.storage, AT_ONCE)
    assert plan.origin is Origin.NATIVE
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


def test_only_the_batch_logs_of_a_native_checkpoint_are_purged(native: Checkpoint) -> None:
    """Logs of sources and sinks belong to them, compacted or not, and files with unknown names are never deleted."""
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


def test_hadoops_checksum_is_deleted_with_its_log_or_in_a_later_run(native: Checkpoint) -> None:
    left, kept = names.hidden_checksum(names.commits(3)), names.hidden_checksum(names.commits(17))
    for path in (left, kept, names.hidden_checksum(names.offsets(2))):
        native.storage.create(path, b"crc")
    native.storage.delete([names.commits(3)])
    native.storage.create(left, b"crc")
    for _ in range(2):  # on a bucket, where nothing takes a checksum with its file, the next run finds it
        collect(native.storage, planned(native.storage, AT_ONCE))
    hidden = {entry.path for folder in ("commits", "offsets") for entry in native.storage.list(folder, hidden=True)}
    assert {path for path in hidden if "/." in path} == {kept}


def test_recent_native_logs_stay(native: Checkpoint) -> None:
    plan = planned(native.storage, RetentionPolicy(versions=5, grace_seconds=3600))
    assert not [verdict for verdict in plan.logs if verdict.rule.deletes]


def test_without_a_floor_native_logs_stay(native: Checkpoint) -> None:
    storage = native.storage
    storage.delete([path for path in paths(storage) if path.endswith(".zip")])
    storage.delete([native.stores[0].changelog(native.versions[number][0]) for number in range(1, 21)])
    plan = planned(storage, AT_ONCE)
    assert plan.floor is None
    assert {v.rule for v in plan.logs if v.path.startswith((names.COMMITS, names.OFFSETS))} == {Rule.LOG}


def test_tables_that_a_running_spark_may_name_again_stay_until_it_is_stopped(native: Checkpoint) -> None:
    storage, policy = native.storage, RetentionPolicy(versions=1, grace_seconds=0)
    # Spark retains a hundred versions. This checkpoint has fewer, so Spark may name each table again.
    old = native.stores[0].snapshot(native.versions[5][0])
    table = with_a_table_of_its_own(storage, old, by_spark=False)
    gathered = retention.gather(storage, policy, clock=SystemClock())
    at_work, stopped = (rules(retention.plan(gathered, policy, stopped=said)) for said in (False, True))
    assert (at_work[old], at_work[table]) == (Rule.SUPERSEDED, Rule.REUSABLE)
    assert (stopped[old], stopped[table]) == (Rule.SUPERSEDED, Rule.UNNAMED)


def test_tables_newer_than_sparks_newest_snapshot_stay_because_spark_may_have_loaded_them(native: Checkpoint) -> None:
    storage, policy = native.storage, RetentionPolicy(versions=1, grace_seconds=0)
    of_ours, newest, older = (
        with_a_table_of_its_own(storage, native.stores[0].snapshot(native.versions[number][0]), by_spark=by_spark)
        for number, by_spark in ((15, False), (10, True), (5, True))
    )
    gathered = retention.gather(storage, policy, clock=SystemClock())
    found = rules(retention.plan(gathered, policy, spark_retains=1))
    assert (found[of_ours], found[newest], found[older]) == (Rule.REUSABLE, Rule.REUSABLE, Rule.UNNAMED)


def test_a_snapshot_that_no_commit_names_is_deleted_and_its_tables_when_spark_is_stopped(native: Checkpoint) -> None:
    """As a task of a switchover leaves it that ends after the rollback and the next switchover. It may name tables of its
    base, which Spark remembers: so they stay while Spark is running."""
    storage, store = native.storage, native.stores[0]
    surplus = store.snapshot(replace(native.versions[18][0], id=RandomIds().fresh()))
    storage.create(surplus, storage.read(store.snapshot(native.versions[15][0])))
    table = with_a_table_of_its_own(storage, surplus, by_spark=False)
    plan = planned(storage)
    assert (rules(plan)[surplus], rules(plan)[table]) == (Rule.DEAD_BRANCH, Rule.REUSABLE)
    collect(storage, plan)
    assert surplus not in paths(storage)
    gathered = retention.gather(storage, AT_ONCE, clock=SystemClock())
    collect(storage, retention.plan(gathered, AT_ONCE, stopped=True))
    assert table not in paths(storage)


def test_a_table_without_a_snapshot_stays_because_spark_may_name_it_next(native: Checkpoint) -> None:
    orphan = f"{native.stores[0].folder}/{names.TABLES}000077-{RandomIds().fresh()}.sst"
    native.storage.create(orphan, b"a table")
    gathered = retention.gather(native.storage, AT_ONCE, clock=SystemClock())
    at_work, stopped = (retention.plan(gathered, AT_ONCE, stopped=said) for said in (False, True))
    assert (rules(at_work)[orphan], rules(stopped)[orphan]) == (Rule.UPLOADED, Rule.UNNAMED)


def test_checksums_are_deleted_after_their_files_and_names_that_stop_spark_are_reported(native: Checkpoint) -> None:
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
    assert finding.startswith(f"{store.folder}/foo.zip: Spark reads the name as a version number and fails")
    assert refused.startswith(
        f"{kept}.crc: has a missing or invalid field; Spark rejects the snapshot, and it cannot be a base"
    )
