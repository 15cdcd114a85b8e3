"""Maintenance of an own root in structure V1: it reads confirmed changelogs, and keeps the commits with their
digests."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import VersionNotLoadable
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.contents import rows as contents
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.upkeep import audit, retention, snapshot
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy, FindingKind
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPlan, RetentionPolicy, Rule
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.checkpoints import Checkpoint

POLICY = RetentionPolicy(versions=3, grace_seconds=0)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "root"))


@pytest.fixture
def checkpoint(storage: Storage, tmp_path: Path) -> Checkpoint:
    return Checkpoint(storage, tmp_path / "job", structure=Structure.V1)


def take_snapshots(storage: Storage, scratch: Path, partitions: tuple[int, ...] = (0, 1)) -> list[snapshot.Taken]:
    plan = snapshot.plan(snapshot.gather(storage), snapshot.SnapshotPolicy(), take_all=True)
    return [
        snapshot.execute(storage, action, scratch=scratch, clock=SystemClock(), ids=RandomIds())
        for action in plan.take
        if action.store.partition in partitions
    ]


def planned(storage: Storage) -> RetentionPlan:
    return retention.plan(retention.gather(storage, POLICY, clock=SystemClock()), POLICY)


def collect(storage: Storage) -> None:
    gathered = retention.gather(storage, POLICY, clock=SystemClock())
    plan = retention.plan(gathered, POLICY)
    run = RandomIds().fresh()
    with lease.held(storage, "gc", run=run, holder="a test", clock=SystemClock()) as held:
        done = list(retention.execute(storage, plan, run=run, lease=held, clock=SystemClock()))
    retention.remember(storage, gathered, plan, done)


def replace_changelog(storage: Storage, version: int) -> str:
    """Replace a changelog by a whole one with other changes of the same size, as a late zombie attempt does."""
    path = f"state/0/0/{version}.changelog"
    storage.replace(path, storage.read(f"state/0/0/{version - 1}.changelog"))
    return path


def test_snapshots_contain_confirmed_versions_and_loads_start_from_them(
    checkpoint: Checkpoint, storage: Storage, tmp_path: Path
) -> None:
    for batches in (4, 3):
        checkpoint.grow(batches)
        assert [taken.action.version.version for taken in take_snapshots(storage, tmp_path)] == [
            len(checkpoint.states) - 1
        ] * 2
    checkpoint.assert_snapshots_are_right(tmp_path / "host")
    checkpoint.grow(2)
    for batch in (8, 6, 4, 2):
        checkpoint.assert_right(tmp_path / f"host of {batch}", batch)


def test_no_snapshot_is_taken_of_a_replaced_changelog(checkpoint: Checkpoint, storage: Storage, tmp_path: Path) -> None:
    checkpoint.grow(5)
    replace_changelog(storage, 4)
    with pytest.raises(VersionNotLoadable, match=r"state/0/0/4\.changelog: .* not committed.* batch 4 "):
        take_snapshots(storage, tmp_path)
    assert checkpoint.stores[0] not in catalog.snapshots(storage)
    held = contents.contents_at(storage)
    assert held is not None
    no_rows = contents.Layout({}, "none: any bytes")
    for_reading = {"scratch": tmp_path / "scratch", "clock": SystemClock(), "ids": RandomIds()}
    with (
        pytest.raises(VersionNotLoadable, match="not committed"),
        contents.opened(held, checkpoint.stores[0], no_rows, **for_reading),
    ):
        pass


def test_retention_keeps_the_commit_of_each_base_and_a_new_host_loads_retained_versions(
    checkpoint: Checkpoint, storage: Storage, tmp_path: Path
) -> None:
    checkpoint.grow(4)
    take_snapshots(storage, tmp_path)
    checkpoint.grow(3)
    take_snapshots(storage, tmp_path, partitions=(1,))
    for round_ in range(3):
        checkpoint.grow(1 if round_ else 4)
        collect(storage)
        head = len(checkpoint.states) - 1
        # Store 0 loads from the snapshot of version 4, whose digest is only in this commit.
        commits = sorted(int(entry.path.rpartition("/")[2]) for entry in storage.list(names.COMMITS))
        assert commits == list(range(3, head))
        assert {v.rule for v in planned(storage).logs if v.path == names.commits(3)} == {Rule.RESTORES}
        # Spark also reads the offsets of the batch before the oldest retained one: a claim needs them.
        assert sorted(int(entry.path.rpartition("/")[2]) for entry in storage.list(names.OFFSETS)) == list(
            range(head - 4, head)
        )
        for batch in range(head - 3, head):
            checkpoint.assert_right(tmp_path / f"host {round_} {batch}", batch)
    assert not audit.judge(audit.gather(storage, scratch=tmp_path / "audit"), AuditPolicy(retained_versions=3)).findings
    take_snapshots(storage, tmp_path, partitions=(0,))
    checkpoint.grow(3)
    collect(storage)
    assert min(int(entry.path.rpartition("/")[2]) for entry in storage.list(names.COMMITS)) == 6
    checkpoint.assert_right(tmp_path / "the last host")


def test_a_snapshot_of_an_abandoned_time_line_is_no_base(
    checkpoint: Checkpoint, storage: Storage, tmp_path: Path
) -> None:
    checkpoint.grow(4)
    take_snapshots(storage, tmp_path)
    checkpoint.grow(2)
    take_snapshots(storage, tmp_path)
    # A user rolls the query back to batch 4, and it continues with other rows.
    storage.delete([names.commits(5), names.offsets(5)])
    del checkpoint.versions[6:], checkpoint.states[6:]
    for number in range(3):
        checkpoint.batch({b"counter": b"other %d" % number}, {b"counter": b"another %d" % number})
    checkpoint.assert_right(tmp_path / "new host")
    found = audit.judge(audit.gather(storage)).findings
    assert {finding.file for finding in found} == {store.snapshot(VersionId(6)) for store in checkpoint.stores}
    assert all("belongs to a version that was rolled back" in finding.problem for finding in found)
    collect(storage)
    for batch in (7, 6, 5):
        checkpoint.assert_right(tmp_path / f"host of {batch}", batch)
    take_snapshots(storage, tmp_path)
    checkpoint.assert_snapshots_are_right(tmp_path / "last host")


def test_a_deep_audit_names_a_changelog_whose_bytes_were_not_confirmed_and_no_other(
    checkpoint: Checkpoint, storage: Storage, tmp_path: Path
) -> None:
    checkpoint.grow(8)
    assert not audit.judge(audit.gather(storage, scratch=tmp_path / "audit")).findings
    path = replace_changelog(storage, 5)
    found = audit.judge(audit.gather(storage, scratch=tmp_path / "audit"))
    (finding,) = found.findings
    assert (finding.kind, finding.file) == (FindingKind.CHANGELOG_REPLACED, path)
    assert "does not match the digest in its commit" in finding.problem
    assert finding.meaning.startswith(f"batches 4 to 7 of store {finding.store} cannot be restored")
    assert found.restart.batch == 3
    # And that is so.
    checkpoint.assert_right(tmp_path / "new host", 3)
    for batch in (4, 7):
        with pytest.raises(VersionNotLoadable, match=r"5\.changelog"):
            checkpoint.load(checkpoint.stores[0], checkpoint.versions[batch + 1][0], tmp_path / "new host")


def test_a_commit_whose_digests_contradict_the_metadata_is_named(checkpoint: Checkpoint, storage: Storage) -> None:
    checkpoint.grow(2)
    body = storage.read(names.commits(1))
    assert checkpoint.versions[2][1].digest is not None
    storage.replace(names.commits(1), body.replace(f',["{checkpoint.versions[2][1].digest}"]'.encode(), b""))
    assert {finding.file for finding in audit.judge(audit.gather(storage)).findings} >= {names.commits(1)}
    assert (
        catalog.heads_at(storage, 0)
        .heads[checkpoint.stores[0]]
        .is_same(VersionId(1, digest=checkpoint.versions[1][0].digest))
    )
