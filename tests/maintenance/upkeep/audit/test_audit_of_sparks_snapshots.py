"""Audits of snapshots that Spark rejects, or that hold less than Spark needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, Severity
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.audits import SOME_ID, audited, the_only_finding
from tests.support.changelogs import changelog_with_families
from tests.support.checkpoints import Checkpoint
from tests.support.snapshots import publish_snapshot
from tests.support.sparks_checkpoints import STORE, add_sidecar, changelog, commit, describe, path_of


def remade(storage: Storage, path: str, **changes: Any) -> None:
    snapshot = read_snapshot(storage.read(path), path)
    storage.replace(path, encode_snapshot(replace(snapshot, metadata=replace(snapshot.metadata, **changes))))
    if names.sidecar(path) in {entry.path for entry in storage.list(names.STATE)}:
        add_sidecar(storage, path)


def test_v2_snapshots_of_spark_4_0_are_named_because_later_releases_reject_them(v2: Checkpoint) -> None:
    remade(v2.storage, path_of(v2, "zip", 3), header="v2")
    finding = the_only_finding(audited(v2.storage))
    assert (finding.kind, finding.severity) == (FindingKind.SNAPSHOT_OF_SPARK_4_0, Severity.WARNING)
    assert "Expected v1, but found v2" in finding.meaning
    assert "batches 2 to 5" in finding.meaning
    assert f"statekeeper repair {v2.storage.url} --for-spark 4.2" in finding.action


@pytest.mark.parametrize("structure", ["V1", "V2"])
def test_without_a_snapshot_the_names_of_column_families_are_lost(tmp_path: Path, structure: str) -> None:
    storage = open_storage(str(tmp_path / "root"))
    describe(storage, path=f"{names.operator_metadata_by_batch(0)}/0")
    versions: list[VersionId] = []
    for number in range(1, 4):
        is_v2 = structure == "V2"
        version = VersionId(number, f"{number:08x}-0000-4000-8000-000000000000" if is_v2 else None)
        body = changelog_with_families(number, versions if is_v2 else None, b"\0\0")
        storage.create(STORE.changelog(version), body)
        commit(storage, number - 1, [str(version.id)] if is_v2 else None)
        versions.append(version)
    publish_snapshot(storage, STORE, versions[0], {b"key": b"value"}, tmp_path)
    assert audited(storage).findings == ()
    storage.delete([STORE.snapshot(versions[0])])
    for scratch in (None, tmp_path / "scratch"):
        audit = audited(storage, scratch)
        finding = the_only_finding(audit)
        assert (finding.kind, finding.severity) == (FindingKind.FAMILIES_LOST, Severity.ERROR)
        assert finding.file == STORE.snapshot(versions[0])
        assert finding.meaning.startswith(f"batches 0 to 2 of store {finding.store} cannot be restored")
        assert audit.restart.batch is None


def test_a_missing_snapshot_that_sparks_repair_cannot_replace_is_an_error_although_statekeeper_loads(
    tmp_path: Path,
) -> None:
    """SPARK-56216: the repair needs changelogs back to version 1, even with a snapshot in between."""
    storage = open_storage(str(tmp_path / "root"))
    describe(storage)
    versions = [VersionId(n, f"{n:08x}-0000-4000-8000-000000000000") for n in range(1, 9)]
    for number, version in enumerate(versions, start=1):
        base = 1 if number <= 2 else 2 if number <= 5 else 5
        storage.create(STORE.changelog(version), changelog(number, tuple(versions[base - 1 : number - 1])))
        commit(storage, number - 1, [str(version.id)])
    publish_snapshot(storage, STORE, versions[1], {b"key": b"value"}, tmp_path)
    finding = the_only_finding(audited(storage))
    assert (finding.kind, finding.severity) == (FindingKind.SNAPSHOT_MISSING, Severity.WARNING)
    assert finding.file == STORE.snapshot(versions[4])
    assert "Later releases and Statekeeper can load it, by a longer replay" in finding.meaning
    storage.delete([STORE.changelog(versions[0])])
    audit = audited(storage)
    finding = the_only_finding(audit)
    assert (finding.kind, finding.severity) == (FindingKind.SNAPSHOT_MISSING, Severity.ERROR)
    assert "no Spark release can load batch 7, because the changelog of batch 0 is missing" in finding.meaning
    assert f"statekeeper snapshot {storage.url} --at-head" in finding.action
    assert audit.restart.batch == 7


def two_of_a_size(storage: Storage, tmp_path: Path) -> tuple[str, str]:
    """The tables of two snapshots that hold other values: equal in size."""
    found = []
    for number, value in ((3, b"value a"), (5, b"value b")):
        places = publish_snapshot(storage, STORE, VersionId(number), {b"key": value}, tmp_path)
        found.append(next(path for name, path in places.items() if name != "zip"))
    return found[0], found[1]


def test_the_unique_id_reveals_a_table_replaced_by_another_of_equal_size(v1: Storage, tmp_path: Path) -> None:
    """SPARK-43404, SPARK-45419, SPARK-46796, SPARK-47036: Mismatch in unique ID."""
    v1.delete([STORE.snapshot(VersionId(3))])
    one, other = two_of_a_size(v1, tmp_path)
    assert len(v1.read(one)) == len(v1.read(other))
    v1.replace(one, v1.read(other))
    assert audited(v1).findings == ()
    finding = the_only_finding(audited(v1, tmp_path / "scratch"))
    assert (finding.kind, finding.file) == (FindingKind.TABLE_REPLACED, one), finding
    assert "Mismatch in unique ID" in finding.problem
    assert "3.zip" in finding.problem


def test_a_table_whose_size_contradicts_the_manifest_is_found_although_the_snapshot_agrees(
    v1: Storage, tmp_path: Path
) -> None:
    """SPARK-51717: Sst file size mismatch, MANIFEST may be corrupted."""
    path = STORE.snapshot(VersionId(3))
    [table] = read_snapshot(v1.read(path), path).metadata.tables
    body = v1.read(STORE.table_file(table.dfs_name)) + b"longer"
    v1.replace(STORE.table_file(table.dfs_name), body)
    assert the_only_finding(audited(v1)).kind is FindingKind.TABLE_WRONG_SIZE
    remade(v1, path, tables=(replace(table, size_bytes=len(body)),))
    assert audited(v1).findings == ()
    finding = the_only_finding(audited(v1, tmp_path / "scratch"))
    assert finding.kind is FindingKind.TABLE_WRONG_SIZE
    assert "file size mismatch" in finding.problem


def test_late_snapshots_of_dead_attempts_orphan_tables_and_temporary_files_are_no_findings(
    v2: Checkpoint, tmp_path: Path
) -> None:
    """SPARK-51714, SPARK-42353: no load uses uncommitted files."""
    publish_snapshot(v2.storage, STORE, VersionId(6, SOME_ID), {b"dead": b"attempt"}, tmp_path / "dead")
    v2.storage.create(STORE.table_file(f"000042-{SOME_ID}.sst"), b"nobody names it")
    v2.storage.create(f"{STORE.folder}/.6_{SOME_ID}.zip.{SOME_ID}.tmp", b"half")
    audit = audited(v2.storage, tmp_path / "scratch")
    assert audit.findings == ()
    assert audit.stores[0].base == v2.versions[3][0]
    assert audit.stores[0].orphan_files == 3
    v2.assert_right(tmp_path / "host")
