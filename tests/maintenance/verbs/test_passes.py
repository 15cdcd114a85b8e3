"""Unattended passes: they obey the mode, and delete nothing while the audit has errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import CorruptFile, RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy
from statekeeper.statestore.maintenance.verbs import health
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Prepared
from statekeeper.statestore.maintenance.verbs.snapshot import Ended, PlannedSnapshots, Snapshots
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.checkpoints import Checkpoint

POLICIES = Policies(SnapshotPolicy(changelogs=4), RetentionPolicy(versions=3, grace_seconds=0.0))
BY = Maintainer("a test", SystemClock(), RandomIds())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Nine versions, with a snapshot of each fourth."""
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job")
    for batches in (4, 4, 1):
        made.grow(batches)
        snapshots(made.storage, tmp_path)
    return made


def snapshots(
    storage: Storage, scratch: Path, policies: Policies = POLICIES
) -> Prepared[PlannedSnapshots, Ended, Snapshots]:
    return verbs.snapshot.unattended(storage, policies, BY, scratch=scratch / "scratch")


def paths(storage: Storage) -> set[str]:
    return {entry.path for entry in storage.list("")}


def test_a_pass_reports_the_reduction_of_restore_debt(tmp_path: Path) -> None:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job")
    made.grow(5)
    prepared = snapshots(made.storage, tmp_path)
    done = verbs.made(prepared)
    assert len(done.taken) == 2
    assert max(prepared.plan.tails.values()) == 5
    assert max(done.tails(prepared.plan).values()) == 0
    made.assert_snapshots_are_right(tmp_path / "host")


def test_an_unreadable_base_fails_the_unattended_run_without_deletions(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    prepared = verbs.retention.plan(storage, POLICIES, clock=BY.clock)
    bad = next(entry.path for entry in prepared.plan.reads[0].files if entry.path.endswith(".sst"))
    body = bytearray(storage.read(bad))
    body[5] ^= 0x20
    storage.replace(bad, bytes(body))
    before = {path for path in paths(storage) if path.startswith(names.STATE)}
    with pytest.raises(CorruptFile, match=r"a block at byte 0 .* that does not match its checksum") as failed:
        verbs.retention.unattended(storage, POLICIES, BY, scratch=tmp_path / "scratch")
    assert bad in str(failed.value)
    assert "statekeeper repair ROOT --apply" in str(failed.value)
    assert {path for path in paths(storage) if path.startswith(names.STATE)} == before
    with pytest.raises(RefusedAsUnsafe, match=r"is corrupt \(read in full\)"):
        verbs.retention.unattended(storage, POLICIES, BY)


def test_actions_that_the_mode_forbids_are_planned_and_not_executed(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(4)
    before = paths(checkpoint.storage)
    done = snapshots(checkpoint.storage, tmp_path, replace(POLICIES, mode=Mode.OBSERVE))
    assert (len(done.plan.plan.take), done.made, done.plan.mode) == (2, None, Mode.OBSERVE)
    kept = verbs.retention.unattended(checkpoint.storage, replace(POLICIES, mode=Mode.SNAPSHOTS), BY)
    assert kept.plan.plan.deletions
    assert kept.made is None
    assert paths(checkpoint.storage) == before


def test_planned_files_are_deleted_and_the_retained_versions_load(checkpoint: Checkpoint, tmp_path: Path) -> None:
    done = verbs.retention.unattended(checkpoint.storage, POLICIES, BY)
    assert sum(step.files for step in verbs.made(done)) == len(done.plan.plan.deletions) > 0
    for batch in (6, 7, 8):
        checkpoint.assert_right(tmp_path / f"host {batch}", batch)


def test_with_any_damage_nothing_is_deleted_and_the_file_is_named(checkpoint: Checkpoint) -> None:
    broken = checkpoint.stores[1].changelog(checkpoint.versions[9][1])
    kept = checkpoint.storage.read(broken)
    checkpoint.storage.delete([broken])
    before = paths(checkpoint.storage)
    with pytest.raises(RefusedAsUnsafe, match=broken):
        verbs.retention.unattended(checkpoint.storage, POLICIES, BY)
    assert paths(checkpoint.storage) == before
    checkpoint.storage.create(broken, kept)
    assert verbs.retention.unattended(checkpoint.storage, POLICIES, BY).made


def test_the_health_of_a_checkpoint_in_figures(checkpoint: Checkpoint) -> None:
    whole = health.look(checkpoint.storage, POLICIES, clock=BY.clock)
    assert (whole.version, whole.stores, whole.longest_tail, whole.errors, whole.worst) == (9, 2, 1, 0, None)
    assert 0 < whole.reclaimable_bytes < whole.bytes
    assert (whole.orphan_files, whole.orphan_bytes, whole.is_clean) == (0, 0, True)
    done = verbs.retention.unattended(checkpoint.storage, POLICIES, BY)
    after = health.look(checkpoint.storage, POLICIES, clock=BY.clock)
    assert after.reclaimable_files == 0
    assert after.reclaimed_bytes == sum(step.size_bytes for step in verbs.made(done))
    broken = checkpoint.stores[0].changelog(checkpoint.versions[9][0])
    checkpoint.storage.delete([broken])
    ill = health.look(checkpoint.storage, POLICIES, clock=BY.clock)
    assert ill.errors == 1
    assert ill.worst is not None
    assert ill.worst.file == broken
    assert not ill.is_clean


def test_orphans_are_files_that_no_committed_version_can_reach(checkpoint: Checkpoint) -> None:
    store, storage = checkpoint.stores[1], checkpoint.storage
    lost, later = (replace(checkpoint.versions[number][1], id=RandomIds().fresh()) for number in (8, 9))
    later = replace(later, version=10)
    table = store.table_file(f"000999-{RandomIds().fresh()}.sst")
    for path in (store.changelog(lost), store.snapshot(lost), table):
        storage.create(path, b"of an attempt that died")
    storage.create(store.changelog(later), b"of an attempt at work")
    found = health.look(storage, POLICIES, clock=BY.clock)
    assert (found.orphan_files, found.orphan_bytes) == (3, 3 * len(b"of an attempt that died"))
    storage.create(store.snapshot(later), b"who knows what it names")
    assert health.look(storage, POLICIES, clock=BY.clock).orphan_files == 2, "the table may be one of its"
