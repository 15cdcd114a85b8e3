"""Checkpoints that Spark wrote, in which the files that describe the state are damaged, or the checkpoint was moved."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from statekeeper.statestore.cli import main
from statekeeper.statestore.maintenance.upkeep.audit import Audit, FindingKind, Severity, gather, judge
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.storage.urls import Locality, as_spark_writes_it, locality
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
DESCRIPTIONS = {FindingKind.DESCRIPTION_MISSING, FindingKind.DESCRIPTION_UNREADABLE}

Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return lambda name: unpacked(FIXTURES / f"spark-4.2.0-{name}.zip", tmp_path)


def audited(root: Path, scratch: Path | None = None) -> Audit:
    return judge(gather(open_storage(str(root)), scratch=scratch))


def kinds(audit: Audit) -> set[FindingKind]:
    return {finding.kind for finding in audit.findings}


def output_of(root: Path, verb: str, *options: str, exit_code: int = 0) -> str:
    done = CliRunner().invoke(main, [verb, str(root), *options])
    assert done.exit_code == exit_code, (done.output, done.exception)
    return " ".join(done.output.split())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


SCHEMAS = [
    ("v1-aggregation", "state/0/0/_metadata/schema"),
    ("v2-aggregation", "state/0/0/_metadata/schema"),
    *(
        ("v1-join-2", f"state/0/0/{side}-{kind}/_metadata/schema")
        for side in ("left", "right")
        for kind in ("keyToNumValues", "keyWithIndexToValue")
    ),
    ("v1-join-4-checksums-and-commas", "state/0/_stateSchema/default/[0-9]*"),
    ("v2-transformWithState", "state/0/_stateSchema/default/[0-9]*"),
    ("v1-two-operators-zstd", "state/1/0/_metadata/schema"),
    ("v2-transformWithState", "state/0/_metadata/v2/0"),
    ("v2-repartitioned", "state/0/_metadata/v2/0"),
    ("v2-repartitioned", "state/0/_metadata/v2/3"),
]


@pytest.mark.parametrize("damage", [Path.unlink, cut, emptied], ids=["deleted", "truncated", "emptied"])
@pytest.mark.parametrize(("form", "pattern"), SCHEMAS)
def test_a_damaged_state_schema_is_a_finding_with_its_file(
    written: Written, form: str, pattern: str, damage: Callable[[Path], None]
) -> None:
    root = written(form)
    [path] = root.glob(pattern)
    damage(path)
    found = {one.file for one in audited(root).findings if one.kind in DESCRIPTIONS}
    if damage is not Path.unlink or "v2" not in pattern:
        assert found == {pattern.replace("[0-9]*", path.name)}
    elif form == "v2-repartitioned" and path.name == "0":
        assert found == set(), "Spark purges the metadata that no retained batch needs"
    else:
        assert found == {"state/0/_metadata/metadata"} or path.name == "3"


@pytest.mark.parametrize(("form", "pattern"), [one for one in SCHEMAS if "_metadata/v2" not in one[1]])
def test_a_state_schema_of_an_unknown_version_is_a_finding_with_its_file(
    written: Written, form: str, pattern: str
) -> None:
    root = written(form)
    [path] = root.glob(pattern)
    body = path.read_bytes()
    path.write_bytes(body[:3] + b"9" + body[4:])
    [finding] = audited(root).findings
    assert (finding.kind, finding.severity) == (FindingKind.DESCRIPTION_UNREADABLE, Severity.WARNING)
    assert finding.file == pattern.replace("[0-9]*", path.name)
    assert "has state schema version 'v9'" in finding.problem
    assert "upgrade Statekeeper" in output_of(root, "audit", exit_code=3)


@pytest.mark.parametrize("form", ["v1-aggregation", "v2-aggregation"])
def test_offsets_of_an_unknown_version_are_no_clean_audit(written: Written, form: str) -> None:
    root = written(form)
    path = max((root / "offsets").glob("[0-9]*"), key=lambda one: int(one.name))
    path.write_text(path.read_text().replace("v1", "v7", 1).replace("v2", "v7", 1))
    told = output_of(root, "audit", exit_code=3)
    assert f"offsets/{path.name}: has log version v7" in told
    assert "upgrade Statekeeper" in told


def test_the_rows_reveal_a_wrong_type_in_a_schema(written: Written, tmp_path: Path) -> None:
    root = written("v1-aggregation")
    path = root / "state/0/0/_metadata/schema"
    path.write_bytes(path.read_bytes().replace(b'"string"', b'"double"', 1))
    path.with_name(".schema.crc").unlink()
    assert audited(root).findings == ()
    audit = audited(root, tmp_path / "scratch")
    assert kinds(audit) == {FindingKind.CHANGELOG_UNREADABLE}
    assert "has rows that do not match the schema in state/0/0/_metadata/schema" in audit.findings[0].problem


@pytest.mark.parametrize(
    ("form", "one", "other"),
    [
        ("v1-two-operators-zstd", "state/0/0/2.changelog", "state/1/0/2.changelog"),
        ("v1-join-2", "state/0/1/left-keyToNumValues/3.changelog", "state/0/1/left-keyWithIndexToValue/3.changelog"),
    ],
)
def test_whole_files_swapped_between_operators_in_v1_do_not_decode(
    written: Written, tmp_path: Path, form: str, one: str, other: str
) -> None:
    root = written(form)
    for left, right in ((root / one, root / other), *[(hidden(root / one), hidden(root / other))]):
        bodies = left.read_bytes(), right.read_bytes()
        left.write_bytes(bodies[1])
        right.write_bytes(bodies[0])
    audit = audited(root, tmp_path / "scratch")
    assert {one, other} <= {finding.file for finding in audit.findings}
    assert all(finding.severity is Severity.ERROR for finding in audit.findings)


def hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def test_a_log_changed_without_hadoop_is_a_finding(written: Written, tmp_path: Path) -> None:
    root = written("v1-windows-lzf")
    path = root / "commits/2"
    path.write_bytes(path.read_bytes().replace(b'Ms":', b'Ms":1'))
    assert audited(root).findings == ()
    [finding] = audited(root, tmp_path / "scratch").findings
    assert (finding.kind, finding.severity, finding.file) == (
        FindingKind.DESCRIPTION_CHANGED,
        Severity.WARNING,
        "commits/2",
    )
    hidden(path).unlink()
    assert audited(root, tmp_path / "scratch").findings == ()


def test_a_query_id_that_java_cannot_parse_is_a_finding(written: Written) -> None:
    root = written("v1-aggregation")
    path = root / "metadata"
    path.write_bytes(path.read_bytes().replace(b'"id":"', b'"id":"x', 1))
    assert kinds(audited(root)) == {FindingKind.DESCRIPTION_UNREADABLE}


MOVED = ["v2-transformWithState", "v1-join-4-checksums-and-commas", "v2-join-3", "v2-repartitioned"]


@pytest.mark.parametrize("form", MOVED)
def test_a_moved_checkpoint_is_reported_repaired_and_the_repair_undone(
    written: Written, tmp_path: Path, form: str
) -> None:
    root = tmp_path / "elsewhere" / "a new place"
    shutil.move(written(form), root)
    before = {path: path.read_bytes() for path in root.glob("state/*/_metadata/v2/[0-9]*")}
    found = audited(root).findings
    assert {(one.kind, one.severity) for one in found} == {(FindingKind.DESCRIPTION_MOVED, Severity.ERROR)}
    assert audited(root).breaks == (), "nothing is lost: retention deletes as before"
    assert f"statekeeper repair {open_storage(str(root)).url} --apply --confirm-stopped" in found[0].action
    assert "former location" in output_of(root, "repair", exit_code=3)
    assert {path: path.read_bytes() for path in before} == before
    run = re.findall(r"--undo ([0-9a-f-]{36})", output_of(root, "repair", "--apply", "--confirm-stopped"))[0]
    assert audited(root, tmp_path / "scratch").findings == ()
    for path in before:
        text = path.read_text()
        assert f'"file:{root}/state/0/_stateSchema/' in text
        assert "operatorPropertiesJson" in text
    assert "nothing to repair" in output_of(root, "repair")
    output_of(root, "repair", "--undo", run, "--confirm-stopped")
    assert {path: path.read_bytes() for path in before} == before


def test_a_user_can_give_sparks_url_of_the_checkpoint(written: Written) -> None:
    root = written("v2-transformWithState")
    metadata = root / "state/0/_metadata/v2/0"
    metadata.write_bytes(metadata.read_bytes().replace(b"file:", b"s3a:/"))
    [found] = audited(root).findings
    assert (found.kind, found.severity) == (FindingKind.DESCRIPTION_MOVED, Severity.WARNING)
    assert "add --location with the URL that Spark uses" in output_of(root, "repair", exit_code=3)
    output_of(root, "repair", "--location", f"file:{root}", "--apply", "--confirm-stopped")
    assert audited(root).findings == ()
    assert "nothing to repair" in output_of(root, "repair")


@pytest.mark.parametrize(
    ("root", "location", "found", "written"),
    [
        ("file:///data/a%20b", "file:/data/a b", Locality.HERE, "file:/data/a b"),
        ("file:///data/b", "file:///data/b/", Locality.HERE, "file:/data/b"),
        ("file:///data/b", "file:/data/c", Locality.ELSEWHERE, "file:/data/b"),
        ("s3://bucket/x", "s3a://bucket/x", Locality.HERE, "s3a://bucket/x"),
        ("s3://bucket/x", "s3n://bucket/x", Locality.HERE, "s3n://bucket/x"),
        ("s3://bucket/x", "s3a://other/x", Locality.ELSEWHERE, "s3a://bucket/x"),
        ("s3://bucket/x", "file:/x", Locality.UNKNOWN, "s3a://bucket/x"),
        ("webhdfs://host:9870/x", "hdfs://host:8020/x", Locality.HERE, "hdfs://host:8020/x"),
        ("webhdfs://host:9870/y", "hdfs://host:8020/x", Locality.ELSEWHERE, "hdfs://host:8020/y"),
        ("webhdfs://host:9870/y", "s3a://bucket/x", Locality.UNKNOWN, None),
        ("abfss://c@a.dfs.core.windows.net/x", "abfs://c@a.dfs.core.windows.net/x", Locality.HERE, None),
        ("gs://bucket/x", "file:/x", Locality.UNKNOWN, "gs://bucket/x"),
    ],
)
def test_all_urls_of_a_location_are_recognized(root: str, location: str, found: Locality, written: str | None) -> None:
    assert locality(root, location) is found
    if written is not None or found is Locality.UNKNOWN:
        assert as_spark_writes_it(root, location) == written


def test_a_root_reached_through_a_link_was_not_moved(written: Written, tmp_path: Path) -> None:
    root = written("v2-transformWithState")
    there = tmp_path / "volume"
    there.mkdir()
    shutil.move(root, there / "checkpoint")
    root.symlink_to(there / "checkpoint")
    assert audited(root).findings == ()
