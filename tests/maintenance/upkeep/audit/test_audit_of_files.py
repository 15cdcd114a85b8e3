"""Audits of damaged changelogs and snapshots: the finding, the lost versions, and the advice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, Severity
from statekeeper.statestore.storage import Storage
from tests.support.audits import (
    HARMS,
    assert_restart_is_right,
    audited,
    changelog,
    flipped,
    harm,
    loads,
    snapshot,
    the_only_finding,
)
from tests.support.checkpoints import Checkpoint
from tests.support.snapshots import take


def tables(checkpoint: Checkpoint, version: int, partition: int = 0) -> list[str]:
    path = snapshot(checkpoint, version, partition)
    named = read_snapshot(checkpoint.storage.read(path), path).metadata.tables
    return [checkpoint.stores[partition].table_file(table.dfs_name) for table in named]


# -- changelogs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", list(HARMS))
@pytest.mark.parametrize(("version", "restart"), [(2, 5), (5, 3), (6, 4)])
def test_a_bad_changelog_is_named_with_the_versions_that_are_lost(
    checkpoint: Checkpoint, tmp_path: Path, how: str, version: int, restart: int
) -> None:
    path = changelog(checkpoint, version)
    harm(checkpoint, path, how)
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    finding = the_only_finding(audit)
    assert (finding.severity, finding.file, finding.store) == (Severity.ERROR, path, StorePath(0, 0))
    assert finding.kind is (FindingKind.CHANGELOG_MISSING if how == "missing" else FindingKind.CHANGELOG_UNREADABLE)
    assert [v.version for v in audit.stores[0].lost] == {2: [2], 5: [5, 6], 6: [6]}[version]
    assert audit.restart.batch == restart
    assert ("batch 2 and later can" in finding.meaning) == (version == 2)
    assert ("roll back to batch" in finding.action) == (version > 2)
    assert_restart_is_right(checkpoint, audit, tmp_path)
    assert not loads(checkpoint, version - 1, tmp_path / "another")


@pytest.mark.parametrize(("how", "version"), [("missing", 5), ("empty", 5), ("empty", 6)])
def test_names_sizes_and_headers_show_damage_without_a_deep_audit(
    checkpoint: Checkpoint, how: str, version: int
) -> None:
    harm(checkpoint, changelog(checkpoint, version), how)
    assert the_only_finding(audited(checkpoint.storage)).file == changelog(checkpoint, version)


def test_missing_changelogs_in_a_row_are_one_finding(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for version in (4, 5):
        harm(checkpoint, changelog(checkpoint, version, 1), "missing")
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert finding.file == changelog(checkpoint, 4, 1)
    assert "2 in a row" in finding.problem
    assert finding.meaning.startswith(f"batches 3 to 5 of store {finding.store} cannot be restored")
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_without_the_first_changelog_and_snapshots_no_version_loads(storage: Storage, tmp_path: Path) -> None:
    checkpoint = Checkpoint(storage, tmp_path)
    checkpoint.grow(3)
    harm(checkpoint, changelog(checkpoint, 1), "missing")
    audit = audited(storage)
    assert the_only_finding(audit).file == changelog(checkpoint, 1)
    assert audit.restart.batch is None
    assert audit.restart.explained == "no batch can be restored in every store"
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_a_restart_needs_a_batch_that_every_store_loads(checkpoint: Checkpoint, tmp_path: Path) -> None:
    harm(checkpoint, changelog(checkpoint, 6, 0), "missing")
    harm(checkpoint, changelog(checkpoint, 2, 0), "missing")
    harm(checkpoint, changelog(checkpoint, 4, 1), "truncated")
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    assert [finding.file for finding in audit.findings] == [
        changelog(checkpoint, 2, 0),
        changelog(checkpoint, 6, 0),
        changelog(checkpoint, 4, 1),
    ]
    assert audit.restart.batch == 2
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_a_bad_changelog_with_a_snapshot_loses_no_version(checkpoint: Checkpoint, tmp_path: Path) -> None:
    harm(checkpoint, changelog(checkpoint, 3), "flipped")
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    finding = the_only_finding(audit)
    assert (finding.severity, finding.kind) == (Severity.WARNING, FindingKind.CHANGELOG_UNREADABLE)
    assert_restart_is_right(checkpoint, audit, tmp_path)


# -- snapshots ---------------------------------------------------------------------------------------------------------


def drop_old_changelogs(checkpoint: Checkpoint, partition: int = 0) -> None:
    checkpoint.storage.delete(changelog(checkpoint, version, partition) for version in (1, 2, 3))


@pytest.mark.parametrize("is_needed", [False, True])
@pytest.mark.parametrize("how", list(HARMS))
def test_a_bad_zip_is_a_warning_until_a_version_depends_on_it(
    checkpoint: Checkpoint, tmp_path: Path, how: str, is_needed: bool
) -> None:
    path = snapshot(checkpoint, 3)
    harm(checkpoint, path, how)
    if is_needed:
        drop_old_changelogs(checkpoint)
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.file, finding.store) == (path, StorePath(0, 0))
    assert finding.kind is (FindingKind.SNAPSHOT_MISSING if how == "missing" else FindingKind.SNAPSHOT_UNREADABLE)
    assert finding.severity is (Severity.ERROR if is_needed else Severity.WARNING)
    assert audit.restart.batch == (None if is_needed else 5)
    assert_restart_is_right(checkpoint, audit, tmp_path)
    assert audited(checkpoint.storage, tmp_path / "scratch").findings == audit.findings


TABLE_HARMS = {
    "missing": FindingKind.TABLE_MISSING,
    "truncated": FindingKind.TABLE_WRONG_SIZE,
    "empty": FindingKind.TABLE_WRONG_SIZE,
    "flipped": FindingKind.TABLE_UNREADABLE,
}


@pytest.mark.parametrize("is_needed", [False, True])
@pytest.mark.parametrize("how", list(TABLE_HARMS))
def test_a_bad_table_is_named_and_every_byte_of_it_counts_only_in_a_deep_audit(
    checkpoint: Checkpoint, tmp_path: Path, how: str, is_needed: bool
) -> None:
    [path] = tables(checkpoint, 3)
    if how == "flipped":
        checkpoint.storage.replace(path, flipped(checkpoint.storage.read(path), 20))
        assert audited(checkpoint.storage).findings == ()
    else:
        harm(checkpoint, path, how)
    if is_needed:
        drop_old_changelogs(checkpoint)
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    finding = the_only_finding(audit)
    assert (finding.kind, finding.file) == (TABLE_HARMS[how], path)
    is_trap = how == "flipped"  # a load takes it, and only a read shows it
    assert finding.severity is (Severity.ERROR if is_needed or is_trap else Severity.WARNING)
    assert names.snapshot(checkpoint.versions[3][0]) in finding.problem
    assert str(tmp_path) not in finding.problem
    assert audit.stores[0].base == (None if is_needed else names.EMPTY)
    assert audit.restart.delete_first == ((snapshot(checkpoint, 3),) if is_trap and not is_needed else ())
    if is_trap:
        assert finding.meaning.startswith("loads of batches 2 to 5 use this corrupt file and report no error")
        assert not loads(checkpoint, 5, tmp_path / "before")
    else:
        assert audited(checkpoint.storage).findings == audit.findings
    checkpoint.storage.delete(audit.restart.delete_first)
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_a_table_that_two_snapshots_share_is_one_finding_that_names_both(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """FLINK-37686, SPARK-55892: a file that another snapshot had borrowed is removed by its owner."""
    take(checkpoint.storage, tmp_path)
    [shared] = set(tables(checkpoint, 3)) & set(tables(checkpoint, 6))
    harm(checkpoint, shared, "missing")
    drop_old_changelogs(checkpoint)
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    finding = the_only_finding(audit)
    assert (finding.kind, finding.file, finding.severity) == (FindingKind.TABLE_MISSING, shared, Severity.ERROR)
    for version in (3, 6):
        assert names.snapshot(checkpoint.versions[version][0]) in finding.problem
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_one_object_missing_at_restore_leaves_the_older_snapshot_and_a_replay(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """RisingWave #19865."""
    take(checkpoint.storage, tmp_path)
    only_new = set(tables(checkpoint, 6)) - set(tables(checkpoint, 3))
    checkpoint.storage.delete(only_new)
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.kind, finding.severity) == (FindingKind.TABLE_MISSING, Severity.WARNING)
    assert (audit.stores[0].base, audit.stores[0].tail) == (checkpoint.versions[3][0], 3)
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_a_snapshot_that_holds_another_number_of_keys_than_it_says_is_found_by_a_deep_audit(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """SPARK-43404, SPARK-51717: the tables under a zip are not those that it was made of."""
    path = snapshot(checkpoint, 3)
    held = read_snapshot(checkpoint.storage.read(path), path)
    for said, found in ((held.metadata.key_count + 1, FindingKind.SNAPSHOT_AT_ODDS), (-1, None)):
        checkpoint.storage.replace(
            path, encode_snapshot(replace(held, metadata=replace(held.metadata, key_count=said)))
        )
        audit = audited(checkpoint.storage, tmp_path / "scratch")
        assert [(finding.kind, finding.file) for finding in audit.findings] == ([(found, path)] if found else [])
        assert audited(checkpoint.storage).findings == ()
