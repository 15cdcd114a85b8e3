"""Checkpoints of Spark's default provider: read, audited and cloned without starting Spark; other verbs reject them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import PROVIDER, Provider
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import Audit, FindingKind, Severity
from tests.support.damage import flips, prefixes
from tests.support.dumped import dumped
from tests.support.maintainers import MAINTAINER
from tests.support.written import Written, is_clean_and_as_spark_shows, written_checkpoints

FIXTURES = written_checkpoints("hdfs")
NEXT_STEP = "statekeeper convert ROOT --to rocksdb"
STOPPED = "--confirm-stopped"


@pytest.fixture(params=FIXTURES, ids=lambda path: path.stem.partition("hdfs-")[2])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    return Written.unpacked(request.param, tmp_path)


@pytest.fixture
def aggregation(tmp_path: Path) -> Written:
    """Three versions of two stores, each with a delta; some have a snapshot."""
    [path] = [path for path in FIXTURES if path.stem.endswith("hdfs-aggregation")]
    return Written.unpacked(path, tmp_path)


def of_kind(written: Written, suffix: str) -> list[Path]:
    return sorted(path for path in written.checkpoint.glob(f"state/**/*.{suffix}") if path.name[0] != ".")


def audited(written: Written, folder: Path) -> Audit:
    return audit.judge(audit.gather(written.storage, scratch=folder / "scratch"))


def statekeeper(*arguments: object, exit_code: int = 0) -> str:
    done = CliRunner().invoke(main, [str(one) for one in arguments], obj=MAINTAINER)
    assert done.exit_code == exit_code, done.output
    return done.output


def test_there_is_one_for_each_operator_of_the_provider() -> None:
    assert len(FIXTURES) == 11


def test_the_audit_is_clean_and_the_dump_equals_sparks_rows(written: Written, tmp_path: Path) -> None:
    is_clean_and_as_spark_shows(written, tmp_path)


def test_every_version_is_the_same_with_and_without_snapshots(written: Written) -> None:
    assert of_kind(written, "snapshot")
    heads = catalog.heads(written.storage)
    assert heads is not None
    versions = range(1, heads.batch + 2)
    before = [dumped(written.checkpoint, "--version", version) for version in versions]
    for path in of_kind(written, "snapshot"):
        path.unlink()
    assert [dumped(written.checkpoint, "--version", version) for version in versions] == before
    assert written.differing(before[-1]) == []


def test_a_snapshot_replaces_the_deltas_before_it(aggregation: Written, tmp_path: Path) -> None:
    before = dumped(aggregation.checkpoint)
    for snapshot in of_kind(aggregation, "snapshot"):
        for delta in snapshot.parent.glob("*.delta"):
            if int(delta.stem) <= int(snapshot.stem):
                delta.unlink()
    assert dumped(aggregation.checkpoint) == before
    assert [f.kind for f in audited(aggregation, tmp_path).findings if f.severity is Severity.ERROR] == []


def test_inspect_shows_the_provider(aggregation: Written) -> None:
    shown = json.loads(statekeeper("inspect", aggregation.checkpoint, "--output", "json"))
    assert (shown["provider"], shown["structure"]) == (Provider.HDFS_BACKED.value, "v1")
    assert [(store["head"], store["problem"]) for store in shown["stores"]] == [("3", None), ("3", None)]
    assert shown["advice"] == []
    assert Provider.HDFS_BACKED.value in statekeeper("inspect", aggregation.checkpoint)


def test_a_checkpoint_without_the_conf_has_sparks_default(aggregation: Written) -> None:
    """Only the two newest offsets are read by a restart."""
    for batch in range(3):
        path = aggregation.checkpoint / names.offsets(batch)
        log = logs.parse_offsets(path.read_bytes(), path.name)
        del log.conf[PROVIDER]
        path.write_bytes(logs.encode_offsets(log))
    assert aggregation.differing(dumped(aggregation.checkpoint)) == []


def test_a_provider_of_another_library_is_rejected(aggregation: Written) -> None:
    for batch in range(3):
        path = aggregation.checkpoint / names.offsets(batch)
        path.write_bytes(path.read_bytes().replace(Provider.HDFS_BACKED.class_name.encode(), b"com.example.Store"))
    for verb in ("inspect", "audit", "dump"):
        assert "unsupported_provider" in statekeeper(verb, aggregation.checkpoint, exit_code=12)


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_missing_delta_loses_the_versions_from_it_on(aggregation: Written, tmp_path: Path) -> None:
    for path in of_kind(aggregation, "snapshot"):
        path.unlink()
    gone = aggregation.checkpoint / "state/0/1/2.delta"
    gone.unlink()
    found = audited(aggregation, tmp_path)
    [finding] = found.findings
    assert (finding.kind, finding.file, finding.severity) == (
        FindingKind.CHANGELOG_MISSING,
        "state/0/1/2.delta",
        Severity.ERROR,
    )
    assert found.restart.batch == 0
    output = statekeeper("dump", aggregation.checkpoint, exit_code=1)
    assert "version_not_loadable: state/0/1/2.delta" in output


def test_a_damaged_snapshot_is_reported_and_a_dump_uses_the_deltas(aggregation: Written, tmp_path: Path) -> None:
    before = dumped(aggregation.checkpoint)
    for path in of_kind(aggregation, "snapshot"):
        path.write_bytes(path.read_bytes()[:-9])
    found = audited(aggregation, tmp_path)
    assert {finding.kind for finding in found.findings} == {FindingKind.SNAPSHOT_UNREADABLE}
    assert all("move" in finding.action and "repair" not in finding.action for finding in found.findings)
    assert found.restart.batch == 2
    assert dumped(aggregation.checkpoint) == before


@pytest.mark.parametrize("suffix", ["delta", "snapshot"])
def test_every_flipped_byte_and_every_prefix_is_found_by_the_deep_audit(
    aggregation: Written, tmp_path: Path, suffix: str
) -> None:
    """The level in the end mark of lz4 is not used: one of these flips changes nothing."""
    path = of_kind(aggregation, suffix)[0]
    right, unnoticed = path.read_bytes(), 0
    # One flip of every third byte, and every ninth prefix, keep the test short.
    for bad in [*flips(right)][::9] + [*prefixes(right)][::9]:
        path.write_bytes(bad)
        files = {finding.file for finding in audited(aggregation, tmp_path).findings}
        unnoticed += not files
        assert files <= {str(path.relative_to(aggregation.checkpoint))}
    assert unnoticed <= 1


def test_files_of_another_provider_and_odd_names_are_reported(aggregation: Written, tmp_path: Path) -> None:
    store = aggregation.checkpoint / "state/0/0"
    kinds = {
        "4.changelog": FindingKind.FOREIGN_FILE,
        "4.zip": FindingKind.FOREIGN_FILE,
        "x.delta": FindingKind.NAME_STOPS_CLEANUP,
        "x.snapshot": FindingKind.NAME_STOPS_LOADS,
    }
    for name in kinds:
        (store / name).write_bytes(b"x")
    found = {finding.file.rpartition("/")[2]: finding.kind for finding in audited(aggregation, tmp_path).findings}
    assert found == kinds


def test_snapshots_of_rolled_back_batches_are_an_error(aggregation: Written, tmp_path: Path) -> None:
    store = aggregation.checkpoint / "state/0/0"
    shutil.copyfile(of_kind(aggregation, "snapshot")[0], store / "9.snapshot")
    [finding] = audited(aggregation, tmp_path).findings
    assert (finding.kind, finding.severity) == (FindingKind.ROLLED_BACK_FILES, Severity.ERROR)
    assert "9.snapshot" in finding.meaning
    assert "repair" not in finding.action


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_clone_has_the_rows_of_its_batch(aggregation: Written, tmp_path: Path, batch: int) -> None:
    to = tmp_path / "clone"
    statekeeper("clone", aggregation.checkpoint, to, "--batch", batch, STOPPED, "--scratch", tmp_path)
    assert dumped(to) == dumped(aggregation.checkpoint, "--version", batch + 1)
    assert not list(to.glob(f"state/**/{batch + 2}.*"))
    cloned = Written(to, aggregation.views)
    assert audited(cloned, tmp_path).findings == ()
    assert (cloned.differing(dumped(to)) == []) == (batch == 2)


def test_a_clone_of_a_running_query_stays_two_batches_behind(aggregation: Written, tmp_path: Path) -> None:
    to = tmp_path / "clone"
    statekeeper("clone", aggregation.checkpoint, to, "--scratch", tmp_path)
    heads = catalog.heads(Written(to, {}).storage)
    assert heads is not None
    assert heads.batch == 0
    output = statekeeper("clone", aggregation.checkpoint, tmp_path / "b", "--batch", 2, exit_code=13)
    assert "add --confirm-stopped" in output


def test_a_savepoint_with_rows_is_made(aggregation: Written, tmp_path: Path) -> None:
    to = tmp_path / "savepoint"
    statekeeper("savepoint", aggregation.checkpoint, to, "--rows", "--label", "a", STOPPED, "--scratch", tmp_path)
    assert list(to.rglob("*.parquet"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("snapshot", "--all"),
        ("snapshot", "--at-head", STOPPED),
        ("gc", "--apply", "--mode", "full"),
        ("switch", "--to", "v2", "--apply", STOPPED),
        ("repair", "--apply", STOPPED),
        ("repair", "--deep", "--apply", STOPPED),
        ("inspect", "--lineage", "0/0"),
        ("mirror", "DESTINATION"),
    ],
    ids=" ".join,
)
def test_other_verbs_name_the_provider_and_the_next_step(
    aggregation: Written, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in aggregation.checkpoint.rglob("*")}
    verb, *options = arguments
    options = [str(tmp_path / "to") if option == "DESTINATION" else option for option in options]
    output = statekeeper(verb, aggregation.checkpoint, *options, exit_code=12)
    assert "unsupported_provider" in output
    assert Provider.HDFS_BACKED.value in output
    assert NEXT_STEP.replace("ROOT", str(aggregation.checkpoint)) in output
    assert {path: path.stat().st_mtime_ns for path in aggregation.checkpoint.rglob("*")} == before
    assert not (tmp_path / "to").exists()


def test_names_of_files_depend_on_the_provider() -> None:
    store = StorePath(0, 1, "left", Provider.HDFS_BACKED)
    assert store == StorePath(0, 1, "left")
    assert store.changelog(VersionId(3)) == "state/0/1/left/3.delta"
    assert store.snapshot(VersionId(3)) == "state/0/1/left/3.snapshot"
    assert names.parse_store_file("3_00000000-0000-4000-8000-000000000000.delta", Provider.HDFS_BACKED) is None
    assert names.parse_store_file("3.delta") is None
    assert names.parse_store_file("3.zip", Provider.HDFS_BACKED) is None
