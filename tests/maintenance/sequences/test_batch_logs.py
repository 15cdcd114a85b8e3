"""Every verb on a root whose changelogs are members of batch logs, on disk and on S3, against the model."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, VersionNotLoadable
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import batch_log, names
from statekeeper.statestore.maintenance.copies import unpack
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rollback import repair, undo
from statekeeper.statestore.maintenance.upkeep import audit, retention
from statekeeper.statestore.maintenance.upkeep.retention import (
    Deleted,
    DeletionOutcome,
    RetentionPlan,
    RetentionPolicy,
    Rule,
)
from statekeeper.statestore.storage import Entry, Storage, StorageSpec, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.snapshots import take

AT_ONCE = RetentionPolicy(versions=3, grace_seconds=0)


@pytest.fixture
def checkpoint(storage: Storage, tmp_path: Path) -> Checkpoint:
    made = Checkpoint(storage, tmp_path / "job", partitions=3, in_batch_logs=True)
    made.grow(6)
    return made


def logs(storage: Storage) -> list[int]:
    return sorted(names.parse_batch_log(entry.path)[0] for entry in storage.list(names.BATCH_LOGS))  # type: ignore[index]


def planned(storage: Storage, policy: RetentionPolicy = AT_ONCE) -> RetentionPlan:
    return retention.plan(retention.gather(storage, policy, clock=SystemClock()), policy)


def collect(storage: Storage, plan: RetentionPlan) -> list[Deleted]:
    run = RandomIds().fresh()
    with lease.held(storage, "gc", run=run, holder="a test", clock=SystemClock()) as held:
        return list(retention.execute(storage, plan, run=run, lease=held, clock=SystemClock()))


def findings(storage: Storage, scratch: Path | None = None) -> list[audit.Finding]:
    facts = audit.gather(storage, scratch=scratch)
    return list(audit.judge(facts, audit.AuditPolicy()).findings)


def test_a_batch_of_three_stores_is_one_object_and_each_version_loads(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert logs(checkpoint.storage) == [1, 2, 3, 4, 5, 6]
    assert not [entry for entry in checkpoint.storage.list(names.STATE) if entry.path.endswith(".changelog")]
    for batch in range(6):
        checkpoint.assert_right(tmp_path / f"host {batch}", batch)


def test_a_host_without_local_copies_reads_each_object_once(storage_spec: StorageSpec, tmp_path: Path) -> None:
    made = Checkpoint(open_storage(storage_spec), tmp_path / "job", partitions=8, in_batch_logs=True)
    made.grow(10)
    made.storage = open_storage(storage_spec)
    made.assert_right(tmp_path / "host")
    assert made.storage.requests.snapshot().read == 10


def test_maintenance_is_clean_and_a_snapshot_at_the_head_needs_no_batch_log(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    assert findings(checkpoint.storage) == []
    assert findings(checkpoint.storage, tmp_path / "deep") == []
    take(checkpoint.storage, tmp_path)
    checkpoint.storage.delete([entry.path for entry in checkpoint.storage.list(names.BATCH_LOGS)])
    checkpoint.assert_right(tmp_path / "host")


def test_retention_deletes_an_object_when_no_store_needs_it(checkpoint: Checkpoint, tmp_path: Path) -> None:
    take(checkpoint.storage, tmp_path)
    checkpoint.grow(4)
    take(checkpoint.storage, tmp_path)
    checkpoint.grow(2)
    plan = planned(checkpoint.storage)
    assert (plan.floor, {one.base.version for one in plan.stores if one.base}) == (10, {10})
    done = collect(checkpoint.storage, plan)
    assert DeletionOutcome.CHANGED not in {step.outcome for step in done}
    assert logs(checkpoint.storage) == [10, 11, 12]
    for batch in (9, 10, 11):
        checkpoint.assert_right(tmp_path / f"host {batch}", batch)
    assert findings(checkpoint.storage) == []
    assert planned(checkpoint.storage).deletions == []


def test_one_store_without_a_snapshot_holds_the_objects_that_it_needs(checkpoint: Checkpoint, tmp_path: Path) -> None:
    take(checkpoint.storage, tmp_path)
    checkpoint.grow(4)
    take(checkpoint.storage, tmp_path)
    laggard = checkpoint.stores[2]
    at_head = catalog.files(checkpoint.storage)[laggard].snapshots
    checkpoint.storage.delete([at_head[max(at_head)].path])
    checkpoint.grow(2)
    plan = planned(checkpoint.storage)
    assert {one.store: one.base.version for one in plan.stores if one.base} == {
        checkpoint.stores[0]: 10,
        checkpoint.stores[1]: 10,
        laggard: 6,
    }
    kept = plan.batch_logs
    assert kept is not None
    # Versions 7 to 10 are needed by one of three stores, 11 and 12 by all.
    assert (kept.files, kept.laggard, kept.of_laggard) == (6, laggard, 4)
    objects = {entry.path: checkpoint.storage.read(entry.path) for entry in checkpoint.storage.list(names.BATCH_LOGS)}
    heads = [batch_log.parse_head(data, path) for path, data in objects.items()]
    members = [head.members for head in heads if head.version > 6]
    assert kept.size_bytes == sum(head.size_bytes for head in heads if head.version > 6)
    needed = [one.length for log in members for (store, v), one in log.items() if store == laggard or v.version > 10]
    assert kept.live_bytes == sum(needed) < kept.size_bytes
    collect(checkpoint.storage, plan)
    assert logs(checkpoint.storage) == [7, 8, 9, 10, 11, 12]
    for batch in (9, 10, 11):
        checkpoint.assert_right(tmp_path / f"host {batch}", batch)


def test_batches_that_are_committed_while_retention_gathers_keep_their_objects(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Checkpoint(storage, tmp_path / "job", in_batch_logs=True)
    made.grow(4)
    listed, is_first = storage.list, iter([True])

    def list_late(prefix: str, *, hidden: bool = False) -> list[Entry]:
        found = listed(prefix, hidden=hidden)
        if prefix == names.BATCH_LOGS and next(is_first, False):
            # The run stalls. Meanwhile the query, a snapshot and another retention run continue.
            made.grow(1)
            take(storage, tmp_path)
            made.grow(3)
            collect(storage, planned(storage))
            take(storage, tmp_path)
            made.grow(1)
        return found

    monkeypatch.setattr(storage, "list", list_late)
    plan = planned(storage)
    assert made.versions[-1][0].version == 9
    assert plan.floor == 6
    collect(storage, plan)
    for batch in (6, 7, 8):
        made.assert_right(tmp_path / f"host {batch}", batch)


def test_a_base_that_changes_after_the_plan_keeps_every_object(checkpoint: Checkpoint, tmp_path: Path) -> None:
    take(checkpoint.storage, tmp_path)
    checkpoint.grow(4)
    plan = planned(checkpoint.storage)
    assert any(names.parse_batch_log(verdict.path) for verdict in plan.deletions)
    store, base = plan.stores[1].store, plan.stores[1].base
    assert base is not None
    read = collect(checkpoint.storage, replace(plan, stores=(), logs=()))
    assert {step.outcome for step in read} == {DeletionOutcome.READ}
    plan = planned(checkpoint.storage)
    checkpoint.storage.replace(store.snapshot(base), b"damaged")
    before = logs(checkpoint.storage)
    done = collect(checkpoint.storage, plan)
    assert DeletionOutcome.CHANGED in {step.outcome for step in done}
    assert logs(checkpoint.storage) == before


def test_the_object_of_a_dead_attempt_is_deleted_below_the_floor(checkpoint: Checkpoint, tmp_path: Path) -> None:
    dead = names.batch_log(3, batch_log.tag_of(RandomIds().fresh()))
    tag = names.parse_batch_log(dead)[1]  # type: ignore[index]
    checkpoint.storage.create(dead, batch_log.encode(3, tag, {}, {}))
    take(checkpoint.storage, tmp_path)
    checkpoint.grow(4)
    assert {v.path: v.rule for v in planned(checkpoint.storage).verdicts}[dead] is Rule.OLD_LOG


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "empty", "foreign"])
def test_a_damaged_object_is_named_by_the_audit_and_by_a_load(
    checkpoint: Checkpoint, tmp_path: Path, storage_spec: StorageSpec, damage: str
) -> None:
    storage = checkpoint.storage
    path = next(e.path for e in storage.list(names.BATCH_LOGS) if names.parse_batch_log(e.path)[0] == 4)  # type: ignore[index]
    data = storage.read(path)
    if damage == "missing":
        storage.delete([path])
    else:
        bad = {
            "truncated": data[:-20],
            "flipped": data[:40] + bytes([data[40] ^ 1]) + data[41:],
            "empty": b"",
            "foreign": b"PK\3\4" + bytes(200),
        }
        storage.replace(path, bad[damage])
    checkpoint.storage = open_storage(storage_spec)
    found = findings(checkpoint.storage)
    assert path in {finding.file for finding in found}
    assert min(finding.severity for finding in found) is audit.Severity.ERROR
    with pytest.raises((VersionNotLoadable, CorruptFile), match=names.BATCH_LOGS):
        checkpoint.assert_right(tmp_path / "host")
    checkpoint.assert_right(tmp_path / "older host", 2)
    assert not [v for v in planned(checkpoint.storage).deletions if names.parse_batch_log(v.path)]


def test_one_flipped_byte_in_a_member_is_found_by_a_deep_audit(
    checkpoint: Checkpoint, tmp_path: Path, storage_spec: StorageSpec
) -> None:
    storage = checkpoint.storage
    path = next(e.path for e in storage.list(names.BATCH_LOGS) if names.parse_batch_log(e.path)[0] == 4)  # type: ignore[index]
    data = storage.read(path)
    storage.replace(path, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    checkpoint.storage = open_storage(storage_spec)
    (finding,) = findings(checkpoint.storage, tmp_path / "deep")
    assert finding.file == path
    assert finding.severity is audit.Severity.ERROR


def test_a_repair_quarantines_the_objects_of_rolled_back_batches_and_an_undo_restores_them(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    storage.delete([names.commits(5), names.offsets(5), names.commits(4), names.offsets(4)])
    plan = repair.plan(repair.gather(storage), None)
    assert len(plan.actions) == 2, "one object for each batch"
    run = RandomIds().fresh()
    list(repair.execute(storage, plan, run=run))
    assert logs(storage) == [1, 2, 3, 4]
    assert findings(storage) == []
    checkpoint.assert_right(tmp_path / "host", 3)
    list(undo.execute(storage, run, undo.plan(undo.gather(storage, run))))
    assert logs(storage) == [1, 2, 3, 4, 5, 6]


def test_an_unpacked_file_takes_the_place_of_a_lost_member(
    checkpoint: Checkpoint, tmp_path: Path, storage_spec: StorageSpec
) -> None:
    storage = checkpoint.storage
    for store, version in zip(checkpoint.stores, checkpoint.versions[4], strict=True):
        storage.create(store.changelog(version), storage.read(store.changelog(version)))
    storage.delete([batch_log.path_of(checkpoint.versions[4][0]) or ""])
    shutil.rmtree(tmp_path / "job")
    checkpoint.storage = open_storage(storage_spec)
    checkpoint.assert_right(tmp_path / "host")
    assert findings(checkpoint.storage) == []


def test_unpack_writes_each_changelog_that_a_load_needs_once(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    take(storage, tmp_path)
    checkpoint.grow(2)
    plan = unpack.plan(unpack.gather(storage))
    assert {action.path for action in plan.actions} == {
        store.changelog(versions[number])
        for versions in checkpoint.versions[7:]
        for number, store in enumerate(checkpoint.stores)
    }
    assert len(list(unpack.execute(storage, plan))) == 6
    assert unpack.plan(unpack.gather(storage)).actions == ()
    assert unpack.plan(unpack.gather(storage, batch=2)).actions != ()
    storage.delete([entry.path for entry in storage.list(names.BATCH_LOGS)])
    checkpoint.assert_right(tmp_path / "host")


def test_unpack_of_a_lost_object_writes_nothing(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    log = batch_log.path_of(checkpoint.versions[3][0])
    assert log is not None
    storage.delete([log])
    plan = unpack.plan(unpack.gather(storage))
    assert plan.missing == (log,)
    with pytest.raises(ObjectMissing, match=log):
        list(unpack.execute(storage, plan))
    assert not [entry for entry in storage.list(names.STATE) if entry.path.endswith(".changelog")]
