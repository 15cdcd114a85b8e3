"""Sidecars that match no snapshot: no snapshot is published with one or is a base, and `repair` quarantines them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.executors import Executor, LocalExecutor
from statekeeper.statestore.maintenance.rollback import repair
from statekeeper.statestore.maintenance.rollback.repair import Quarantine, RepairReason
from statekeeper.statestore.maintenance.upkeep import audit, retention, snapshot
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy, FindingKind, Severity
from statekeeper.statestore.maintenance.upkeep.retention import DeletionOutcome, RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.snapshot import SkipReason, SnapshotPolicy
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import runs
from tests.support.checkpoints import Checkpoint
from tests.support.structures import as_sparks

NEWEST = RetentionPolicy(versions=1, grace_seconds=0)
CLOCK = SystemClock()
A_SIDECAR = json.dumps({"algorithm": "CRC32C", "value": 7, "mainFileSize": 7}).encode()
"""As an executor leaves it that died before it wrote the zip."""


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A query of Spark's in structure V2: ten versions, with a snapshot of the fifth."""
    folder = tmp_path_factory.mktemp("grown")
    made = Checkpoint(open_storage(str(folder / "root")), folder / "job")
    made.grow(5)
    for action in snapshot.plan(snapshot.gather(made.storage), SnapshotPolicy(), take_all=True).take:
        snapshot.execute(made.storage, action, scratch=folder, clock=CLOCK, ids=RandomIds())
    made.grow(5)
    return as_sparks(made)


@pytest.fixture
def checkpoint(grown: Checkpoint, tmp_path: Path) -> Checkpoint:
    return grown.copied_to(open_storage(str(tmp_path / "root")), tmp_path / "job")


def sidecar(checkpoint: Checkpoint, number: int = -1) -> str:
    return names.sidecar(checkpoint.stores[0].snapshot(checkpoint.versions[number][0]))


def planned(storage: Storage) -> snapshot.SnapshotPlan:
    return snapshot.plan(snapshot.gather(storage, at_head=True), SnapshotPolicy(), take_all=True)


def take_all(storage: Storage, scratch: Path) -> list[snapshot.Taken]:
    return [
        snapshot.execute(storage, action, scratch=scratch, clock=CLOCK, ids=RandomIds())
        for action in planned(storage).take
    ]


def collect(storage: Storage) -> list[retention.Deleted]:
    gathered = retention.gather(storage, NEWEST, clock=CLOCK, everything=True)
    plan = retention.plan(gathered, NEWEST, stopped=True)
    return list(runs.delete(storage, gathered, plan, holder="a test", clock=CLOCK, ids=RandomIds()))


def repaired(storage: Storage, *, deep: Executor | None = None) -> tuple[str, list[tuple[str, RepairReason]]]:
    plan, run = repair.plan(repair.gather(storage, deep=deep), None), RandomIds().fresh()
    done = runs.repair(storage, plan, run=run, holder="a test", clock=CLOCK)
    return run, [(action.path, action.reason) for action in done if isinstance(action, Quarantine)]


def contents(storage: Storage) -> dict[str, bytes]:
    return {entry.path: storage.read(entry.path) for entry in storage.list(names.STATE)}


def findings(storage: Storage) -> list[audit.Finding]:
    return list(audit.judge(audit.gather(storage), AuditPolicy(retained_versions=1)).findings)


def test_no_snapshot_is_taken_beside_a_stray_sidecar_and_repair_makes_room(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    storage.create(sidecar(checkpoint), A_SIDECAR)
    before = contents(storage)
    plan = planned(storage)
    assert [action.store for action in plan.take] == checkpoint.stores[1:]
    [left] = plan.leave
    assert (left.store, left.reason) == (checkpoint.stores[0], SkipReason.SIDECAR)
    assert left.reason.is_finding
    assert sidecar(checkpoint) in left.explained
    assert "statekeeper repair ROOT --apply" in left.explained
    run, done = repaired(storage)
    assert done == [(sidecar(checkpoint), RepairReason.STRAY_SIDECAR)]
    list(runs.undo_repair(storage, run, run=RandomIds().fresh(), holder="a test", clock=CLOCK))
    assert contents(storage) == before
    repaired(storage)
    assert len(take_all(storage, tmp_path)) == 2
    assert findings(storage) == []
    collect(storage)
    checkpoint.assert_right(tmp_path / "host")


def test_a_sidecar_that_appears_while_the_snapshot_is_made_stops_it(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    [action] = [one for one in planned(storage).take if one.store == checkpoint.stores[0]]
    storage.create(sidecar(checkpoint), A_SIDECAR)
    with pytest.raises(RefusedAsUnsafe, match="is a checksum file without its snapshot"):
        snapshot.execute(storage, action, scratch=tmp_path, clock=CLOCK, ids=RandomIds())
    assert storage.stat(sidecar(checkpoint).removesuffix(names.SIDECAR)) is None


def test_a_snapshot_with_a_wrong_sidecar_is_no_base_of_retention(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """An earlier release published the snapshot although a stray sidecar existed."""
    storage = checkpoint.storage
    take_all(storage, tmp_path)
    storage.create(sidecar(checkpoint), A_SIDECAR)
    plan = retention.plan(retention.gather(storage, NEWEST, clock=CLOCK, everything=True), NEWEST)
    assert [store.base and store.base.version for store in plan.stores] == [5, 10]
    [finding] = plan.findings
    assert finding.startswith(f"{sidecar(checkpoint)}: has size 7 bytes")
    [found] = findings(storage)
    assert (found.kind, found.severity, found.file) == (
        FindingKind.SIDECAR_AT_ODDS,
        Severity.ERROR,
        sidecar(checkpoint),
    )
    assert f"statekeeper repair {storage.url} --apply" in found.action
    collect(storage)
    storage.delete([checkpoint.stores[0].snapshot(checkpoint.versions[-1][0])])
    checkpoint.assert_right(tmp_path / "host")


def test_repair_quarantines_the_wrong_sidecar_of_an_intact_snapshot(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    take_all(storage, tmp_path)
    storage.create(sidecar(checkpoint), A_SIDECAR)
    assert repaired(storage)[1] == [(sidecar(checkpoint), RepairReason.REFUSED)]
    assert findings(storage) == []
    assert {step.outcome for step in collect(storage)} == {DeletionOutcome.READ, DeletionOutcome.DONE}
    checkpoint.assert_snapshots_are_right(tmp_path / "host")


def test_a_snapshot_with_a_wrong_hidden_checksum_of_a_table_is_no_base(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    [taken] = [one for one in take_all(storage, tmp_path) if one.action.store == checkpoint.stores[0]]
    table = checkpoint.stores[0].table_file(taken.sent_tables[-1])
    hidden = names.hidden_checksum(table)
    storage.create(hidden, b"crc\0\0\0\2\0" + bytes(64))
    steps = collect(storage)
    [damaged] = [step for step in steps if step.outcome is DeletionOutcome.DAMAGED]
    assert damaged.detail.startswith(f"{table} does not match {hidden} from byte 0 on: Spark rejects the file")
    assert sum(step.files for step in steps) == 0
    assert repaired(storage)[1] == [(sidecar(checkpoint).removesuffix(names.SIDECAR), RepairReason.DAMAGED)]
    take_all(storage, tmp_path)
    storage.delete([hidden])
    assert {step.outcome for step in collect(storage)} == {DeletionOutcome.READ, DeletionOutcome.DONE}
    checkpoint.assert_snapshots_are_right(tmp_path / "host")


def test_the_plain_audit_reports_a_stray_sidecar_that_is_retained(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    assert findings(storage) == []
    storage.create(sidecar(checkpoint), A_SIDECAR)
    [found] = findings(storage)
    assert (found.kind, found.severity, found.file) == (
        FindingKind.SIDECAR_STRAY,
        Severity.WARNING,
        sidecar(checkpoint),
    )
    assert f"statekeeper repair {storage.url} --apply" in found.action


def test_repair_quarantines_a_damaged_snapshot_with_its_sidecar_and_undo_restores_both(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    take_all(storage, tmp_path)
    zipped = sidecar(checkpoint).removesuffix(names.SIDECAR)
    storage.replace(zipped, storage.read(zipped)[:-30])
    storage.create(sidecar(checkpoint), A_SIDECAR)
    before = contents(storage)
    run, done = repaired(storage)
    assert done == [(zipped, RepairReason.DAMAGED), (sidecar(checkpoint), RepairReason.DAMAGED)]
    assert findings(storage) == []
    list(runs.undo_repair(storage, run, run=RandomIds().fresh(), holder="a test", clock=CLOCK))
    assert contents(storage) == before
    repaired(storage)
    assert len(take_all(storage, tmp_path)) == 1, "under the same name"
    checkpoint.assert_snapshots_are_right(tmp_path / "host")


def test_gc_or_a_deep_repair_finds_a_flipped_byte_and_the_snapshot_is_taken_again(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    [taken] = [one for one in take_all(storage, tmp_path) if one.action.store == checkpoint.stores[0]]
    bad = checkpoint.stores[0].table_file(taken.sent_tables[-1])
    body = bytearray(storage.read(bad))
    body[5] ^= 0x20
    storage.replace(bad, bytes(body))
    assert (findings(storage), repaired(storage)[1]) == ([], []), "the names and sizes are right"
    zipped = sidecar(checkpoint).removesuffix(names.SIDECAR)
    deep = repair.plan(repair.gather(storage, deep=LocalExecutor(clock=CLOCK, scratch=tmp_path / "deep")), None)
    assert [action.path for action in deep.actions] == [zipped]
    assert DeletionOutcome.DAMAGED in {step.outcome for step in collect(storage)}
    [found] = findings(storage)
    assert (found.kind, found.severity, found.file) == (FindingKind.TABLE_UNREADABLE, Severity.ERROR, bad)
    run, done = repaired(storage)
    assert done == [(zipped, RepairReason.DAMAGED)]
    list(runs.undo_repair(storage, run, run=RandomIds().fresh(), holder="a test", clock=CLOCK))
    repaired(storage)
    assert findings(storage) == []
    take_all(storage, tmp_path)
    assert {step.outcome for step in collect(storage)} == {DeletionOutcome.READ, DeletionOutcome.DONE}
    checkpoint.assert_snapshots_are_right(tmp_path / "host")
