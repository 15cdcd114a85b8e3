"""The plan of a repair, its guards, and the verb."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.cli import main
from statekeeper.statestore.contents import quiet
from statekeeper.statestore.format import names
from statekeeper.statestore.format.checksum import checksum
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.maintenance.rollback import repair
from statekeeper.statestore.maintenance.rollback.repair import Quarantine, RepairPlan, RepairReason, Spark
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.maintainers import MAINTAINER
from tests.support.repairs import apply, as_spark_4_0, contents, planned, rewind, roll_back
from tests.support.structures import without_ids


def sidecar_of(body: bytes) -> bytes:
    said = checksum([body])
    return json.dumps({"algorithm": "CRC32C", "value": said.value, "mainFileSize": said.size_bytes}).encode()


def test_an_intact_checkpoint_needs_no_repair(checkpoint: Checkpoint) -> None:
    for spark in (None, Spark.V4_1, Spark.V4_2, Spark.V4_3):
        assert planned(checkpoint.storage, spark) == RepairPlan(())


def test_files_of_rolled_back_batches_are_quarantined_and_can_be_restored(
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


def test_in_v1_a_snapshot_directly_after_the_head_is_quarantined_because_a_load_would_use_it(
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


def test_in_v1_a_zip_without_a_version_is_quarantined_because_it_prevents_loads(
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
    assert {f.file for f in audit.judge(audit.gather(storage)).findings if f"repair {storage.url}" in f.action} == {
        with_id,
        foreign,
    }
    run = apply(storage, plan)
    assert audit.judge(audit.gather(storage)).findings == ()
    assert set(roll_back(storage, run)) == {with_id, foreign}
    assert contents(storage) == before


def test_files_of_a_started_batch_stay(checkpoint: Checkpoint) -> None:
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


def test_a_native_snapshot_with_a_repaired_header_is_still_recognized_as_native(checkpoint: Checkpoint) -> None:
    """Spark may name the tables of its snapshot again, so retention must not treat the snapshot as Statekeeper's."""
    storage = checkpoint.storage
    ours, *sparks = as_spark_4_0(storage)
    for path in sparks:
        storage.replace(path, encode_snapshot(replace(read_snapshot(storage.read(path), path), is_ours=False)))
    apply(storage, planned(storage, Spark.V4_2))
    assert [path for path in (ours, *sparks) if read_snapshot(storage.read(path), path).is_ours] == [ours]


def test_hidden_checksums_of_deleted_logs_are_quarantined_and_can_be_restored(checkpoint: Checkpoint) -> None:
    """Hadoop keeps them on local disks only; elsewhere they block no log."""
    storage = checkpoint.storage
    rewind(storage, 5)
    for action in planned(storage).actions:
        storage.delete([action.path])
    blocking = {"commits/.6.crc", "commits/.7.crc", "offsets/.6.crc"}
    for path in (*blocking, "commits/.2.crc", "commits/.x.crc"):
        storage.create(path, f"checksum of {path}".encode())
    before = with_hidden(storage)
    is_local = storage.url.startswith("file:")
    plan = planned(storage)
    assert plan.actions == tuple(Quarantine(path, RepairReason.LOG_IN_THE_WAY) for path in sorted(blocking) if is_local)
    assert {f.file for f in audit.judge(audit.gather(storage)).findings if f"repair {storage.url}" in f.action} == {
        action.path for action in plan.actions
    }
    if not is_local:
        return
    run = apply(storage, plan)
    assert with_hidden(storage) == {path: body for path, body in before.items() if path not in blocking}
    assert audit.judge(audit.gather(storage)).findings == ()
    assert planned(storage) == RepairPlan(())
    assert set(roll_back(storage, run)) == blocking
    assert with_hidden(storage) == before
    assert not storage.list(names.QUARANTINE, hidden=True)


def with_hidden(storage: Storage) -> dict[str, bytes]:
    return {
        entry.path: storage.read(entry.path)
        for entry in storage.list("", hidden=True)
        if not entry.path.startswith(f"{names.CONTROL}/")
    }


def test_a_hidden_checksum_beside_its_log_stays(checkpoint: Checkpoint) -> None:
    for path in ("commits/.7.crc", "offsets/.7.crc"):
        checkpoint.storage.create(path, b"checksum")
    assert planned(checkpoint.storage) == RepairPlan(())


def statekeeper(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["repair", *arguments], obj=MAINTAINER)


def test_the_verb_shows_the_plan_requires_confirmation_and_can_undo_the_repair(
    eight_versions: Checkpoint, tmp_path: Path
) -> None:
    root = str(tmp_path / "root")
    storage = eight_versions.copied_to(open_storage(root), tmp_path).storage
    rewind(storage, 5)
    as_spark_4_0(storage)
    before = contents(storage)
    asked = statekeeper(root)
    assert (asked.exit_code, contents(storage)) == (3, before)
    assert "add --for-spark with the release that will run the query" in asked.output
    assert statekeeper(root, "--for-spark", "4.2", "--apply").exit_code == 13
    assert contents(storage) == before
    done = statekeeper(root, "--for-spark", "4.2", "--apply", "--confirm-stopped", "--output", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["done"] == len(told["actions"]) > 0
    assert {action["reason"] for action in told["actions"]} == {"header", "dead_time_line"}
    assert statekeeper(root, "--for-spark", "4.2").output.startswith("nothing to repair")
    assert statekeeper(root, "--undo", "../../state", "--confirm-stopped").exit_code == 13
    assert statekeeper(root, "--undo", told["run"], "--confirm-stopped").exit_code == 0
    assert contents(storage) == before


def test_a_mode_that_forbids_the_repair_is_obeyed(eight_versions: Checkpoint, tmp_path: Path) -> None:
    storage = eight_versions.copied_to(open_storage(str(tmp_path / "root")), tmp_path).storage
    rewind(storage, 5)
    before = {entry.path for entry in storage.list("")}
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text('[roots.orders]\nurl = "root"\nmode = "observe"\n')
    arguments = ["--config", str(configuration), "repair", "orders", "--apply", "--confirm-stopped"]
    refused = CliRunner().invoke(main, arguments)
    assert (refused.exit_code, {entry.path for entry in storage.list("")}) == (13, before)


def test_files_committed_during_the_listing_are_not_taken_for_rolled_back_batches(
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


def test_if_commits_of_known_offsets_are_missing_nothing_is_quarantined(checkpoint: Checkpoint) -> None:
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
def test_an_active_query_is_not_repaired(checkpoint: Checkpoint, path: str) -> None:
    storage = checkpoint.storage

    class Works(SystemClock):
        def sleep(self, seconds: float) -> None:
            storage.replace(path, b"of the next batch")

    with pytest.raises(RefusedAsUnsafe, match=rf"{path}: changed while this command watched the checkpoint for 5 s"):
        quiet.require_stopped(storage, confirmed=True, clock=Works())


def test_a_query_whose_maintenance_deletes_is_not_repaired(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    old = checkpoint.stores[0].changelog(checkpoint.versions[1][0])

    class Works(SystemClock):
        def sleep(self, seconds: float) -> None:
            storage.delete([old])

    with pytest.raises(RefusedAsUnsafe, match=rf"{old}: changed while this command watched the checkpoint for 5 s"):
        quiet.require_stopped(storage, confirmed=True, clock=Works())


def test_an_idle_query_counts_as_stopped_if_the_user_confirms_it(checkpoint: Checkpoint) -> None:
    quiet.require_stopped(checkpoint.storage, confirmed=True, clock=SleeplessClock(0.0))
    with pytest.raises(RefusedAsUnsafe, match="whether it is idle or stopped"):
        quiet.require_stopped(checkpoint.storage, confirmed=False, clock=SleeplessClock(0.0))
