"""Rescales of the state roots of Python jobs: whole key groups move, and no batch is added."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from statekeeper.statestore.base.errors import BatchConflict
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.root.state_root import Ready
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import retention
from tests.support.keyed_roots import KeyedRoot
from tests.support.rescales import all_rows, planned, rescale
from tests.support.rewinds import rewound
from tests.support.roots import opened, outer
from tests.support.s3_server import S3Server, Wire
from tests.support.switching import switch
from tests.support.twins import clean, statekeeper


def rooted(folder: Path, **settings: object) -> KeyedRoot:
    (folder / "root").mkdir(parents=True)
    return KeyedRoot(open_storage(str(folder / "root")), folder, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("in_batch_logs", [False, True], ids=["stores", "batch"])
def test_a_root_is_rescaled_up_and_down_and_back(in_batch_logs: bool, tmp_path: Path) -> None:
    root = rooted(tmp_path, in_batch_logs=in_batch_logs)
    root.grow(3)
    before = all_rows(tmp_path / "root")
    for partitions in (12, 3, 8):
        rescale(root.storage, partitions, tmp_path)
        assert all_rows(tmp_path / "root") == before
        root.assert_right(partitions)
        clean(root.storage, tmp_path)
        root.grow(1)
        root.assert_right(partitions)
        clean(root.storage, tmp_path)
        before = all_rows(tmp_path / "root")


def test_versions_of_removed_partitions_before_a_switchover_are_no_finding(tmp_path: Path) -> None:
    """The switchover to V1 moves their snapshots aside. No start needs them, and no rewind can."""
    root = rooted(tmp_path, partitions=2)
    root.grow(2)
    rescale(root.storage, 5, tmp_path)
    root.grow(2)
    switch(root.storage, Structure.V1, tmp_path)
    switch(root.storage, Structure.V2, tmp_path)
    clean(root.storage, tmp_path)
    rescale(root.storage, 2, tmp_path)
    clean(root.storage, tmp_path)
    root.assert_right(2)


def test_a_batch_without_its_purged_offsets_has_the_partitions_that_its_commit_names(tmp_path: Path) -> None:
    """In V1, retention keeps the commit of the batch before the oldest offsets, for its digests."""
    root = rooted(tmp_path, partitions=2)
    root.grow(1)
    switch(root.storage, Structure.V1, tmp_path)
    root.structure = Structure.V1
    root.grow(3)
    gc = ("gc", str(tmp_path / "root"), "--retain", "2", "--grace", "0s", "--apply", "--scratch", str(tmp_path / "gc"))
    statekeeper(*gc, "--mode", "full")
    assert root.storage.stat(names.offsets(0)) is None
    assert root.storage.stat(names.commits(0)) is not None
    switch(root.storage, Structure.V2, tmp_path)
    root.structure = Structure.V2
    rescale(root.storage, 1, tmp_path)
    root.assert_right(1)
    clean(root.storage, tmp_path)
    statekeeper(*gc, "--mode", "full")
    clean(root.storage, tmp_path)


def test_the_command_reports_no_appended_batch_and_asks_for_no_file_sink(tmp_path: Path) -> None:
    rooted(tmp_path).grow(2)
    command = ["rescale", str(tmp_path / "root"), "--partitions", "3", "--scratch", str(tmp_path)]
    shown = CliRunner().invoke(main, command)
    assert (shown.exit_code, "it appends no batch" in shown.output) == (0, True)
    assert "--file-sink" not in shown.output
    done = CliRunner().invoke(main, [*command, "--apply", "--confirm-stopped"])
    assert (done.exit_code, "newest commit rewritten" in done.output) == (0, True)
    assert "batch without rows appended" not in done.output


def test_a_file_sink_is_rejected_because_no_batch_is_appended_to_its_log(tmp_path: Path) -> None:
    rooted(tmp_path).grow(2)
    log = tmp_path / "output" / "_spark_metadata"
    log.mkdir(parents=True)
    for batch in range(2):
        (log / str(batch)).write_bytes(b"v1")
    command = ["rescale", str(tmp_path / "root"), "--partitions", "3", "--scratch", str(tmp_path)]
    sink = ["--file-sink", str(tmp_path / "output"), "--apply", "--confirm-stopped"]
    refused = CliRunner().invoke(main, [*command, *sink])
    assert refused.exit_code == 13
    assert "run this command again without --file-sink" in refused.output
    assert sorted(path.name for path in log.iterdir()) == ["0", "1"]


@pytest.mark.slow
def test_a_root_is_rescaled_to_200_partitions_and_back(tmp_path: Path) -> None:
    root = rooted(tmp_path, in_batch_logs=True)
    root.grow(2)
    for partitions in (200, 3, 8):
        rescale(root.storage, partitions, tmp_path)
        root.assert_right(partitions)
        clean(root.storage, tmp_path)


def test_the_job_continues_with_the_new_number_although_it_declares_the_old_one(tmp_path: Path) -> None:
    root = rooted(tmp_path, partitions=4)
    root.grow(2)
    rescale(root.storage, 6, tmp_path)
    again = opened(root.storage, root.wanted(), 2)
    assert again.binding.partitions == 6
    ready = again.begin(2, outer(2))
    assert isinstance(ready, Ready)
    assert {len(bases) for bases in ready.bases.values()} == {6}
    # The outer query may run the newest batch again, if it was killed before its own commit.
    assert not isinstance(opened(root.storage, root.wanted(), 1).begin(1, outer(1)), Ready)


def test_a_driver_that_was_running_during_the_rescale_starts_no_batch(tmp_path: Path) -> None:
    root = rooted(tmp_path, partitions=4)
    root.grow(1)
    running = opened(root.storage, root.wanted(), 1)
    rescale(root.storage, 6, tmp_path)
    with pytest.raises(BatchConflict, match="rescaled from 4 to 6 partitions"):
        running.begin(1, outer(1))
    assert root.storage.stat(names.offsets(1)) is None


def test_a_rescale_is_refused_with_its_reason(tmp_path: Path) -> None:
    root = rooted(tmp_path, partitions=2, key_groups=16)
    (none,) = planned(root_without_batches(tmp_path), 3, tmp_path).refusals
    assert "no batch is committed" in none
    root.grow(1)
    (many,) = planned(root.storage, 17, tmp_path).refusals
    assert "more than the 16 key groups" in many
    assert planned(root.storage, 2, tmp_path).is_there
    opened(root.storage, root.wanted(), 1).begin(1, outer(1))
    (begun,) = planned(root.storage, 3, tmp_path).refusals
    assert "batch 1 is started but not committed" in begun
    v1 = rooted(tmp_path / "v1", partitions=2, structure=Structure.V1)
    v1.grow(1)
    (structure,) = planned(v1.storage, 3, tmp_path).refusals
    assert "statekeeper switch ROOT --to v2" in structure


def root_without_batches(folder: Path) -> Storage:
    empty = rooted(folder / "empty")
    opened(empty.storage, empty.wanted())
    return empty.storage


def test_a_rewind_before_the_rescale_restores_the_partitions(tmp_path: Path) -> None:
    root = rooted(tmp_path, partitions=4)
    root.grow(2)
    earlier = dict(root.rows)
    root.grow(1)
    rescale(root.storage, 6, tmp_path)
    root.grow(1)
    rewound(root.storage, 1, tmp_path, keep_query_id=True)
    assert read_binding(root.storage)[0].partitions == 4
    root.rows, root.batches = earlier, 2
    root.assert_right(4)
    root.grow(1)
    root.assert_right(4)
    clean(root.storage, tmp_path)


def test_a_rescale_then_batches_snapshots_gc_a_rescale_and_a_switch(tmp_path: Path) -> None:
    root = rooted(tmp_path, partitions=6, in_batch_logs=True)
    root.grow(2)
    rescale(root.storage, 2, tmp_path)
    root.grow(2)
    retention.take_snapshots(root.storage, tmp_path)
    root.grow(1)
    policy = RetentionPolicy(versions=2, grace_seconds=0)
    retention.collect(root.storage, retention.planned(root.storage, policy))
    root.assert_right(2)
    clean(root.storage, tmp_path)
    rescale(root.storage, 5, tmp_path)
    root.assert_right(5)
    switch(root.storage, Structure.V1, tmp_path)
    root.structure, root.in_batch_logs = Structure.V1, False
    root.assert_right(5)
    root.grow(1)
    root.assert_right(5)
    clean(root.storage, tmp_path)


def test_gc_deletes_the_files_of_removed_partitions_that_no_retained_version_needs(tmp_path: Path) -> None:
    root = rooted(tmp_path, partitions=3)
    root.grow(2)
    rescale(root.storage, 2, tmp_path)
    root.grow(2)
    retention.take_snapshots(root.storage, tmp_path)
    root.grow(1)
    policy = RetentionPolicy(versions=2, grace_seconds=0)
    retention.collect(root.storage, retention.planned(root.storage, policy))
    assert {store.partition for store in catalog.files(root.storage)} == {0, 1}


@pytest.mark.parametrize("in_batch_logs", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["stores", "batch"])
def test_a_root_in_a_bucket_is_rescaled_although_replies_are_lost(
    in_batch_logs: bool, s3_server: S3Server, tmp_path: Path
) -> None:
    bucket = s3_server.make_bucket()
    storage = open_storage(f"s3://{bucket}/root", options=s3_server.options)
    root = KeyedRoot(storage, tmp_path, partitions=4, in_batch_logs=in_batch_logs)
    root.grow(2)
    # The service executes each of these requests, and its reply is lost: the request is sent again.
    for path in ("commits/1", "offsets/1", names.BINDING, "state/0/5/2_"):
        s3_server.next("PUT", f"{bucket}/root/{path}", Wire.LOSE_REPLY)
    rescale(storage, 6, tmp_path)
    root.assert_right(6)
    root.grow(1)
    rescale(storage, 2, tmp_path)
    root.grow(1)
    retention.take_snapshots(storage, tmp_path)
    retention.collect(storage, retention.planned(storage, RetentionPolicy(versions=1, grace_seconds=0)))
    root.assert_right(2)
    assert {store.partition for store in catalog.files(storage)} == {0, 1}
    clean(storage, tmp_path)
