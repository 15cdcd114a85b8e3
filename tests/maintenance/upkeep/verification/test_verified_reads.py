"""Retention reads a base in full before it deletes the files that replace it: on disk and on S3, in both structures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep import retention, snapshot
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, DeletionOutcome, RetentionPlan, RetentionPolicy
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import runs
from tests.support.checkpoints import Checkpoint

NEWEST = RetentionPolicy(versions=1, grace_seconds=0)
CLOCK = SystemClock()


@pytest.fixture(scope="module", params=tuple(Structure), ids=lambda structure: structure.value)
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Ten versions, with a snapshot of the fifth, and one of the head with a table more."""
    folder = tmp_path_factory.mktemp("grown")
    made = Checkpoint(open_storage(str(folder / "root")), folder / "job", structure=request.param)
    for _ in range(2):
        made.grow(5)
        take_snapshots(made.storage, folder)
    return made


@pytest.fixture
def checkpoint(grown: Checkpoint, storage: Storage, tmp_path: Path) -> Checkpoint:
    return grown.copied_to(storage, tmp_path / "job")


def take_snapshots(storage: Storage, scratch: Path) -> None:
    for action in snapshot.plan(snapshot.gather(storage), snapshot.SnapshotPolicy(), take_all=True).take:
        snapshot.execute(storage, action, scratch=scratch, clock=CLOCK, ids=RandomIds())


def planned(storage: Storage, policy: RetentionPolicy = NEWEST) -> RetentionPlan:
    return retention.plan(retention.gather(storage, policy, clock=CLOCK, everything=True), policy)


def collected(storage: Storage, policy: RetentionPolicy = NEWEST, *, everything: bool = True) -> list[Deleted]:
    gathered = retention.gather(storage, policy, clock=CLOCK, everything=everything)
    plan = retention.plan(gathered, policy)
    return list(runs.delete(storage, gathered, plan, holder="a test", clock=CLOCK, ids=RandomIds()))


def tables(checkpoint: Checkpoint, partition: int = 0, number: int = -1) -> list[str]:
    """The paths of the tables that a snapshot names."""
    store, version = checkpoint.stores[partition], checkpoint.versions[number][partition]
    metadata = read_snapshot(checkpoint.storage.read(store.snapshot(version)), "").metadata
    return [store.table_file(table.dfs_name) for table in metadata.tables]


def flip(storage: Storage, path: str, place: int | None = None) -> None:
    body = bytearray(storage.read(path))
    body[5 if place is None else place] ^= 0x20
    storage.replace(path, bytes(body))


def state_files(storage: Storage) -> set[str]:
    return {entry.path for entry in storage.list(names.STATE)}


def deleted(steps: list[Deleted]) -> int:
    return sum(step.files for step in steps)


def test_a_flipped_byte_in_a_new_snapshot_deletes_nothing_and_every_row_loads_without_that_snapshot(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    bad = tables(checkpoint)[-1]
    flip(storage, bad)
    before = state_files(storage)
    steps = collected(storage)
    [damaged] = [step for step in steps if step.outcome is DeletionOutcome.DAMAGED]
    assert damaged.store == checkpoint.stores[0]
    assert damaged.detail.startswith(f"{bad} has a block at byte 0 ")
    assert "statekeeper repair ROOT --apply" in damaged.detail
    assert (deleted(steps), state_files(storage)) == (0, before)
    head = checkpoint.versions[-1]
    storage.delete([store.snapshot(version) for store, version in zip(checkpoint.stores, head, strict=True)])
    checkpoint.assert_right(tmp_path / "host")


def test_after_a_damaged_base_the_next_run_keeps_the_needed_files_and_names_the_damaged_one(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    bad = tables(checkpoint)[-1]
    flip(storage, bad)
    collected(storage)
    requests = storage.requests.snapshot()
    plan = planned(storage)
    assert storage.requests.since(requests).bytes_read < sum(entry.size_bytes for entry in storage.list(""))
    [finding] = plan.findings
    assert finding.startswith(f"{bad}: a full read found damage: ")
    assert [store.base and store.base.version for store in plan.stores] == [5, 10]
    assert deleted(collected(storage)) > 0, "the other store's files, and what is older than the fifth version"
    assert planned(storage).deletions == []
    storage.delete([checkpoint.stores[0].snapshot(checkpoint.versions[-1][0])])
    checkpoint.assert_right(tmp_path / "host")


def test_a_new_base_is_read_once_and_not_again_by_the_next_runs(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    plan = planned(storage)
    assert len(plan.reads) == 2
    assert plan.read_bytes == sum(entry.size_bytes for read in plan.reads for entry in read.files) > 0
    steps = collected(storage)
    read = [step for step in steps if step.outcome is DeletionOutcome.READ]
    assert sum(step.read_bytes for step in read) == plan.read_bytes
    assert deleted(steps) > 0
    checkpoint.assert_right(tmp_path / "host")
    record = json.loads(storage.read(names.VERIFIED))
    assert set(record) == {entry.path for read in plan.reads for entry in read.files}
    checkpoint.grow(2)
    assert (planned(storage).reads, planned(storage).findings) == ((), ())
    take_snapshots(storage, tmp_path)
    again = planned(storage)
    old = set(tables(checkpoint, number=10))
    assert {entry.path for entry in again.reads[0].known} == old & set(tables(checkpoint)) != set()
    assert old.isdisjoint(entry.path for entry in again.reads[0].files)
    before = storage.requests.snapshot()
    assert {step.outcome for step in collected(storage)} == {DeletionOutcome.READ, DeletionOutcome.DONE}
    assert storage.requests.since(before).read > 0
    checkpoint.assert_right(tmp_path / "another host")
    assert set(json.loads(storage.read(names.VERIFIED))) <= {entry.path for entry in storage.list("")}


def test_a_file_replaced_after_its_read_is_read_again(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    collected(storage)
    checkpoint.grow(1)
    bad = tables(checkpoint, number=10)[-1]
    flip(storage, bad)
    storage.create(names.pending(1, RandomIds().fresh()), b"{}")  # something to delete
    [read] = planned(storage).reads
    assert bad in {entry.path for entry in read.files}
    assert "has changed since it was read" in read.explained
    assert DeletionOutcome.DAMAGED in {step.outcome for step in collected(storage)}


def test_rocksdb_detects_a_table_in_the_place_of_another(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Two intact files whose contents were swapped: every checksum fits."""
    storage = checkpoint.storage
    one, other = tables(checkpoint)[-1], tables(checkpoint, 1)[-1]
    body = storage.read(other)
    store, version = checkpoint.stores[0], checkpoint.versions[-1][0]
    grow_to(storage, store.snapshot(version), one, len(body))
    storage.replace(one, body)
    steps = collected(storage)
    [damaged] = [step for step in steps if step.outcome is DeletionOutcome.DAMAGED]
    assert "cannot be read by RocksDB" in damaged.detail
    assert deleted(steps) == 0


def grow_to(storage: Storage, zipped: str, table: str, size_bytes: int) -> None:
    """Let the snapshot say another size of a table."""
    found = read_snapshot(storage.read(zipped), zipped)
    name = table.rpartition("/")[2]
    changed = tuple(
        replace(one, size_bytes=size_bytes) if one.dfs_name == name else one for one in found.metadata.tables
    )
    storage.replace(zipped, encode_snapshot(replace(found, metadata=replace(found.metadata, tables=changed))))


def test_a_plan_reads_nothing_and_writes_nothing(checkpoint: Checkpoint) -> None:
    storage = checkpoint.storage
    before = {entry.path for entry in storage.list("")}
    plan = planned(storage)
    assert plan.reads
    assert plan.deletions
    assert {entry.path for entry in storage.list("")} == before


def test_an_unreadable_record_only_causes_reads(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    collected(storage)
    storage.replace(names.VERIFIED, b'{"state/0/0": [')
    checkpoint.grow(5)
    take_snapshots(storage, tmp_path)
    assert {step.outcome for step in collected(storage)} == {DeletionOutcome.READ, DeletionOutcome.DONE}
    checkpoint.assert_right(tmp_path / "host")


def test_entries_of_deleted_files_are_removed_from_the_record(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    for _ in range(2):
        collected(storage)
        checkpoint.grow(9)
        take_snapshots(storage, tmp_path)
    collected(storage, everything=False)
    assert set(json.loads(storage.read(names.VERIFIED))) <= {entry.path for entry in storage.list("")}


def naming(storage: Storage, path: str) -> list[str]:
    """The snapshots that need a file."""
    found = []
    for store, files in catalog.files(storage).items():
        for zipped in map(store.snapshot, files.snapshots):
            try:
                named = read_snapshot(storage.read(zipped), zipped).metadata.tables
            except CorruptFile:
                named = ()
            if path in (zipped, *(store.table_file(table.dfs_name) for table in named)):
                found.append(zipped)
    return found


@pytest.mark.slow
def test_with_any_flipped_byte_retention_keeps_the_head(
    grown: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The head loads before, and after retention at the latest without the snapshots that need the damaged file."""
    source = grown.storage
    targets = [path for partition in range(2) for path in tables(grown, partition)]
    targets += [store.snapshot(v) for store, v in zip(grown.stores, grown.versions[-1], strict=True)]
    cases = [(path, share) for path in targets for share in range(0, 100, 10)]
    lost = []
    for number, (path, share) in enumerate(cases):
        folder = tmp_path_factory.mktemp(f"case{number}")
        case = grown.copied_to(open_storage(str(folder / "root")), folder / "job")
        flip(case.storage, path, len(source.read(path)) * share // 100)
        steps = collected(case.storage)
        if any(step.outcome is DeletionOutcome.DAMAGED for step in steps):
            case.storage.delete(naming(case.storage, path))
        try:
            case.assert_right(folder / "host")
        except Exception as error:
            lost.append((path, share, str(error)))
    print(f"{len(cases)} cases")
    assert lost == []
