"""A retention pass that examines only stores that can have changed: same deletions, far fewer requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.records.history import History, PlannedSnapshot
from statekeeper.statestore.maintenance.upkeep import retention, snapshot
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, RetentionFacts, RetentionPolicy, last_pass
from statekeeper.statestore.maintenance.verbs.as_json import upkeep as as_json
from statekeeper.statestore.storage import Kind, Storage, open_storage
from tests.support import runs
from tests.support.checkpoints import Checkpoint
from tests.support.faulty_storage import FaultyStorage

POLICY = RetentionPolicy(versions=5, grace_seconds=0)
CLOCK = SystemClock()


@pytest.fixture
def checkpoint(storage: Storage, tmp_path: Path) -> Checkpoint:
    return Checkpoint(storage, tmp_path / "job", partitions=4)


def collect(storage: Storage) -> tuple[RetentionFacts, list[Deleted]]:
    """Run retention like `statekeeper gc --apply`."""
    gathered = retention.gather(storage, POLICY, clock=CLOCK)
    planned = retention.plan(gathered, POLICY)
    return gathered, list(runs.delete(storage, gathered, planned, holder="a test", clock=CLOCK, ids=RandomIds()))


def take_snapshots(storage: Storage, scratch: Path, *partitions: int) -> None:
    """Of the stores of some partitions, as `statekeeper snapshot` does."""
    plan = snapshot.plan(snapshot.gather(storage), snapshot.SnapshotPolicy(), take_all=True)
    chosen = [action for action in plan.take if action.store.partition in partitions]
    with runs.recorded(storage, "snapshot", RandomIds().fresh(), map(as_json.of_action, chosen), CLOCK):
        for action in chosen:
            snapshot.execute(storage, action, scratch=scratch, clock=CLOCK, ids=RandomIds())


def looked_at(gathered: RetentionFacts) -> list[int]:
    return [chain.store.partition for chain in gathered.chains]


def test_only_stores_with_a_new_snapshot_or_one_that_the_floor_reached_are_examined(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    checkpoint.grow(8)
    take_snapshots(storage, tmp_path, 0, 1, 2, 3)
    checkpoint.grow(2)
    first, _ = collect(storage)
    assert looked_at(first) == [0, 1, 2, 3]
    again, done = collect(storage)
    assert (looked_at(again), done) == ([], []), "nothing has changed"
    checkpoint.grow(1)
    take_snapshots(storage, tmp_path, 2)
    gathered, _ = collect(storage)
    assert looked_at(gathered) == [2]
    # The floor becomes 9: beyond the snapshots of version 8 that all have.
    checkpoint.grow(2)
    gathered, done = collect(storage)
    assert looked_at(gathered) == [0, 1, 2, 3]
    assert sum(step.files for step in done if step.store is not None) > 0
    for batch in range(8, 13):
        checkpoint.assert_right(tmp_path / f"host-{batch}", batch)


def test_partial_passes_delete_the_same_files_as_a_full_pass(tmp_path: Path) -> None:
    left = []
    for name, everything in (("in parts", False), ("everything", True)):
        checkpoint = Checkpoint(open_storage(str(tmp_path / name / "root")), tmp_path / name / "job", partitions=4)
        storage = checkpoint.storage
        for number in range(14):
            checkpoint.grow(3)
            take_snapshots(storage, tmp_path, number % 4, (number + 1) % 4)
            if everything:
                storage.delete([names.RETAINED])
            collect(storage)
            checkpoint.assert_right(tmp_path / name / f"host-{number}", max(0, 3 * number - 1))
        storage.delete([names.RETAINED])
        collect(storage)
        of_state = (entry.path for entry in storage.list(names.STATE))
        # Ids and tables' names are chance; versions and kinds are not.
        files = [path for path in of_state if path.endswith((".changelog", ".zip"))]
        left.append(sorted((path.partition("_")[0], path.rpartition(".")[2]) for path in files))
    assert left[0] == left[1]


def test_if_the_floor_rises_beyond_the_examined_versions_all_stores_are_examined(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.grow(8)
    take_snapshots(checkpoint.storage, tmp_path, 0, 1, 2, 3)
    collect(checkpoint.storage)
    checkpoint.grow(6)
    gathered, _ = collect(checkpoint.storage)
    assert gathered.since is None
    assert looked_at(gathered) == [0, 1, 2, 3]


def test_an_unreadable_record_is_ignored(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(8)
    take_snapshots(checkpoint.storage, tmp_path, 0, 1, 2, 3)
    collect(checkpoint.storage)
    for damage in (b"", b"{", b"[1]", b'{"verified": [1], "waiting": [], "plans": []}', b"\xff"):
        checkpoint.storage.replace(names.RETAINED, damage)
        assert last_pass.read(checkpoint.storage) is None
        assert retention.gather(checkpoint.storage, POLICY, clock=CLOCK).since is None


def test_a_damaged_due_store_causes_a_full_pass_and_holds_the_floor(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    checkpoint.grow(8)
    take_snapshots(storage, tmp_path, 0, 1, 2, 3)
    checkpoint.grow(4)
    take_snapshots(storage, tmp_path, 1)
    collect(storage)
    take_snapshots(storage, tmp_path, 0)
    storage.delete([checkpoint.stores[0].snapshot(checkpoint.versions[8][0])])
    storage.delete([checkpoint.stores[0].changelog(checkpoint.versions[9][0])])
    checkpoint.grow(1)
    gathered = retention.gather(storage, POLICY, clock=CLOCK)
    assert gathered.since is None
    planned = retention.plan(gathered, POLICY)
    assert planned.findings
    assert planned.floor is None or planned.floor < gathered.wanted_floor


def test_a_running_snapshot_keeps_its_store_due(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    checkpoint.grow(8)
    take_snapshots(storage, tmp_path, 0, 1, 2, 3)
    checkpoint.grow(1)
    collect(storage)
    plan = [
        PlannedSnapshot(store=StorePath(0, 3), version=VersionId(9), reason="asked", explained="requested").encode()
    ]
    with runs.recorded(storage, "snapshot", RandomIds().fresh(), plan, CLOCK):
        for _ in range(2):
            gathered = retention.gather(storage, POLICY, clock=CLOCK)
            assert looked_at(gathered) == [3]
            retention.remember(storage, gathered, retention.plan(gathered, POLICY), [])


def test_a_pass_with_nothing_to_do_lists_no_store(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(8)
    take_snapshots(checkpoint.storage, tmp_path, 0, 1, 2, 3)
    collect(checkpoint.storage)
    seen = FaultyStorage(checkpoint.storage)
    assert looked_at(retention.gather(seen, POLICY, clock=CLOCK)) == []
    assert [
        request for request in seen.trace if request.path.startswith(names.STATE) and request.kind is Kind.LIST
    ] == []


def test_an_unreadable_record_of_planned_snapshots_causes_a_full_pass(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(8)
    take_snapshots(checkpoint.storage, tmp_path, 0, 1, 2, 3)
    collect(checkpoint.storage)
    History.begin(checkpoint.storage, "snapshot", RandomIds().fresh(), CLOCK).plan([])
    [newest] = last_pass.snapshot_plans(checkpoint.storage.list(names.HISTORY)) - last_pass.settled_plans(
        checkpoint.storage.list(names.HISTORY)
    )
    checkpoint.storage.replace(newest, b"{")
    assert retention.gather(checkpoint.storage, POLICY, clock=CLOCK).since is None
