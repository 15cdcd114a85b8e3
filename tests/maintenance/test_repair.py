"""What keeps Spark from starting is taken out of its way by a plan, and put back by another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statestore.cli import main
from statestore.clock import RandomIds, SystemClock
from statestore.errors import RefusedAsUnsafe, StorageError
from statestore.format import names
from statestore.format.checksum import checksum
from statestore.format.names import VersionId
from statestore.format.snapshot import encode_snapshot, read_snapshot
from statestore.maintenance import audit, lease, quiet, repair, retention, runs, snapshot, undo
from statestore.maintenance.audit import AuditPolicy
from statestore.maintenance.repair import Quarantine, RepairPlan, RepairReason, Spark
from statestore.maintenance.retention import Rule
from statestore.storage import Kind, Storage, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.faulty_storage import FaultyStorage, SimulatedCrash, crash_matrix
from tests.support.maintainers import MAINTAINER
from tests.support.structures import without_ids

Contents = dict[str, bytes]


@pytest.fixture(scope="module")
def eight_versions(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """With snapshots of the fourth and the eighth; Spark's, as far as one can see."""
    folder = tmp_path_factory.mktemp("eight")
    made = Checkpoint(open_storage(str(folder / "root")), folder / "job")
    for _ in range(2):
        made.grow(4)
        for action in snapshot.plan(snapshot.gather(made.storage), snapshot.SnapshotPolicy(), take_all=True).take:
            snapshot.execute(made.storage, action, scratch=folder, clock=SystemClock(), ids=RandomIds())
    made.storage.delete([names.BINDING])
    return made


@pytest.fixture
def checkpoint(eight_versions: Checkpoint, storage: Storage, tmp_path: Path) -> Checkpoint:
    return eight_versions.copied_to(storage, tmp_path / "job")


def rewind(storage: Storage, to_batch: int) -> None:
    """What people do to go back: delete the newest logs."""
    storage.delete(f"{folder}/{batch}" for folder in ("commits", "offsets") for batch in range(to_batch + 1, 8))


def as_spark_4_0(storage: Storage) -> list[str]:
    """Give every snapshot the header that Spark 4.0 writes; their paths."""
    paths = [entry.path for entry in storage.list(names.STATE) if entry.path.endswith(".zip")]
    for path in paths:
        found = read_snapshot(storage.read(path), path)
        storage.replace(path, encode_snapshot(replace(found, metadata=replace(found.metadata, header="v2"))))
    return paths


def sidecar_of(body: bytes) -> bytes:
    said = checksum([body])
    return json.dumps({"algorithm": "CRC32C", "value": said.value, "mainFileSize": said.size_bytes}).encode()


def contents(storage: Storage) -> Contents:
    """Of every file but those about the runs themselves."""
    of_runs = (f"{names.LEASES}/", f"{names.HISTORY}/", f"{names.QUARANTINE}/", names.RETAINED)
    return {e.path: storage.read(e.path) for e in storage.list("") if not e.path.startswith(of_runs)}


def planned(storage: Storage, spark: Spark | None = None) -> RepairPlan:
    return repair.plan(repair.gather(storage), spark)


def apply(storage: Storage, plan: RepairPlan, *, clock: SystemClock | SleeplessClock | None = None) -> str:
    """Do what it says; the run's id."""
    run = RandomIds().fresh()
    for _ in runs.repair(storage, plan, run=run, holder="a test", clock=clock or SystemClock()):
        pass
    return run


def roll_back(storage: Storage, run: str) -> list[str]:
    return list(runs.undo_repair(storage, run, run=RandomIds().fresh(), holder="a test", clock=SystemClock()))


def put_back(storage: Storage, run: str) -> list[str]:
    """As `roll_back`, and no record of it."""
    return list(undo.execute(storage, run, undo.plan(undo.gather(storage, run))))


def test_a_checkpoint_that_nothing_is_wrong_with_has_nothing_to_repair(checkpoint: Checkpoint) -> None:
    for spark in (None, Spark.V4_1, Spark.V4_2, Spark.V4_3):
        assert planned(checkpoint.storage, spark) == RepairPlan(())


def test_files_of_batches_that_were_taken_back_are_put_aside_and_can_be_put_back(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    rewind(storage, 3)
    before = contents(storage)
    plan = planned(storage)
    expected = {
        path
        for partition, store in enumerate(checkpoint.stores)
        for number in (5, 6, 7, 8)
        for path in (
            store.changelog(checkpoint.versions[number][partition]),
            store.snapshot(checkpoint.versions[number][partition]),
        )
        if path in before
    }
    assert {action.path for action in plan.actions} == expected
    assert len(expected) == 2 * (4 + 1)
    run = apply(storage, plan)
    assert contents(storage) == {path: body for path, body in before.items() if path not in expected}
    assert planned(storage) == RepairPlan(())
    del checkpoint.versions[5:], checkpoint.states[5:]
    checkpoint.assert_right(tmp_path / "host")
    assert set(roll_back(storage, run)) == expected
    assert contents(storage) == before
    assert not storage.list(names.QUARANTINE)


def test_in_structure_v1_a_snapshot_right_behind_the_head_goes_as_well_as_a_load_would_take_it(
    storage: Storage,
) -> None:
    checkpoint = Checkpoint(storage, Path("unused"), partitions=1)
    [store] = checkpoint.stores
    for number in range(1, 4):
        storage.create(names.commits(number - 1), b'v1\n{"nextBatchWatermarkMs":0}')
    storage.create(names.offsets(3), b"of the batch that makes version 4")
    for number in (3, 4, 5):
        storage.create(store.changelog(VersionId(number)), b"changes")
        storage.create(store.snapshot(VersionId(number)), b"a zip")
    plan = planned(storage)
    assert plan.actions == (
        Quarantine(store.snapshot(VersionId(4)), RepairReason.UNCOMMITTED),
        Quarantine(store.changelog(VersionId(5)), RepairReason.ROLLED_BACK_FILES),
        Quarantine(store.snapshot(VersionId(5)), RepairReason.ROLLED_BACK_FILES),
    )


def test_in_structure_v1_a_zip_without_a_number_goes_as_no_version_is_loaded_beside_it(
    eight_versions: Checkpoint, tmp_path: Path
) -> None:
    made = eight_versions.copied_to(open_storage(str(tmp_path / "root")), tmp_path / "job")
    storage, [store, _] = made.storage, made.stores
    with_id = store.snapshot(made.versions[8][0])
    body = storage.read(with_id)
    foreign = f"{store.folder}/copy of 8.zip"
    storage.create(foreign, b"of a person who made a copy")
    assert planned(storage).actions == (), "structure V2 takes no notice of it"
    without_ids(made)
    storage.create(with_id, body)
    before = contents(storage)
    plan = planned(storage)
    assert [action.path for action in plan.actions] == sorted([with_id, foreign])
    assert {f.file for f in audit.judge(audit.gather(storage)).findings if "repair ROOT" in f.action} == {
        with_id,
        foreign,
    }
    run = apply(storage, plan)
    assert audit.judge(audit.gather(storage)).findings == ()
    assert set(roll_back(storage, run)) == {with_id, foreign}
    assert contents(storage) == before


def test_what_a_batch_that_was_begun_has_written_is_in_nobodys_way(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    offsets = storage.read(names.offsets(4))
    rewind(storage, 3)
    of_five = {store.changelog(checkpoint.versions[5][n]) for n, store in enumerate(checkpoint.stores)}
    assert of_five <= {action.path for action in planned(storage).actions}
    storage.create(names.offsets(4), offsets)
    assert not of_five & {action.path for action in planned(storage).actions}


def test_snapshots_of_spark_4_0_get_the_header_that_the_next_spark_reads(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    zips = as_spark_4_0(storage)
    storage.create(f"{zips[0]}.crc", sidecar_of(storage.read(zips[0])))
    before = contents(storage)
    asked = planned(storage)
    assert asked.actions == ()
    assert asked.asks is not None
    assert planned(storage, Spark.V4_0) == RepairPlan(())
    plan = planned(storage, Spark.V4_2)
    assert [action.path for action in plan.actions] == sorted(zips)
    run = apply(storage, plan)
    for path in zips:
        old, new = (read_snapshot(body, path) for body in (before[path], storage.read(path)))
        assert (old.metadata.header, new.metadata.header) == ("v2", "v1")
        assert (new.files, replace(new.metadata, header="v2")) == (old.files, old.metadata)
    assert storage.stat(f"{zips[0]}.crc") is None
    checkpoint.assert_right(tmp_path / "host")
    roll_back(storage, run)
    assert contents(storage) == before


def test_a_snapshot_of_sparks_stays_recognised_as_its_own_when_its_header_is_mended(checkpoint: Checkpoint) -> None:
    """What Spark has written it may name again: retention must not take such a snapshot for one of ours."""
    storage = checkpoint.storage
    ours, *sparks = as_spark_4_0(storage)
    for path in sparks:
        storage.replace(path, encode_snapshot(replace(read_snapshot(storage.read(path), path), is_ours=False)))
    apply(storage, planned(storage, Spark.V4_2))
    assert [path for path in (ours, *sparks) if read_snapshot(storage.read(path), path).is_ours] == [ours]


def test_what_was_written_again_since_is_not_overwritten_by_an_undo(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    rewind(storage, 3)
    run = apply(storage, planned(storage))
    path = checkpoint.stores[0].changelog(checkpoint.versions[8][0])
    storage.create(path, b"of the new time line")
    with pytest.raises(RefusedAsUnsafe, match="was written again after the repair"):
        roll_back(storage, run)
    assert storage.read(path) == b"of the new time line"
    assert storage.stat(names.quarantine(run, path)) is not None


def test_a_run_that_nobody_knows_cannot_be_taken_back(checkpoint: Checkpoint) -> None:
    with pytest.raises(RefusedAsUnsafe, match="has no quarantined files"):
        roll_back(checkpoint.storage, RandomIds().fresh())


def aggressively_collected(storage: Storage, *, days: float = 0, stopped: bool = True) -> retention.RetentionPlan:
    """What a run that looks at everything found, and has deleted: by a clock that is so many days ahead, without grace."""
    clock = SleeplessClock(SystemClock().now_seconds() + days * 86_400)
    policy = retention.RetentionPolicy(versions=1, grace_seconds=0)
    gathered = retention.gather(storage, policy, clock=clock, everything=True)
    plan = retention.plan(gathered, policy, stopped=stopped)
    for _ in runs.delete(storage, gathered, plan, holder="a test", clock=clock, ids=RandomIds()):
        pass
    return plan


def test_what_was_put_aside_keeps_its_tables_from_retention_and_can_be_put_back_after_it(
    checkpoint: Checkpoint,
) -> None:
    storage = checkpoint.storage
    rewind(storage, 3)
    before = contents(storage)
    run = apply(storage, planned(storage))
    tables = {path for path in before if path.endswith(".sst")}
    lonely = [store.table_file(f"000999-{RandomIds().fresh()}.sst") for store in checkpoint.stores]
    for path in lonely:
        storage.create(path, b"of an upload that died")
    plan = aggressively_collected(storage)
    assert {v.path for v in plan.verdicts if v.rule is Rule.UNNAMED} == set(lonely), "it takes what nobody names"
    kept = {v.path for v in plan.verdicts if v.rule is Rule.QUARANTINE}
    assert kept & tables, "these are named by what was quarantined alone"
    assert kept - tables == {entry.path for entry in storage.list(names.QUARANTINE)}
    told = audit.judge(audit.gather(storage), AuditPolicy(retained_versions=1))
    assert {store.orphan_files for store in told.stores} == {0}, "nor does the audit call it an orphan"
    roll_back(storage, run)
    now = contents(storage)
    now.pop(names.VERIFIED)
    assert now == {path: body for path, body in before.items() if path in now}
    gone = {path for path in before.keys() - now.keys() if path.startswith(f"{names.STATE}/")}
    assert all(names.parse_store_path(path)[1].version.version < 4 for path in gone), "what is below the base"


def test_what_was_put_aside_after_retention_was_planned_keeps_its_tables(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    rewind(storage, 3)
    before = contents(storage)
    zips = {store.snapshot(v[n]) for n, store in enumerate(checkpoint.stores) for v in checkpoint.versions[8:]}
    # As if what is planned had not seen the zips: they are taken away by hand, and are there again when it is executed.
    storage.delete(zips)
    policy = retention.RetentionPolicy(versions=1, grace_seconds=0)
    gathered = retention.gather(storage, policy, clock=SystemClock(), everything=True)
    plan = retention.plan(gathered, policy, stopped=True)
    assert any(verdict.rule is Rule.UNNAMED for verdict in plan.verdicts)
    for path in zips:
        storage.create(path, before[path])
    run = apply(storage, planned(storage))
    list(runs.delete(storage, gathered, plan, holder="a test", clock=SystemClock(), ids=RandomIds()))
    assert zips <= set(roll_back(storage, run))


def test_after_a_month_what_was_put_aside_goes_and_in_the_run_after_that_its_tables(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    rewind(storage, 3)
    run = apply(storage, planned(storage))
    aside_then = {entry.path for entry in storage.list(names.QUARANTINE)}
    assert not {v.path for v in aggressively_collected(storage, days=29).deletions} & aside_then
    plan = aggressively_collected(storage, days=31)
    assert {v.path for v in plan.verdicts if v.rule is Rule.OLD_QUARANTINE} == aside_then
    assert next(v.path for v in plan.deletions if v.rule is Rule.OLD_QUARANTINE) == names.quarantine_position(run)
    assert storage.list(names.QUARANTINE) == []
    assert any(v.path.endswith(".sst") and v.rule is Rule.QUARANTINE for v in plan.verdicts)
    plan = aggressively_collected(storage, days=31)
    assert any(v.path.endswith(".sst") and v.rule is Rule.UNNAMED for v in plan.verdicts)
    with pytest.raises(RefusedAsUnsafe, match="has no quarantined files"):
        roll_back(storage, run)


def test_while_retention_takes_what_was_put_aside_no_half_of_it_is_put_back(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    rewind(storage, 3)
    run = apply(storage, planned(storage))
    before = contents(storage)
    storage.delete([names.quarantine_position(run)])
    with pytest.raises(RefusedAsUnsafe, match="is missing: the query position at the repair is unknown"):
        roll_back(storage, run)
    assert contents(storage) == before


def test_where_a_zip_that_was_put_aside_cannot_be_read_no_table_of_its_store_goes(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    rewind(storage, 3)
    store = checkpoint.stores[0]
    path = store.snapshot(checkpoint.versions[8][0])
    storage.replace(path, b"no zip")
    run = apply(storage, planned(storage))
    plan = aggressively_collected(storage)
    assert not [v for v in plan.deletions if v.path.startswith(f"{store.folder}/SSTs/")]
    assert (
        f"the tables of {names.quarantine(run, path)} are unknown; no table of the store is deleted"
        in plan.findings[-1]
    )
    roll_back(storage, run)
    assert storage.read(path) == b"no zip"


def test_a_snapshot_whose_tables_are_gone_is_not_put_back_and_nothing_else_is(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    rewind(storage, 3)
    store = checkpoint.stores[1]
    path = store.snapshot(checkpoint.versions[8][1])
    table = read_snapshot(storage.read(path), path).metadata.tables[0].dfs_name
    run = apply(storage, planned(storage))
    storage.delete([store.table_file(table)])
    before = contents(storage)
    with pytest.raises(
        RefusedAsUnsafe, match=rf"{path}: cannot be restored, because its SST file .*{table} is missing"
    ):
        roll_back(storage, run)
    assert contents(storage) == before


def test_once_the_query_has_gone_on_a_repair_is_not_taken_back(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    commits = {batch: storage.read(names.commits(batch)) for batch in (3, 4)}
    rewind(storage, 3)
    run = apply(storage, planned(storage))
    before = contents(storage)
    storage.create(names.commits(4), commits[4])
    with pytest.raises(RefusedAsUnsafe, match=r"ran after batch 3, but now the newest batch is 4"):
        roll_back(storage, run)
    storage.delete([names.commits(4)])
    storage.replace(names.commits(3), commits[3].replace(b"0,", b"7,", 1))
    with pytest.raises(RefusedAsUnsafe, match=r"the newest batch is 3 or its commit was replaced"):
        roll_back(storage, run)
    storage.replace(names.commits(3), commits[3])
    assert contents(storage) == before
    assert roll_back(storage, run)


def test_whatever_request_of_taking_a_repair_back_fails_running_it_again_finishes_it(
    eight_versions: Checkpoint, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    roots = copies(eight_versions, tmp_path)
    undisturbed = next(roots)
    before = contents(undisturbed)
    run = apply(undisturbed, planned(undisturbed, Spark.V4_2))
    rehearsal = FaultyStorage(undisturbed)
    put_back(rehearsal, run)
    cases = crash_matrix([request for request in rehearsal.trace if request.kind not in (Kind.READ, Kind.LIST)])
    for request, fault in cases:
        storage = next(roots)
        run = apply(storage, planned(storage, Spark.V4_2))
        faulty = FaultyStorage(storage, {request.number: fault})
        with suppress(SimulatedCrash, StorageError):
            put_back(faulty, run)
        assert len(faulty.trace) > request.number, f"{request} was not reached"
        if storage.list(names.QUARANTINE):
            put_back(storage, run)
        assert contents(storage) == before, (request, fault)
        assert not storage.list(names.QUARANTINE)
    record_property("crash_matrix_cases", len(cases))
    assert len(cases) >= 20


def copies(checkpoint: Checkpoint, folder: Path) -> Iterator[Storage]:
    """Checkpoints that are rewound and whose snapshots have the other header."""
    number = 0
    while True:
        twin = checkpoint.copied_to(open_storage(str(folder / f"case-{number}")), folder)
        rewind(twin.storage, 5)
        as_spark_4_0(twin.storage)
        yield twin.storage
        number += 1


def test_whatever_request_of_a_repair_fails_running_it_again_ends_well_and_all_of_it_can_be_taken_back(
    eight_versions: Checkpoint, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    roots = copies(eight_versions, tmp_path)
    undisturbed = next(roots)
    before = contents(undisturbed)
    rehearsal = FaultyStorage(undisturbed)
    apply(rehearsal, planned(rehearsal, Spark.V4_2))
    expected = contents(undisturbed)
    assert expected != before
    cases = crash_matrix(rehearsal.trace)
    for request, fault in cases:
        storage = next(roots)
        faulty = FaultyStorage(storage, {request.number: fault})
        with suppress(SimulatedCrash, StorageError):
            apply(faulty, planned(faulty, Spark.V4_2))
        assert len(faulty.trace) > request.number, f"{request} was not reached"
        # The dead run's lease is waited for.
        clock = SleeplessClock(SystemClock().now_seconds() + lease.LIFE_SECONDS)
        apply(storage, planned(storage, Spark.V4_2), clock=clock)
        assert contents(storage) == expected, (request, fault)
        for run in sorted({names.parse_quarantined(e.path)[0] for e in storage.list(names.QUARANTINE)}):
            put_back(storage, run)
        assert contents(storage) == before, (request, fault)
        assert not storage.list(names.QUARANTINE)
    record_property("crash_matrix_cases", len(cases))
    assert len(cases) >= 40


# -- the verb ----------------------------------------------------------------------------------------------------------


def statekeeper(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["repair", *arguments], obj=MAINTAINER)


def test_a_person_sees_the_plan_says_that_the_query_is_stopped_and_can_take_it_back(
    eight_versions: Checkpoint, tmp_path: Path
) -> None:
    root = str(tmp_path / "root")
    storage = eight_versions.copied_to(open_storage(root), tmp_path).storage
    rewind(storage, 5)
    as_spark_4_0(storage)
    before = contents(storage)
    asked = statekeeper(root)
    assert (asked.exit_code, contents(storage)) == (3, before)
    assert "set --for-spark to the release that restarts the query" in asked.output
    assert statekeeper(root, "--for-spark", "4.2", "--apply").exit_code == 13
    assert contents(storage) == before
    done = statekeeper(root, "--for-spark", "4.2", "--apply", "--confirm-stopped", "--output", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["done"] == len(told["actions"]) > 0
    assert {action["reason"] for action in told["actions"]} == {"header", "dead_time_line"}
    assert statekeeper(root, "--for-spark", "4.2").output == "nothing to repair\n"
    assert statekeeper(root, "--undo", "../../state", "--confirm-stopped").exit_code == 13
    assert statekeeper(root, "--undo", told["run"], "--confirm-stopped").exit_code == 0
    assert contents(storage) == before


def test_where_a_mode_is_configured_that_forbids_it_nothing_is_repaired(
    eight_versions: Checkpoint, tmp_path: Path
) -> None:
    storage = eight_versions.copied_to(open_storage(str(tmp_path / "root")), tmp_path).storage
    rewind(storage, 5)
    before = {entry.path for entry in storage.list("")}
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text('[roots.orders]\nurl = "root"\nmode = "observe"\n')
    arguments = ["--config", str(configuration), "repair", "orders", "--apply", "--confirm-stopped"]
    refused = CliRunner().invoke(main, arguments)
    assert (refused.exit_code, {entry.path for entry in storage.list("")}) == (13, before)


def test_what_is_committed_while_the_files_are_listed_is_not_taken_for_files_of_batches_that_were_taken_back(
    checkpoint: Checkpoint,
) -> None:
    storage = checkpoint.storage
    commits = {batch: storage.read(names.commits(batch)) for batch in (5, 6, 7)}
    storage.delete(names.commits(batch) for batch in commits)

    class Slow:
        """Lists `state/` for so long that batches are committed meanwhile."""

        def list(self, prefix: str, **how: bool) -> object:
            found = storage.list(prefix, **how)
            for batch, body in commits.items():
                storage.create(names.commits(batch), body)
            return found

        def __getattr__(self, name: str) -> object:
            return getattr(storage, name)

    assert repair.plan(repair.gather(Slow()), None) == RepairPlan(())


def test_where_commits_are_lost_that_the_offsets_know_of_nothing_is_quarantined(checkpoint: Checkpoint) -> None:
    checkpoint.storage.delete(names.commits(batch) for batch in (5, 6, 7))
    plan = planned(checkpoint.storage, Spark.V4_2)
    assert plan.actions == ()
    assert "offsets/7 exists, but the newest commit is batch 4: if commits are lost, restore them" in (plan.asks or "")


@pytest.mark.parametrize(
    "path",
    [
        "offsets/8",
        "commits/7",
        "state/0/1/9.changelog",
        "state/0/1/.9.changelog.1f.tmp",
        "state/0/0/SSTs/000009-1f.sst",
    ],
)
def test_a_query_that_begins_or_commits_a_batch_or_writes_its_state_is_not_repaired(
    checkpoint: Checkpoint, path: str
) -> None:
    storage = checkpoint.storage

    class Works(SystemClock):
        def sleep(self, seconds: float) -> None:
            storage.replace(path, b"of the next batch")

    with pytest.raises(
        RefusedAsUnsafe, match=rf"{path}: changed within 5 s: the query or another maintainer is running"
    ):
        quiet.require_stopped(storage, confirmed=True, clock=Works())


def test_a_query_whose_maintenance_deletes_is_not_repaired(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    old = checkpoint.stores[0].changelog(checkpoint.versions[1][0])

    class Works(SystemClock):
        def sleep(self, seconds: float) -> None:
            storage.delete([old])

    with pytest.raises(
        RefusedAsUnsafe, match=rf"{old}: changed within 5 s: the query or another maintainer is running"
    ):
        quiet.require_stopped(storage, confirmed=True, clock=Works())


def test_a_query_of_which_nothing_changes_is_taken_for_stopped_when_a_person_says_so(checkpoint: Checkpoint) -> None:
    quiet.require_stopped(checkpoint.storage, confirmed=True, clock=SleeplessClock(0.0))
    with pytest.raises(RefusedAsUnsafe, match="an idle query looks like a stopped one"):
        quiet.require_stopped(checkpoint.storage, confirmed=False, clock=SleeplessClock(0.0))
