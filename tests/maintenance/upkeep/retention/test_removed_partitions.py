"""Retention of the files of partitions that a rescale removed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.upkeep import retention as verb
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy, Rule
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import retention, runs
from tests.support.keyed_roots import KeyedRoot
from tests.support.rescales import all_rows, rescale
from tests.support.rewinds import rewound
from tests.support.twins import clean
from tests.support.unpacked import unpacked

NEWEST = RetentionPolicy(versions=1, grace_seconds=0, quarantine_seconds=0)
NATIVE = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"
IN_ONE_OPERATOR = (4, 2)
"""The number of partitions before and after the rescale."""


@pytest.fixture(scope="session", params=[False, True], ids=["stores", "batch"])
def rescaled(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> KeyedRoot:
    before, after = IN_ONE_OPERATOR
    folder = tmp_path_factory.mktemp("rescaled")
    storage = open_storage(str(folder / "root"))
    root = KeyedRoot(storage, folder, partitions=before, key_groups=16, in_batch_logs=request.param)
    root.grow(2)
    retention.take_snapshots(storage, folder)
    root.grow(1)
    rescale(storage, after, folder)
    return root


@pytest.fixture
def root(rescaled: KeyedRoot, tmp_path: Path) -> KeyedRoot:
    """A root of which a rescale has removed two of four partitions, and whose job has not continued."""
    return rescaled.copied_to(open_storage(str(tmp_path / "root")), tmp_path)


def rules(storage: Storage, policy: RetentionPolicy = NEWEST) -> Counter[Rule]:
    """The rules of the files of removed partitions."""
    planned = retention.planned(storage, policy)
    return Counter(verdict.rule for one in planned.removed for verdict in one.files)


def collected(root: KeyedRoot, policy: RetentionPolicy = NEWEST) -> set[int]:
    """Delete what the plan deletes. Return the partitions that still have files."""
    retention.collect(root.storage, retention.planned(root.storage, policy))
    return {store.partition for store in catalog.files(root.storage)}


def test_the_files_are_kept_while_a_retained_batch_has_the_partition(root: KeyedRoot, tmp_path: Path) -> None:
    assert set(rules(root.storage)) == {Rule.PARTITION}, "the newest version of their files is the head"
    root.grow(2)
    three = replace(NEWEST, versions=4)
    assert set(rules(root.storage, three)) == {Rule.PARTITION}
    assert collected(root, three) == {0, 1, 2, 3}
    assert catalog.heads_at(root.storage, 1).heads.keys() >= {StorePath(0, 3)}
    root.read(batch=1)


def test_gc_deletes_all_files_when_the_floor_has_passed_the_rescale(root: KeyedRoot, tmp_path: Path) -> None:
    root.grow(1)
    retention.take_snapshots(root.storage, tmp_path)
    planned = retention.planned(root.storage, replace(NEWEST, grace_seconds=3600))
    assert {verdict.rule for one in planned.removed for verdict in one.files} <= {Rule.YOUNG, Rule.PARTITION}
    assert set(rules(root.storage)) == {Rule.REMOVED}
    assert collected(root) == {0, 1}
    root.assert_right(2)
    clean(root.storage, tmp_path)
    assert rules(root.storage) == Counter()


def test_a_partition_with_a_file_of_the_head_is_kept_although_no_commit_names_it(
    root: KeyedRoot, tmp_path: Path
) -> None:
    root.grow(1)
    newest = max(
        catalog.files(root.storage).of(StorePath(0, 0)).changelogs, key=lambda version: version.version, default=None
    )
    head = catalog.heads(root.storage)
    assert head is not None
    retention.take_snapshots(root.storage, tmp_path)
    root.storage.create(StorePath(0, 3).changelog(newest or head.heads[StorePath(0, 0)]), b"of the head")
    planned = retention.planned(root.storage, NEWEST)
    of_store = {one.store: {verdict.rule for verdict in one.files} for one in planned.removed}
    assert of_store[StorePath(0, 3)] == {Rule.PARTITION}
    assert of_store[StorePath(1, 3)] == {Rule.REMOVED}


def test_an_unknown_store_and_an_unknown_file_are_kept(root: KeyedRoot, tmp_path: Path) -> None:
    root.grow(1)
    retention.take_snapshots(root.storage, tmp_path)
    foreign = [f"{names.STATE}/7/0/1_{'a' * 8}.zip", f"{StorePath(0, 3).folder}/notes.txt"]
    for path in foreign:
        root.storage.create(path, b"not of the job")
    planned = retention.planned(root.storage, NEWEST)
    assert not {verdict.path for verdict in planned.deletions} & set(foreign)
    collected(root)
    assert {path for path in foreign if root.storage.stat(path)} == set(foreign)


def test_a_missing_commit_keeps_the_partition(root: KeyedRoot, tmp_path: Path) -> None:
    root.grow(3)
    gathered = verb.gather(root.storage, replace(NEWEST, versions=2), clock=SystemClock())
    unknown = replace(gathered, unnamed_from=dict.fromkeys(gathered.removed, 6))
    planned = verb.plan(unknown, NEWEST)
    assert {verdict.rule for one in planned.removed for verdict in one.files} == {Rule.PARTITION}


def test_the_tables_of_partitions_that_a_rewind_removed_stay_until_the_quarantine_is_deleted(
    root: KeyedRoot, tmp_path: Path
) -> None:
    earlier, batches = dict(root.rows), root.batches
    root.grow(1)
    rescale(root.storage, 5, tmp_path)
    root.grow(1)
    rewound(root.storage, batches - 1, tmp_path, keep_query_id=True)
    root.rows, root.batches = earlier, batches
    root.grow(1)
    month = replace(NEWEST, quarantine_seconds=30 * 86_400.0)
    retention.take_snapshots(root.storage, tmp_path)
    retention.collect(root.storage, retention.planned(root.storage, month))
    assert Rule.QUARANTINE in rules(root.storage, month)
    assert collected(root) >= {0, 1}, "the quarantined files are deleted, and their tables in the next pass"
    assert collected(root) == {0, 1}
    root.assert_right(2)
    clean(root.storage, tmp_path)


def test_the_files_are_kept_until_a_snapshot_after_that_of_the_rescale_exists(root: KeyedRoot, tmp_path: Path) -> None:
    root.grow(2)
    assert set(rules(root.storage)) == {Rule.PARTITION}
    assert collected(root) == {0, 1, 2, 3}
    # The commits that name the partitions are deleted: the journal of the rescale explains their files to the audit.
    clean(root.storage, tmp_path)
    retention.take_snapshots(root.storage, tmp_path)
    assert set(rules(root.storage)) == {Rule.REMOVED}
    assert collected(root) == {0, 1}
    root.assert_right(2)
    clean(root.storage, tmp_path)


def test_a_later_pass_deletes_the_files_although_an_earlier_one_has_seen_all_stores(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    root = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path, partitions=4, key_groups=16)
    policy = replace(NEWEST, versions=3)

    def run() -> bool:
        gathered = verb.gather(root.storage, policy, clock=SystemClock())
        planned = verb.plan(gathered, policy)
        list(runs.delete(root.storage, gathered, planned, holder="a test", clock=SystemClock(), ids=RandomIds()))
        return gathered.since is not None

    root.grow(2)
    rescale(root.storage, 2, tmp_path)
    root.grow(3)
    retention.take_snapshots(root.storage, tmp_path)
    was_partial = []
    for _ in range(4):
        was_partial.append(run())
        root.grow(1)
    assert {store.partition for store in catalog.files(root.storage)} == {0, 1}, was_partial
    clean(root.storage, tmp_path)


def test_gc_deletes_the_removed_partition_of_a_native_query(tmp_path: Path) -> None:
    checkpoint = unpacked(NATIVE, tmp_path)
    storage = open_storage(str(checkpoint))
    rows = all_rows(checkpoint)
    for partitions in (3, 1):
        rescale(storage, partitions, tmp_path)
    for policy in (replace(NEWEST, versions=2), NEWEST):
        planned = retention.planned(storage, policy)
        assert {verdict.rule for one in planned.removed for verdict in one.files} == {Rule.PARTITION}
    # It makes the second snapshot of the first partition, and adds the second partition again.
    rescale(storage, 2, tmp_path)
    retention.collect(storage, retention.planned(storage, NEWEST))
    assert {store.partition for store in catalog.files(storage)} == {0, 1}
    assert all_rows(checkpoint) == rows
    clean(storage, tmp_path)
