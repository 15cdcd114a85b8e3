"""Snapshots: the selected stores, the uploaded files, and the absence of losses after any failure."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import CorruptFile, NotACheckpoint, ObjectMissing, RefusedAsUnsafe
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.executors import MEMORY_BYTES
from statekeeper.statestore.maintenance.records.history import History
from statekeeper.statestore.maintenance.upkeep.snapshot import (
    REPLAY_BYTES_PER_SECOND,
    Published,
    SkipReason,
    SnapshotFacts,
    SnapshotPolicy,
    Taken,
    gather,
    plan,
)
from statekeeper.statestore.storage import Storage
from tests.support.checkpoints import Checkpoint
from tests.support.hosts import column
from tests.support.snapshots import one, planned, take


@pytest.fixture
def checkpoint(storage: Storage, tmp_path: Path) -> Checkpoint:
    return Checkpoint(storage, tmp_path)


# -- plans -------------------------------------------------------------------------------------------------------------


def taken_record(tail_bytes: int, restore_seconds: float) -> dict[str, object]:
    return {
        "store": "state/0/0",
        "version": "3",
        "outcome": "new",
        "tail_bytes": tail_bytes,
        "restore_seconds": restore_seconds,
    }


def test_the_newest_snapshots_give_the_estimate_of_replay_time(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage = checkpoint.storage
    checkpoint.grow(3)
    assert gather(storage).replay_bytes_per_second == REPLAY_BYTES_PER_SECOND
    record = History.begin(storage, "snapshot", RandomIds().fresh(), SystemClock())
    lines = [taken_record(8_000_000, 2.0), taken_record(4_000_000, 1.0), taken_record(100, 30.0)]
    record.outcome([*lines, {"store": "state/0/1", "error": "none"}])
    assert gather(storage).replay_bytes_per_second == 4_000_000


def test_a_folder_without_a_checkpoint_is_an_error_and_a_checkpoint_without_batches_has_an_empty_plan(
    storage: Storage, tmp_path: Path
) -> None:
    with pytest.raises(NotACheckpoint, match="neither `metadata` nor `commits/`"):
        gather(storage)
    Checkpoint(storage, tmp_path)
    assert gather(storage) == SnapshotFacts(batch=None, origin=Origin.OWN, stores=())


def test_a_missing_changelog_is_named_and_the_other_stores_get_snapshots(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.grow(4)
    gone = checkpoint.stores[0].changelog(checkpoint.versions[2][0])
    checkpoint.storage.delete([gone])
    made = planned(checkpoint.storage)
    assert [action.store for action in made.take] == [checkpoint.stores[1]]
    [left] = made.leave
    assert left.reason is SkipReason.NOT_LOADABLE
    assert gone in left.explained


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_new_host_loads_from_the_snapshot_alone(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(5)
    for taken, partition in zip(take(checkpoint.storage, tmp_path), (1, 0), strict=True):
        assert taken.published is Published.NEW
        assert taken.keys == len(checkpoint.states[-1][partition])
    changelogs = [entry.path for entry in checkpoint.storage.list("state") if entry.path.endswith(".changelog")]
    checkpoint.storage.delete(changelogs)
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")
    for store, version in zip(checkpoint.stores, checkpoint.versions[-1], strict=True):
        with checkpoint.load(store, version, tmp_path / "another") as opened:
            assert opened.lineage == (version,), "the next changelog names nothing before the snapshot"
            assert opened.commit_metrics.tail_changelogs == 1, "the one that is written now"
    assert {left.reason for left in planned(checkpoint.storage).leave} == {SkipReason.AT_HEAD}


def test_every_version_still_loads_after_the_snapshots(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for number in range(4):
        checkpoint.grow(3)
        take(checkpoint.storage, tmp_path, take_all=number % 2 == 0, changelogs=3)
    for batch in range(12):
        checkpoint.assert_right(tmp_path / f"fresh {batch}", batch)


def test_unchanged_tables_are_reused_without_an_upload(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(20)
    first = {taken.action.store: taken for taken in take(checkpoint.storage, tmp_path)}
    checkpoint.grow(1)
    for taken in take(checkpoint.storage, tmp_path):
        before = first[taken.action.store]
        assert (taken.tables, taken.new_tables) == (before.tables + 1, 1)
        assert taken.uploaded_bytes < before.uploaded_bytes
        named = [
            {table.dfs_name for table in read_snapshot(checkpoint.storage.read(path), path).metadata.tables}
            for path in (taken.action.store.snapshot(v) for v in (before.action.version, taken.action.version))
        ]
        assert named[0] < named[1]
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")


def test_accumulated_tables_are_merged(checkpoint: Checkpoint, tmp_path: Path) -> None:
    most = 0
    for _ in range(12):
        checkpoint.grow(1)
        most = max(most, *(taken.tables for taken in take(checkpoint.storage, tmp_path)))
    assert 4 <= most <= 9
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")


def test_a_tail_larger_than_memory_becomes_several_tables(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(5)
    for action, memory_bytes in zip(planned(checkpoint.storage).take, (1, MEMORY_BYTES), strict=True):
        assert one(checkpoint.storage, action, tmp_path, memory_bytes).tables == (5 if memory_bytes == 1 else 1)
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")


def test_a_damaged_base_is_skipped_and_reported(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(3)
    take(checkpoint.storage, tmp_path)
    damaged = checkpoint.stores[0].snapshot(checkpoint.versions[-1][0])
    checkpoint.storage.replace(damaged, b"garbage")
    checkpoint.grow(3)
    taken = {taken.action.store.partition: taken for taken in take(checkpoint.storage, tmp_path)}
    assert [damaged in text for text in taken[0].skipped_snapshots] == [True]
    assert taken[1].skipped_snapshots == ()
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")
    # Made without the damaged one, they are a base like any other.
    checkpoint.grow(1)
    assert {one.new_tables for one in take(checkpoint.storage, tmp_path)} == {1}
    checkpoint.assert_snapshots_are_right(tmp_path / "another")


@pytest.mark.parametrize("harm", ["garbage", "a table is gone", "a table is cut"])
def test_a_damaged_snapshot_at_the_head_is_a_finding_and_does_not_count_as_taken(
    checkpoint: Checkpoint, tmp_path: Path, harm: str
) -> None:
    checkpoint.grow(3)
    action = planned(checkpoint.storage).take[0]
    take(checkpoint.storage, tmp_path)
    path = action.store.snapshot(action.version)
    table = action.store.table_file(read_snapshot(checkpoint.storage.read(path), path).metadata.tables[0].dfs_name)
    if harm == "garbage":
        checkpoint.storage.replace(path, b"garbage")
    elif harm == "a table is cut":
        checkpoint.storage.replace(table, b"short")
    else:
        checkpoint.storage.delete([table])
    [left] = [left for left in planned(checkpoint.storage).leave if left.store == action.store]
    assert left.reason is SkipReason.DAMAGED
    assert left.reason.is_finding
    assert path in left.explained
    with pytest.raises(CorruptFile, match=r"exists and is damaged.* -> run: statekeeper repair"):
        one(checkpoint.storage, action, tmp_path)
    checkpoint.assert_right(tmp_path / "fresh")
    checkpoint.storage.delete([path])
    assert take(checkpoint.storage, tmp_path)[0].published is Published.NEW
    checkpoint.assert_snapshots_are_right(tmp_path / "another")


# -- beside others, and faults -----------------------------------------------------------------------------------------


def test_the_second_of_two_maintainers_finds_the_snapshot(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(3)
    action = planned(checkpoint.storage).take[0]
    assert one(checkpoint.storage, action, tmp_path).published is Published.NEW
    body = checkpoint.storage.read(action.store.snapshot(action.version))
    assert one(checkpoint.storage, action, tmp_path).published is Published.THERE_ALREADY
    assert checkpoint.storage.read(action.store.snapshot(action.version)) == body
    take(checkpoint.storage, tmp_path)
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")


class LosesATable:
    """A storage in which another process deletes a table right after the zip that names it became visible; `often`
    times, also when it was sent again."""

    def __init__(self, inner: Storage, often: int) -> None:
        self._inner = inner
        self._often = often
        self._table = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str, data: bytes | Path) -> Any:
        created = self._inner.create(path, data)
        if path.endswith(".zip"):
            assert isinstance(data, bytes)
            name = read_snapshot(data, path).metadata.tables[-1].dfs_name
            self._table = f"{path.rpartition('/')[0]}/SSTs/{name}"
        if self._table and self._often and path.endswith((".zip", self._table)):
            self._often -= 1
            self._inner.delete([self._table])
        return created


def test_a_table_deleted_meanwhile_is_uploaded_again(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(3)
    for action in planned(checkpoint.storage).take:
        taken = one(LosesATable(checkpoint.storage, 1), action, tmp_path)  # type: ignore[arg-type]
        assert taken.published is Published.NEW
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")


def test_a_table_that_is_deleted_repeatedly_is_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.grow(3)
    action = planned(checkpoint.storage).take[0]
    with pytest.raises(
        ObjectMissing, match=r"SSTs/.*was deleted twice after its upload.* -> stop the process that deletes"
    ):
        one(LosesATable(checkpoint.storage, 2), action, tmp_path)  # type: ignore[arg-type]
    assert action.store in [
        left.store for left in planned(checkpoint.storage).leave if left.reason is SkipReason.DAMAGED
    ]
    checkpoint.assert_right(tmp_path / "fresh")


# -- checkpoints that Spark writes -------------------------------------------------------------------------------------


@pytest.fixture
def native(storage: Storage, tmp_path: Path) -> Checkpoint:
    """Four versions of structure V2, in a checkpoint that is not ours, of a query that began before Spark 4.2."""
    made = Checkpoint(storage, tmp_path / "job")
    made.grow(4)
    storage.delete([names.BINDING])
    conf = {name: value for name, value in logs.STATE_CONF.items() if "mergeOperatorVersion" not in name}
    storage.replace(
        names.offsets(3), logs.encode_offsets(logs.OffsetLog(watermark_ms=0, timestamp_ms=3, conf=conf, sources=()))
    )
    return made


def headers(taken: list[Taken], storage: Storage) -> set[str]:
    paths = [one.action.store.snapshot(one.action.version) for one in taken]
    return {read_snapshot(storage.read(path), path).metadata.header for path in paths}


def test_the_spark_release_must_be_given_if_it_is_unknown_and_snapshots_differ(
    native: Checkpoint, tmp_path: Path
) -> None:
    storage = native.storage
    assert gather(storage).written_by == (Spark.V4_0, Spark.V4_1)
    asked = planned(storage)
    assert asked.take == ()
    assert {action.reason for action in asked.leave} == {SkipReason.WHICH_SPARK}
    told = plan(gather(storage), SnapshotPolicy(), take_all=True, spark=Spark.V4_0)
    first = [one(storage, action, tmp_path) for action in told.take]
    assert headers(first, storage) == {"v2"}
    native.grow(1)
    again = take(storage, tmp_path)
    assert headers(again, storage) == {"v2"}, "as the snapshot that it grew from"
    native.grow(1)
    upgraded = plan(gather(storage), SnapshotPolicy(), take_all=True, spark=Spark.V4_2)
    assert headers([one(storage, action, tmp_path) for action in upgraded.take], storage) == {"v1"}, "as it is told"


def test_a_sidecar_of_a_changelog_excludes_spark_4_0(native: Checkpoint, tmp_path: Path) -> None:
    path = native.stores[0].changelog(native.versions[4][0])
    native.storage.create(f"{path}.crc", b"{}")
    assert gather(native.storage).written_by == (Spark.V4_1,)
    assert headers(take(native.storage, tmp_path), native.storage) == {"v1"}


def of_v1(storage: Storage, versions: int) -> list[StorePath]:
    """A checkpoint of Spark's in structure V1 with one store, of which version N holds the keys 1 to N."""
    storage.create(names.QUERY_METADATA, logs.encode_metadata("a query"))
    info = operators.StoreInfo(name=names.DEFAULT_STORE, prefix_columns=0, partitions=1)
    storage.create(names.operator_metadata(0), operators.encode_operator(operators.OperatorMetadata(0, "agg", (info,))))
    store = StorePath(0, 0)
    for number in range(1, versions + 1):
        storage.create(store.changelog(VersionId(number)), v1_changelog(number))
        storage.create(
            names.offsets(number - 1),
            logs.encode_offsets(logs.OffsetLog(watermark_ms=0, timestamp_ms=0, conf=logs.STATE_CONF, sources=())),
        )
        storage.create(names.commits(number - 1), logs.encode_commit(logs.CommitLog(0, None)))
    return [store]


def v1_changelog(number: int, value: bytes = b"value") -> bytes:
    body = io.BytesIO()
    writer = ChangelogWriter(body, Header(None))
    writer.append(column([b"key %d" % number]), column([value]))
    writer.finish()
    return body.getvalue()


def test_the_two_newest_versions_of_a_running_v1_query_get_no_snapshot(storage: Storage, tmp_path: Path) -> None:
    of_v1(storage, 6)
    running, stopped = (plan(gather(storage, at_head=said), SnapshotPolicy(), take_all=True) for said in (False, True))
    assert [action.version for action in running.take] == [VersionId(4)]
    assert [action.version for action in stopped.take] == [VersionId(6)]
    assert one(storage, running.take[0], tmp_path).keys == 4
    again = plan(gather(storage), SnapshotPolicy(), take_all=True)
    assert [action.reason for action in again.leave] == [SkipReason.NEAR_HEAD]
    [late] = plan(gather(storage, at_head=True), SnapshotPolicy(), take_all=True).take
    assert late.load.base == VersionId(4)
    assert one(storage, late, tmp_path).keys == 6


@pytest.mark.parametrize("when", ["before it is visible", "when it is visible"])
def test_a_snapshot_of_a_changelog_that_was_replaced_meanwhile_is_deleted(
    storage: Storage, tmp_path: Path, when: str
) -> None:
    [store] = of_v1(storage, 6)
    [action] = plan(gather(storage), SnapshotPolicy(), take_all=True).take
    made = store.snapshot(action.version)

    class Zombie:
        """An attempt that Spark believes dead writes its version once more."""

        def create(self, path: str, data: bytes | Path) -> object:
            created = storage.create(path, data)
            if path == made if when == "when it is visible" else path.endswith(".sst"):
                storage.replace(store.changelog(VersionId(3)), v1_changelog(3, b"of a zombie, and longer"))
            return created

        def __getattr__(self, name: str) -> object:
            return getattr(storage, name)

    with pytest.raises(RefusedAsUnsafe, match=r"state/0/0/3\.changelog: was replaced while it was replayed"):
        one(Zombie(), action, tmp_path)
    assert storage.stat(made) is None
