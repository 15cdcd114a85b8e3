"""Damaged native checkpoints: the reaction of retention, snapshots and the audit."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import ObjectMissing, StatekeeperError, UnknownFormatVersion, VersionNotLoadable
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.rollback import repair, undo
from statekeeper.statestore.maintenance.upkeep import retention
from statekeeper.statestore.maintenance.upkeep import snapshot as snapshots
from statekeeper.statestore.maintenance.upkeep.audit import Audit, FindingKind, Severity, gather, judge
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPlan, RetentionPolicy
from statekeeper.statestore.storage import open_storage
from tests.support.snapshots import take
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
AT_ONCE = RetentionPolicy(versions=1, grace_seconds=0.0)

Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The checkpoint of a fixture, by the end of its name."""

    return lambda name: unpacked(FIXTURES / f"spark-4.2.0-{name}.zip", tmp_path)


def only(root: Path, pattern: str) -> Path:
    [found] = root.glob(pattern)
    return found


def cleaned(root: Path) -> RetentionPlan:
    return retention.plan(retention.gather(open_storage(str(root)), AT_ONCE, clock=SystemClock()), AT_ONCE)


def audited(root: Path, scratch: Path | None = None) -> Audit:
    return judge(gather(open_storage(str(root)), scratch=scratch))


def kinds(audit: Audit) -> list[FindingKind]:
    return [finding.kind for finding in audit.findings]


def test_a_store_with_column_families_needs_a_snapshot_as_base(written: Written, tmp_path: Path) -> None:
    """One store lacks the snapshot that names its families. The files of older versions of the other store stay."""
    root = written("v2-transformWithState")
    take(open_storage(str(root)), tmp_path)
    for path in (only(root, "state/0/0/1_*.zip"), only(root, "state/0/0/3_*.zip")):
        path.rename(path.with_name(f"{path.name[0]}_0badc0de-0000-4000-8000-000000000000.zip"))
    plan = cleaned(root)
    assert plan.floor is None
    assert not [verdict for verdict in plan.deletions if verdict.path.startswith("state/0/1/")]
    said = "the names of the column families are only in snapshots, and the store has no intact snapshot"
    assert f"state/0/0: batch 2 does not load: {said}" in plan.findings


@pytest.mark.parametrize("places", [("state/0/0/2_*", "state/0/1/2_*"), ("state/0/0/1_*", "state/0/0/2_*")])
def test_a_changelog_that_was_written_on_top_of_another_one_is_not_replayed(
    written: Written, tmp_path: Path, places: tuple[str, str]
) -> None:
    """Of another partition, or of another version: names, sizes and the lineage in the head do not tell."""
    root = written("v2-aggregation")
    one, other = (only(root, f"{place}.changelog") for place in places)
    bodies = one.read_bytes(), other.read_bytes()
    other.write_bytes(bodies[0])
    one.write_bytes(bodies[1])
    with pytest.raises(VersionNotLoadable, match="as its predecessor instead of version") as refused:
        take(open_storage(str(root)), tmp_path)
    assert refused.value.path in {str(path.relative_to(root)) for path in (one, other)}
    assert list((root / refused.value.path).parent.glob("*.zip")) == []


def test_the_damage_of_the_only_snapshot_with_the_families_is_reported(written: Written, tmp_path: Path) -> None:
    root = written("v2-transformWithState")
    table = only(root, "state/0/0/SSTs/*.sst")
    table.unlink()
    with pytest.raises(VersionNotLoadable, match=f"needs a snapshot that names the column families.*{table.name}"):
        take(open_storage(str(root)), tmp_path)


def test_an_empty_changelog_holds_the_floor(written: Written, tmp_path: Path) -> None:
    """One store loads version 1, and the other has a snapshot of the head. Its files of version 1 stay."""
    root = written("v2-aggregation")
    take(open_storage(str(root)), tmp_path)
    for path in root.glob("state/0/0/3_*.zip"):
        path.unlink()
    only(root, "state/0/0/2_*.changelog").write_bytes(b"")
    plan = cleaned(root)
    assert (plan.floor, plan.deletions) == (1, [])
    assert any(
        finding.endswith("2_44ab814a-8b2a-4e3c-b6c7-cda6db3b62d3.changelog (of batch 1): is empty")
        for finding in plan.findings
    )


def test_the_query_cannot_restart_from_a_batch_without_offsets(written: Written) -> None:
    root = written("v2-aggregation")
    for path in (root / "offsets" / "2", root / "offsets" / ".2.crc"):
        path.unlink()
    audit = audited(root)
    assert (kinds(audit), audit.restart.batch) == ([FindingKind.OFFSETS_MISSING], 1)
    assert audit.restart.explained == "the newest batch of which every store has all files and that has offsets is 1"


def test_a_newest_commit_of_a_later_spark_is_not_reported_as_damage(written: Written) -> None:
    root = written("v2-aggregation")
    commit = root / "commits" / "2"
    commit.write_bytes(commit.read_bytes().replace(b"v2\n", b"v7\n"))
    audit = audited(root)
    [found] = audit.findings
    assert (found.kind, audit.restart.batch) == (FindingKind.COMMIT_UNREADABLE, None)
    assert found.action == "upgrade Statekeeper; do not change the file"
    assert "cannot start" not in found.meaning


def test_a_damaged_number_in_a_commit_causes_no_loop_of_billions(written: Written) -> None:
    root = written("v1-aggregation")
    shutil.copy(root / "commits" / "2", root / "commits" / "2000000000")
    shutil.copy(root / "offsets" / "2", root / "offsets" / "2000000000")
    left = snapshots.plan(snapshots.gather(open_storage(str(root))), snapshots.SnapshotPolicy()).leave
    assert {action.reason for action in left} == {snapshots.SkipReason.NOT_LOADABLE}
    [gap] = [finding for finding in audited(root).findings if finding.kind is FindingKind.COMMIT_MISSING]
    assert (gap.file, gap.problem) == ("commits/3", "and all commits up to batch 1999999999 are missing")


def test_a_missing_folder_of_an_operator_is_a_finding(written: Written) -> None:
    root = written("v1-two-operators-zstd")
    shutil.rmtree(root / "state" / "0")
    audit = audited(root)
    assert [(f.kind, f.file) for f in audit.findings] == [
        (FindingKind.DESCRIPTION_MISSING, "state/0/_metadata/metadata")
    ]
    assert audit.restart.batch is None


@pytest.mark.parametrize("name", ["v1-aggregation", "v2-aggregation"])
def test_a_missing_folder_of_a_partition_is_one_finding_with_its_name(written: Written, name: str) -> None:
    root = written(name)
    shutil.rmtree(root / "state" / "0" / "1")
    audit = audited(root)
    [found] = audit.findings
    assert (found.kind, found.file, audit.restart.batch) == (FindingKind.NO_BASE, "state/0/1", None)
    assert "is missing or empty" in found.problem


def test_an_audit_without_state_files_reports_the_state_as_unproven(written: Written) -> None:
    root = written("v1-aggregation")
    assert not any("the checkpoint has no store" in text for text in audited(root).unproven)
    shutil.rmtree(root / "state")
    assert any("the checkpoint has no store" in text for text in audited(root).unproven)


def test_the_folders_reveal_the_stores_of_a_join_that_no_commit_names(written: Written) -> None:
    root = written("v1-join-2")
    shutil.rmtree(root / "state" / "0" / "_metadata")
    audit = audited(root)
    assert (kinds(audit), len(audit.stores)) == ([FindingKind.DESCRIPTION_MISSING], 8)


def test_a_snapshot_of_a_later_spark_is_not_reported_as_damage(written: Written) -> None:
    root = written("v2-transformWithState")
    path = only(root, "state/0/0/1_*.zip")
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in files.items():
            archive.writestr(name, body.replace(b"v1\n", b"v9\n") if name == "metadata" else body)
    [found] = audited(root).findings
    assert (found.kind, found.action) == (
        FindingKind.STORE_UNKNOWN_FORMAT,
        "upgrade Statekeeper; do not change the file",
    )
    assert found.file == str(path.relative_to(root))


@pytest.mark.parametrize("body", [b"", b"\xff", b"v2\n[]", b"v2\n{", b"v2\n{}", b"v9\n{}", b"what?"])
def test_an_unreadable_newest_commit_is_a_finding_with_an_action(written: Written, body: bytes) -> None:
    root = written("v2-aggregation")
    (root / "commits" / "2").write_bytes(body)
    with pytest.raises(StatekeeperError, match=r"commits/2: .* -> \w+"):
        catalog.heads(open_storage(str(root)))


def test_missing_newest_offsets_are_a_finding_with_an_action(written: Written) -> None:
    root = written("v2-aggregation")
    (root / "offsets" / "2").unlink()
    with pytest.raises(ObjectMissing, match=r"offsets/2: .*batch 2.* -> restore"):
        cleaned(root)


def test_a_query_with_another_state_store_is_not_reported_as_repaired(written: Written) -> None:
    root = written("v2-aggregation")
    for path in root.glob("offsets/[0-9]"):
        path.write_bytes(path.read_bytes().replace(b"RocksDBStateStoreProvider", b"HDFSBackedStateStoreProvider"))
    with pytest.raises(UnknownFormatVersion, match="HDFSBackedStateStoreProvider"):
        repair.plan(repair.gather(open_storage(str(root))), None)


def test_a_query_rolled_back_to_its_start_is_reported_repaired_and_the_repair_undone(
    written: Written,
) -> None:
    """Whoever deletes all commits and offsets leaves snapshots that a later restart takes for its own."""
    root = written("v1-a-zip-for-each-version")
    for log in ("commits", "offsets"):
        shutil.rmtree(root / log)
    storage = open_storage(str(root))
    before = {entry.path for entry in storage.list(names.STATE)}
    found = audited(root).findings
    assert {(f.kind, f.severity, f.file) for f in found} == {
        (FindingKind.ROLLED_BACK_FILES, Severity.ERROR, f"state/0/{partition}/1.zip") for partition in (0, 1)
    }
    run = RandomIds().fresh()
    done = list(repair.execute(storage, repair.plan(repair.gather(storage), None), run=run))
    assert {action.path for action in done} == {path for path in before if path.endswith((".zip", ".changelog"))}
    assert audited(root).findings == ()
    assert list(undo.execute(storage, run, undo.plan(undo.gather(storage, run))))
    assert {entry.path for entry in storage.list(names.STATE)} == before


def test_files_of_the_first_batch_are_no_finding_while_it_runs(written: Written) -> None:
    root = written("v2-aggregation")
    shutil.rmtree(root / "commits")
    for number in (1, 2):
        (root / "offsets" / str(number)).unlink()
        (root / "offsets" / f".{number}.crc").unlink()
        for path in root.glob(f"state/0/*/{number + 1}_*"):
            path.unlink()
    assert audited(root).findings == ()
    assert repair.plan(repair.gather(open_storage(str(root))), None).actions == ()
