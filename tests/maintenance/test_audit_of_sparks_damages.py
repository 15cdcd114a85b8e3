"""What is known to go wrong with checkpoints that Spark writes: each made on purpose, and diagnosed by name.

The checkpoints are made without Spark, as Spark leaves them. tests/interop/test_sparks_damages.py does the same to real
ones, and asks Spark what it makes of them.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import catalog
from statestore.clock import SystemClock
from statestore.errors import CorruptFile, UnknownFormatVersion
from statestore.format import logs, names, operators
from statestore.format.changelog import ChangelogWriter, Header
from statestore.format.checksum import checksum
from statestore.format.logs import CODEC, PROVIDER, STATE_CONF, CommitLog, OffsetLog
from statestore.format.names import StorePath, VersionId
from statestore.format.snapshot import Snapshot, encode_snapshot, read_snapshot
from statestore.maintenance import repair, retention
from statestore.maintenance.audit import Audit, AuditPolicy, Finding, FindingKind, Severity, gather, judge
from statestore.maintenance.repair import RepairReason
from statestore.maintenance.retention import RetentionPolicy
from statestore.storage import Storage, open_storage
from tests.support.changelogs import changelog_with_families
from tests.support.checkpoints import NO_ROWS, ROOT_ID, Checkpoint
from tests.support.hosts import column
from tests.support.snapshots import publish_snapshot, take

SOME_ID = "0badc0de-0000-4000-8000-000000000000"
STORE = StorePath(0, 0)


def audited(storage: Storage, scratch: Path | None = None, **policy: Any) -> Audit:
    return judge(gather(storage, scratch=scratch), AuditPolicy(**policy))


def the_only_finding(audit: Audit) -> Finding:
    assert len(audit.findings) == 1, audit.findings
    return audit.findings[0]


def commit(storage: Storage, batch: int, ids: Iterable[str] | None, conf: dict[str, str] = STATE_CONF) -> None:
    storage.replace(names.offsets(batch), logs.encode_offsets(OffsetLog(0, 0, conf, ('"a source"',))))
    of_operator = None if ids is None else {0: tuple((one,) for one in ids)}
    storage.replace(names.commits(batch), logs.encode_commit(CommitLog(0, of_operator)))


def add_schema(storage: Storage) -> None:
    storage.create(names.state_schema(0), operators.encode_schema(NO_ROWS.key_json, NO_ROWS.value_json))


def describe(storage: Storage, partitions: int = 1, path: str = names.operator_metadata(0)) -> None:
    storage.create(names.QUERY_METADATA, logs.encode_metadata(ROOT_ID))
    info = operators.StoreInfo(names.DEFAULT_STORE, 0, partitions)
    add_schema(storage)
    storage.create(path, operators.encode_operator(operators.OperatorMetadata(0, "agg", (info,))))


def changelog(number: int, lineage: tuple[VersionId, ...] | None = None) -> bytes:
    body = io.BytesIO()
    writer = ChangelogWriter(body, Header(lineage))
    writer.append(column([b"key %d" % number]), column([b"value %d" % number]))
    writer.finish()
    return body.getvalue()


def add_sidecar(storage: Storage, path: str) -> None:
    said = checksum([storage.read(path)])
    body = {"algorithm": "CRC32C", "value": said.value, "mainFileSize": said.size_bytes, "timestampMs": 1}
    storage.replace(names.sidecar(path), json.dumps(body).encode())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Structure V2, two stores, versions 1 to 6, snapshots of version 3."""
    folder = tmp_path_factory.mktemp("made")
    checkpoint = Checkpoint(open_storage(str(folder / "root")), folder)
    checkpoint.grow(3)
    take(checkpoint.storage, folder)
    checkpoint.grow(3)
    storage = checkpoint.storage
    for batch in range(6):
        commit(storage, batch, [str(version.id) for version in checkpoint.versions[batch + 1]])
    for entry in storage.list(names.STATE):
        if entry.path.endswith((".changelog", ".zip")):
            add_sidecar(storage, entry.path)
    storage.delete([entry.path for entry in storage.list(names.CONTROL)])
    return checkpoint


@pytest.fixture
def v2(made: Checkpoint, tmp_path: Path) -> Checkpoint:
    return made.copied_to(open_storage(str(tmp_path / "of V2")), tmp_path)


@pytest.fixture
def v1(tmp_path: Path) -> Storage:
    """Structure V1, one store, versions 1 to 6, a snapshot of version 3."""
    storage = open_storage(str(tmp_path / "of V1"))
    describe(storage)
    for number in range(1, 7):
        storage.create(STORE.changelog(VersionId(number)), changelog(number))
        commit(storage, number - 1, None)
    publish_snapshot(storage, STORE, VersionId(3), {b"key %d" % n: b"value %d" % n for n in (1, 2, 3)}, tmp_path)
    return storage


def path_of(checkpoint: Checkpoint, kind: str, version: int, partition: int = 0) -> str:
    store, found = checkpoint.stores[partition], checkpoint.versions[version][partition]
    return store.changelog(found) if kind == "changelog" else store.snapshot(found)


def test_whole_checkpoints_are_clean_and_what_no_file_shows_is_said(
    v1: Storage, v2: Checkpoint, tmp_path: Path
) -> None:
    for scratch in (None, tmp_path / "scratch"):
        of_v1, of_v2 = audited(v1, scratch), audited(v2.storage, scratch)
        assert of_v1.findings == of_v2.findings == ()
        assert any("a late task attempt overwrote" in text for text in of_v1.unproven)
        assert not any("a late task attempt overwrote" in text for text in of_v2.unproven)
        assert any("checksum files of Spark" in text for text in of_v2.unproven) == (scratch is None)


# -- sidecars, SPARK-51972 ---------------------------------------------------------------------------------------------

SIDECAR_HARMS: dict[str, tuple[Callable[[dict[str, Any]], bytes], str]] = {
    "another checksum": (lambda said: json.dumps({**said, "value": 7}).encode(), "has checksum 7, but the file has "),
    "another size": (
        lambda said: json.dumps({**said, "mainFileSize": 7}).encode(),
        "has size 7 bytes, but the file has ",
    ),
    "garbage": (lambda said: b"garbage", "not JSON"),
    "empty": (lambda said: b"", ""),
}


@pytest.mark.parametrize("how", list(SIDECAR_HARMS))
@pytest.mark.parametrize(
    ("kind", "version", "versions"),
    [("changelog", 5, "versions 5 to 6 (batches 4 to 5)"), ("zip", 3, "versions 3 to 6 (batches 2 to 5)")],
)
def test_a_sidecar_that_does_not_fit_a_good_file_is_named_with_the_versions_that_spark_cannot_load(
    v2: Checkpoint, tmp_path: Path, how: str, kind: str, version: int, versions: str
) -> None:
    path = path_of(v2, kind, version)
    make, problem = SIDECAR_HARMS[how]
    v2.storage.replace(names.sidecar(path), make(json.loads(v2.storage.read(names.sidecar(path)))))
    finding = the_only_finding(audited(v2.storage, tmp_path / "scratch"))
    assert (finding.what, finding.severity, finding.file) == (
        FindingKind.SIDECAR_AT_ODDS,
        Severity.ERROR,
        names.sidecar(path),
    )
    assert problem in finding.problem
    assert "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED" in finding.meaning
    assert f"cannot restore {versions} from it" in finding.meaning
    assert "the query can restart from its newest batch, 5 (version 6)" in finding.meaning
    name = names.sidecar(path).rpartition("/")[2]
    mended = (
        f"delete {name}"
        if kind == "changelog"
        else f"to quarantine {name}, run: statekeeper repair ROOT --apply --confirm-stopped"
    )
    assert finding.action.startswith(f"the file is intact: {mended}")
    shallow = audited(v2.storage)
    seen = how == "empty" or kind == "zip"
    assert [one.what for one in shallow.findings] == ([FindingKind.SIDECAR_AT_ODDS] if seen else [])
    v2.storage.delete([names.sidecar(path)])
    assert audited(v2.storage, tmp_path / "scratch").findings == ()


def test_a_sidecar_of_a_changelog_that_no_load_reads_is_a_warning(v2: Checkpoint, tmp_path: Path) -> None:
    path = path_of(v2, "changelog", 3)
    v2.storage.replace(names.sidecar(path), b"garbage")
    finding = the_only_finding(audited(v2.storage, tmp_path / "scratch"))
    assert (finding.what, finding.severity) == (FindingKind.SIDECAR_AT_ODDS, Severity.WARNING)
    assert finding.meaning.endswith("every version loads without it")


def test_a_file_without_its_sidecar_and_a_sidecar_without_its_file_are_no_findings(
    v2: Checkpoint, tmp_path: Path
) -> None:
    v2.storage.delete([names.sidecar(path_of(v2, "changelog", 6)), names.sidecar(path_of(v2, "zip", 3))])
    v2.storage.create(names.sidecar(STORE.changelog(VersionId(1, SOME_ID))), b"garbage")
    assert audited(v2.storage).findings == audited(v2.storage, tmp_path / "scratch").findings == ()


def test_a_bad_file_is_the_finding_and_its_sidecar_none(v2: Checkpoint, tmp_path: Path) -> None:
    path = path_of(v2, "changelog", 6)
    v2.storage.replace(path, v2.storage.read(path)[:-9])
    finding = the_only_finding(audited(v2.storage, tmp_path / "scratch"))
    assert (finding.what, finding.file) == (FindingKind.CHANGELOG_UNREADABLE, path)


def test_where_the_codec_keeps_no_checksums_only_the_sidecar_tells_a_wrong_value(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"))
    describe(storage)
    version = VersionId(1, SOME_ID)
    plain = struct.pack(">H2sH2s", 2, b"v3", 2, b"[]") + struct.pack(">i2si5si", 2, b"kk", 5, b"value", -1)
    right, wrong = (pa.compress(text, "zstd", asbytes=True) for text in (plain, plain.replace(b"value", b"walue")))
    storage.create(STORE.changelog(version), right)
    add_sidecar(storage, STORE.changelog(version))
    commit(storage, 0, [SOME_ID], {**STATE_CONF, CODEC: "zstd"})
    audit = audited(storage, tmp_path / "scratch")
    assert audit.findings == ()
    assert any("codec zstd have no checksums" in text for text in audit.unproven)
    storage.replace(STORE.changelog(version), wrong)
    finding = the_only_finding(audited(storage, tmp_path / "scratch"))
    assert (finding.what, finding.severity) == (FindingKind.SIDECAR_AT_ODDS, Severity.ERROR)
    assert finding.action.startswith("restore the file and its checksum file from a backup")
    storage.delete([names.sidecar(STORE.changelog(version))])
    assert audited(storage, tmp_path / "scratch").findings == (), "said in `unproven`"


def test_in_v1_only_spark_4_1_compares_a_changelog_with_its_sidecar_and_nobody_a_snapshot(
    v1: Storage, tmp_path: Path
) -> None:
    """SPARK-56461."""
    v1.create(names.sidecar(STORE.changelog(VersionId(6))), b"garbage")
    v1.create(names.sidecar(STORE.snapshot(VersionId(3))), b"garbage")
    finding = the_only_finding(audited(v1, tmp_path / "scratch"))
    assert (finding.what, finding.severity) == (FindingKind.SIDECAR_AT_ODDS, Severity.WARNING)
    assert finding.meaning.startswith("Spark 4.1 (later releases ignore it in structure V1) rejects 6.changelog")


# -- Hadoop's hidden checksums -----------------------------------------------------------------------------------------


def hide(storage: Storage, path: str, *, fits: bool) -> str:
    body = storage.read(path)
    sums = b"".join(
        struct.pack(">I", zlib.crc32(body[start : start + 512]) ^ (not fits)) for start in range(0, len(body), 512)
    )
    storage.replace(names.hidden_checksum(path), struct.pack(">4sI", b"crc\0", 512) + sums)
    return names.hidden_checksum(path)


@pytest.mark.parametrize("structure", ["V1", "V2"])
def test_a_hidden_checksum_is_a_finding_where_spark_reads_through_hadoops_file_system(
    v1: Storage, v2: Checkpoint, tmp_path: Path, structure: str
) -> None:
    storage = v1 if structure == "V1" else v2.storage
    zips = [entry.path for entry in storage.list(STORE.folder) if entry.path.endswith(".zip")]
    tables = [entry.path for entry in storage.list(STORE.folder) if entry.path.endswith(".sst")]
    logs_of_changes = [entry.path for entry in storage.list(STORE.folder) if entry.path.endswith("6.changelog")]
    for path in (*zips, *tables):
        hide(storage, path, fits=True)
    assert audited(storage, tmp_path / "scratch").findings == ()
    hidden = {hide(storage, path, fits=False) for path in (*zips, *tables, *logs_of_changes)}
    assert audited(storage).findings == ()
    found = audited(storage, tmp_path / "scratch").findings
    checked = (
        {names.hidden_checksum(path) for path in (*zips, *tables)}
        if structure == "V1"
        else {names.hidden_checksum(path) for path in tables}
    )
    assert {(one.what, one.severity, one.file) for one in found} == {
        (FindingKind.HIDDEN_CHECKSUM_AT_ODDS, Severity.ERROR, path) for path in checked
    }
    assert all("ChecksumException" in one.meaning and "versions 3 to 6" in one.meaning for one in found)
    shutil.rmtree(tmp_path / "scratch")
    storage.delete(hidden)
    assert audited(storage, tmp_path / "scratch").findings == ()


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "in_v1", "in_v2"),
    [
        ("foo.zip", FindingKind.NAME_STOPS_LOADS, FindingKind.NAME_STOPS_CLEANUP),
        (".6.zip", FindingKind.NAME_STOPS_LOADS, FindingKind.NAME_STOPS_CLEANUP),
        ("24_x.zip", FindingKind.NAME_STOPS_LOADS, FindingKind.FOREIGN_FILE),
        ("007.zip", FindingKind.NAME_STOPS_LOADS, FindingKind.FOREIGN_FILE),
        (f"2_{SOME_ID}.zip", FindingKind.NAME_STOPS_LOADS, None),
        ("2.zip", None, None),
        ("foo.changelog", FindingKind.NAME_STOPS_CLEANUP, FindingKind.NAME_STOPS_CLEANUP),
        ("foo.crc", FindingKind.FOREIGN_FILE, FindingKind.FOREIGN_FILE),
        ("foo.zip.bak", FindingKind.FOREIGN_FILE, FindingKind.FOREIGN_FILE),
        (f".6_{SOME_ID}.changelog.{SOME_ID}.tmp", None, None),
        (".6.changelog.crc", None, None),
        ("SSTs/.foo.zip", None, None),
    ],
)
def test_a_name_is_judged_by_what_spark_does_over_it(
    v1: Storage, v2: Checkpoint, name: str, in_v1: FindingKind | None, in_v2: FindingKind | None
) -> None:
    path = f"{STORE.folder}/{name}"
    metadata = read_snapshot(v1.read(STORE.snapshot(VersionId(3))), "3.zip").metadata
    body = encode_snapshot(Snapshot({"CURRENT": b"x"}, metadata))
    for storage, expected in ((v1, in_v1), (v2.storage, in_v2)):
        storage.create(path, body)
        found = audited(storage).findings
        assert [(one.what, one.file) for one in found] == ([] if expected is None else [(expected, path)])
        for one in found:
            assert (one.severity is Severity.ERROR) == (expected is FindingKind.NAME_STOPS_LOADS)
            assert ("out of the checkpoint" in one.action) == (expected is not FindingKind.FOREIGN_FILE)
        storage.delete([path])


# -- time lines that were given up -------------------------------------------------------------------------------------


def roll_back(storage: Storage, to: int) -> None:
    """Go back to a batch as people do it: by hand, and only in the logs."""
    storage.delete(path(batch) for batch in range(to + 1, 6) for path in (names.commits, names.offsets))


def test_a_query_that_was_taken_back_in_v1_would_load_a_snapshot_of_what_was_given_up(
    v1: Storage, tmp_path: Path
) -> None:
    publish_snapshot(v1, STORE, VersionId(5), {b"given": b"up"}, tmp_path)
    assert audited(v1).findings == ()
    roll_back(v1, 2)
    audit = audited(v1)
    finding = the_only_finding(audit)
    assert (finding.what, finding.severity, finding.file) == (
        FindingKind.ROLLED_BACK_FILES,
        Severity.ERROR,
        "state/0/0/5.zip",
    )
    assert "after version 5, a restart loads 5.zip and silently uses wrong state" in finding.meaning
    assert "statekeeper repair ROOT --apply --confirm-stopped" in finding.action
    v1.delete(f"state/0/0/{name}" for name in ("5.zip", "4.changelog", "5.changelog", "6.changelog"))
    assert audited(v1).findings == ()


def test_in_v2_what_was_given_up_is_loaded_by_nobody_and_a_warning(v2: Checkpoint, tmp_path: Path) -> None:
    roll_back(v2.storage, 3)
    found = audited(v2.storage).findings
    assert [(one.what, one.severity, one.store) for one in found] == [
        (FindingKind.ROLLED_BACK_FILES, Severity.WARNING, store) for store in v2.stores
    ]
    assert all("no load uses them" in one.meaning and "maintenance" not in one.meaning for one in found)
    publish_snapshot(v2.storage, STORE, VersionId(9, SOME_ID), {b"given": b"up"}, tmp_path)
    v2.storage.create(STORE.snapshot(VersionId(9)), b"of structure V1")
    worse = audited(v2.storage).findings[0]
    assert "/9" in worse.file
    assert worse.severity is Severity.WARNING
    assert "maintenance counts from their newest version" in worse.meaning
    for number in (120, 300):
        publish_snapshot(v2.storage, STORE, VersionId(number, SOME_ID), {b"given": b"up"}, tmp_path)
    worst = audited(v2.storage).findings[0]
    assert worst.severity is Severity.ERROR
    assert "still needed (all below version 120)" in worst.meaning
    v2.assert_right(tmp_path / "host", 3)


@pytest.mark.parametrize("begun", [False, True])
def test_the_repair_puts_aside_just_the_time_line_that_the_audit_tells_of(
    v1: Storage, v2: Checkpoint, begun: bool
) -> None:
    for storage in (v1, v2.storage):
        for batch in (3, 4, 5):
            storage.delete([names.commits(batch), *([] if begun and batch == 3 else [names.offsets(batch)])])
        told = [finding for finding in audited(storage).findings if finding.what is FindingKind.ROLLED_BACK_FILES]
        plan = repair.plan(repair.gather(storage), None)
        assert {action.why for action in plan.actions} == {RepairReason.ROLLED_BACK_FILES}
        assert told
        assert {finding.file for finding in told} <= {action.path for action in plan.actions}
        assert all("of versions up to 6" in finding.problem for finding in told)
        first = 5 if begun else 4
        assert all(f"the logs end at version {first - 1}" in finding.problem for finding in told)
        places = [names.parse_store_path(action.path.removesuffix(names.SIDECAR)) for action in plan.actions]
        assert {place[1].version.version for place in places if place} == set(range(first, 7))
        list(repair.execute(storage, plan, run=SOME_ID))
        assert not [finding for finding in audited(storage).findings if finding.what is FindingKind.ROLLED_BACK_FILES]
        assert repair.plan(repair.gather(storage), None).actions == ()


def test_offsets_that_are_further_than_the_commits_are_the_only_finding_as_long_as_they_lie_there(v1: Storage) -> None:
    v1.delete(names.commits(batch) for batch in (3, 4, 5))
    assert the_only_finding(audited(v1)).what is FindingKind.OFFSETS_AHEAD
    v1.delete(names.offsets(batch) for batch in (3, 4, 5))
    assert the_only_finding(audited(v1)).what is FindingKind.ROLLED_BACK_FILES


def test_the_version_that_a_running_batch_makes_is_of_no_dead_time_line(v1: Storage, v2: Checkpoint) -> None:
    v1.create(STORE.changelog(VersionId(7)), b"x")
    v1.create(STORE.snapshot(VersionId(7)), b"x")
    assert the_only_finding(audited(v1)).what is FindingKind.ROLLED_BACK_FILES
    v1.create(names.offsets(6), v1.read(names.offsets(5)))
    assert audited(v1).findings == ()


def test_a_query_that_commits_while_its_files_are_listed_was_not_taken_back(
    v1: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = v1.list

    def goes_on(prefix: str, **how: Any) -> Any:
        if prefix == names.STATE:
            monkeypatch.undo()
            for number in (7, 8, 9):
                v1.create(STORE.changelog(VersionId(number)), changelog(number))
                commit(v1, number - 1, None)
        return listing(prefix, **how)

    monkeypatch.setattr(v1, "list", goes_on)
    audit = audited(v1)
    assert (audit.batch, audit.findings) == (5, ())


# -- both structures in one checkpoint ---------------------------------------------------------------------------------


def switched(v1: Storage, tmp_path: Path) -> VersionId:
    """From V1 to V2 at version 7, as Spark would have to do it."""
    first = VersionId(7, SOME_ID)
    publish_snapshot(v1, STORE, first, {b"key": b"value"}, tmp_path)
    commit(v1, 6, [SOME_ID])
    after = VersionId(8, SOME_ID.replace("c0de", "c0df"))
    v1.create(STORE.changelog(after), changelog(8, (first,)))
    commit(v1, 7, [str(after.id)])
    return first


def test_a_switchover_is_no_finding_and_one_without_its_snapshot_is_one(v1: Storage, tmp_path: Path) -> None:
    first = switched(v1, tmp_path)
    assert audited(v1).findings == audited(v1, tmp_path / "scratch").findings == ()
    v1.delete([STORE.snapshot(first)])
    found = {one.what: one for one in audited(v1).findings}
    assert found[FindingKind.COMMITS_MIXED].file == names.commits(6)
    assert "has structure V2, but commits/5 has V1" in found[FindingKind.COMMITS_MIXED].problem
    assert found[FindingKind.COMMITS_MIXED].severity is Severity.ERROR


def test_commits_that_change_their_structure_to_and_fro_are_named(v1: Storage, tmp_path: Path) -> None:
    switched(v1, tmp_path)
    commit(v1, 8, None)
    v1.create(STORE.changelog(VersionId(9)), changelog(9))
    found = [one for one in audited(v1).findings if one.what is FindingKind.COMMITS_MIXED]
    assert [one.file for one in found] == [names.commits(8)]
    assert "has structure V1, but commits/7 has V2" in found[0].problem


def test_a_query_that_was_started_with_the_other_structure_is_told_how_to_go_on(v1: Storage) -> None:
    """Spark 4.2, checkpointFormatVersion flipped from 1 to 2: None.get after one more changelog."""
    v1.create(names.offsets(6), v1.read(names.offsets(5)))
    v1.create(STORE.changelog(VersionId(7)), changelog(7))
    assert audited(v1).findings == ()
    add_sidecar(v1, STORE.changelog(VersionId(7)))
    finding = the_only_finding(audited(v1))
    assert (finding.what, finding.severity) == (FindingKind.FORMAT_FLIPPED, Severity.WARNING)
    assert finding.file == STORE.changelog(VersionId(7))
    assert finding.action.startswith("to restart from batch 5, set ")
    assert "checkpointFormatVersion=1;" in finding.action
    add_sidecar(v1, STORE.changelog(VersionId(6)))
    assert audited(v1).findings == (), "Spark 4.1 gives one to each changelog"


# -- snapshots ---------------------------------------------------------------------------------------------------------


def remade(storage: Storage, path: str, **changes: Any) -> None:
    snapshot = read_snapshot(storage.read(path), path)
    storage.replace(path, encode_snapshot(replace(snapshot, metadata=replace(snapshot.metadata, **changes))))
    if names.sidecar(path) in {entry.path for entry in storage.list(names.STATE)}:
        add_sidecar(storage, path)


def test_snapshots_of_spark_4_0_in_v2_are_named_since_later_releases_refuse_them(v2: Checkpoint) -> None:
    remade(v2.storage, path_of(v2, "zip", 3), header="v2")
    finding = the_only_finding(audited(v2.storage))
    assert (finding.what, finding.severity) == (FindingKind.SNAPSHOT_OF_SPARK_4_0, Severity.WARNING)
    assert "Expected v1, but found v2" in finding.meaning
    assert "versions 3 to 6" in finding.meaning
    assert "statekeeper repair ROOT --for-spark 4.2" in finding.action


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
        assert (finding.what, finding.severity) == (FindingKind.FAMILIES_LOST, Severity.ERROR)
        assert finding.file == STORE.snapshot(versions[0])
        assert finding.meaning.startswith(
            f"versions 1 to 3 (batches 0 to 2) of store {finding.store} cannot be restored"
        )
        assert audit.restart.batch is None


def test_a_missing_snapshot_that_sparks_repair_cannot_make_up_for_is_an_error_though_we_load_it(tmp_path: Path) -> None:
    """SPARK-56216: the repair wants changelogs back to version 1, whatever snapshot stands in between."""
    storage = open_storage(str(tmp_path / "root"))
    describe(storage)
    versions = [VersionId(n, f"{n:08x}-0000-4000-8000-000000000000") for n in range(1, 9)]
    for number, version in enumerate(versions, start=1):
        base = 1 if number <= 2 else 2 if number <= 5 else 5
        storage.create(STORE.changelog(version), changelog(number, tuple(versions[base - 1 : number - 1])))
        commit(storage, number - 1, [str(version.id)])
    publish_snapshot(storage, STORE, versions[1], {b"key": b"value"}, tmp_path)
    finding = the_only_finding(audited(storage))
    assert (finding.what, finding.severity) == (FindingKind.SNAPSHOT_MISSING, Severity.WARNING)
    assert finding.file == STORE.snapshot(versions[4])
    assert "later releases load it by a longer replay" in finding.meaning
    storage.delete([STORE.changelog(versions[0])])
    audit = audited(storage)
    finding = the_only_finding(audit)
    assert (finding.what, finding.severity) == (FindingKind.SNAPSHOT_MISSING, Severity.ERROR)
    assert "needs the changelogs from version 1 on and that of version 1 is missing" in finding.meaning
    assert "statekeeper snapshot ROOT --at-head" in finding.action
    assert audit.restart.batch == 7


def two_of_a_size(storage: Storage, tmp_path: Path) -> tuple[str, str]:
    """The tables of two snapshots that hold other values: equal in size."""
    found = []
    for number, value in ((3, b"value a"), (5, b"value b")):
        places = publish_snapshot(storage, STORE, VersionId(number), {b"key": value}, tmp_path)
        found.append(next(path for name, path in places.items() if name != "zip"))
    return found[0], found[1]


def test_a_table_that_another_one_of_its_size_replaced_is_told_by_its_unique_id(v1: Storage, tmp_path: Path) -> None:
    """SPARK-43404, SPARK-45419, SPARK-46796, SPARK-47036: Mismatch in unique ID."""
    v1.delete([STORE.snapshot(VersionId(3))])
    one, other = two_of_a_size(v1, tmp_path)
    assert len(v1.read(one)) == len(v1.read(other))
    v1.replace(one, v1.read(other))
    assert audited(v1).findings == ()
    finding = the_only_finding(audited(v1, tmp_path / "scratch"))
    assert (finding.what, finding.file) == (FindingKind.TABLE_REPLACED, one), finding
    assert "Mismatch in unique ID" in finding.problem
    assert "3.zip" in finding.problem


def test_a_table_of_another_size_than_the_manifest_says_is_told_though_the_snapshot_names_its_size(
    v1: Storage, tmp_path: Path
) -> None:
    """SPARK-51717: Sst file size mismatch, MANIFEST may be corrupted."""
    path = STORE.snapshot(VersionId(3))
    [table] = read_snapshot(v1.read(path), path).metadata.tables
    body = v1.read(STORE.table_file(table.dfs_name)) + b"longer"
    v1.replace(STORE.table_file(table.dfs_name), body)
    assert the_only_finding(audited(v1)).what is FindingKind.TABLE_WRONG_SIZE
    remade(v1, path, tables=(replace(table, size_bytes=len(body)),))
    assert audited(v1).findings == ()
    finding = the_only_finding(audited(v1, tmp_path / "scratch"))
    assert finding.what is FindingKind.TABLE_WRONG_SIZE
    assert "file size mismatch" in finding.problem


def test_late_snapshots_of_dead_attempts_orphan_tables_and_temporary_files_are_no_findings(
    v2: Checkpoint, tmp_path: Path
) -> None:
    """SPARK-51714, SPARK-42353: what never committed is loaded by nobody."""
    publish_snapshot(v2.storage, STORE, VersionId(6, SOME_ID), {b"dead": b"attempt"}, tmp_path / "dead")
    v2.storage.create(STORE.table_file(f"000042-{SOME_ID}.sst"), b"nobody names it")
    v2.storage.create(f"{STORE.folder}/.6_{SOME_ID}.zip.{SOME_ID}.tmp", b"half")
    audit = audited(v2.storage, tmp_path / "scratch")
    assert audit.findings == ()
    assert audit.stores[0].base == v2.versions[3][0]
    assert audit.stores[0].orphan_files == 3
    v2.assert_right(tmp_path / "host")


# -- changelogs and logs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "is_read"), [(65_535, True), (65_536, True), (0x00027632, False)])
def test_a_first_key_whose_length_reads_like_a_header_is_read_as_a_key_unless_spark_misreads_it_too(
    v1: Storage, tmp_path: Path, length: int, is_read: bool
) -> None:
    """SPARK-51922, SPARK-52553. The length 161,330 is the bytes 0 2 "v2", the header of another version of the format."""
    body = io.BytesIO()
    writer = ChangelogWriter(body, Header(None))
    writer.append(column([b"v" * length]), column([b"value"]))
    writer.finish()
    v1.replace(STORE.changelog(VersionId(6)), body.getvalue())
    found = audited(v1, tmp_path / "scratch").findings
    assert [one.what for one in found] == ([] if is_read else [FindingKind.CHANGELOG_UNREADABLE])


def test_lineages_that_contradict_the_commit_log_below_a_gap_are_named(v2: Checkpoint, tmp_path: Path) -> None:
    """The log has a hole, and what a lineage says of the versions below it is not what the log says."""
    storage = v2.storage
    five = v2.versions[5][0]
    lineage = (VersionId(3, SOME_ID), v2.versions[4][0])
    storage.replace(STORE.changelog(five), changelog(5, lineage))
    storage.delete([names.commits(3)])
    assert {one.what for one in audited(storage).findings} == {FindingKind.COMMIT_MISSING}
    publish_snapshot(storage, STORE, five, {b"key": b"value"}, tmp_path)
    six = v2.versions[6][0]
    storage.replace(STORE.changelog(six), changelog(6, (five,)))
    found = {one.what: one for one in audited(storage).findings}
    assert found.keys() == {FindingKind.COMMIT_MISSING, FindingKind.LINEAGE_AT_ODDS}
    assert found[FindingKind.LINEAGE_AT_ODDS].file == STORE.changelog(five)
    assert SOME_ID in found[FindingKind.LINEAGE_AT_ODDS].problem


def test_a_query_with_another_state_store_is_rejected_with_its_name(v1: Storage) -> None:
    of_hdfs = {**STATE_CONF, PROVIDER: PROVIDER.replace("providerClass", "HDFSBackedStateStoreProvider")}
    v1.replace(names.offsets(5), logs.encode_offsets(OffsetLog(0, 0, of_hdfs, ())))
    with pytest.raises(
        UnknownFormatVersion, match="offsets/5: the query's state store is HDFSBackedStateStoreProvider"
    ):
        gather(v1)


@pytest.mark.parametrize("described", [True, False], ids=["described", "as Spark 3.5 leaves it"])
@pytest.mark.parametrize("gone", [1, 3], ids=["in the middle", "the last"])
def test_a_partition_of_structure_v1_whose_folder_is_gone_is_told(tmp_path: Path, described: bool, gone: int) -> None:
    """Its commits name no store, so that only the metadata, or the offset log, can know that there was one."""
    storage = open_storage(str(tmp_path / "root"))
    describe(storage, partitions=4)
    conf = {**STATE_CONF, logs.SHUFFLE_PARTITIONS: "4"}
    if not described:
        storage.delete([names.operator_metadata(0)])
        del conf[logs.ENCODING]
    for number in (1, 2, 3):
        for partition in range(4):
            storage.create(StorePath(0, partition).changelog(VersionId(number)), changelog(number))
        commit(storage, number - 1, None, conf)
    assert audited(storage).findings == ()
    storage.delete(StorePath(0, gone).changelog(VersionId(number)) for number in (1, 2, 3))
    finding = the_only_finding(audited(storage))
    assert (finding.store, finding.severity) == (StorePath(0, gone), Severity.ERROR)
    heads = catalog.heads(storage)
    assert heads is not None
    assert set(heads.heads) == {StorePath(0, partition) for partition in range(4)}
    assert not retention.plan(
        retention.gather(storage, RetentionPolicy(1, 0), clock=SystemClock()), RetentionPolicy(1, 0)
    ).deletions


def test_an_operator_with_one_partition_has_no_others_whatever_the_query_has(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"))
    storage.create(names.QUERY_METADATA, logs.encode_metadata(ROOT_ID))
    add_schema(storage)
    conf = {**STATE_CONF, logs.SHUFFLE_PARTITIONS: "200"}
    del conf[logs.ENCODING]
    for number in (1, 2):
        storage.create(STORE.changelog(VersionId(number)), changelog(number))
        commit(storage, number - 1, None, conf)
    assert audited(storage).findings == ()
    assert [one.store for one in audited(storage).stores] == [STORE]


@pytest.mark.parametrize("number", ["many", "-1", "0", "9" * 30])
def test_a_number_of_partitions_that_is_none_is_refused_and_no_loop_of_billions(v1: Storage, number: str) -> None:
    v1.delete([names.operator_metadata(0)])
    v1.create(StorePath(0, 1).changelog(VersionId(1)), changelog(1))
    v1.replace(
        names.offsets(5), logs.encode_offsets(OffsetLog(0, 0, {**STATE_CONF, logs.SHUFFLE_PARTITIONS: number}, ()))
    )
    with pytest.raises(CorruptFile, match=r"offsets/5: spark\.sql\.shuffle\.partitions is "):
        catalog.heads(v1)


def test_a_checkpoint_of_spark_3_5_which_describes_no_operator_is_clean(v1: Storage, tmp_path: Path) -> None:
    v1.delete([names.operator_metadata(0)])
    assert [finding.what for finding in audited(v1).findings] == [FindingKind.DESCRIPTION_MISSING], (
        "4.0 and later describe"
    )
    old = {name: value for name, value in STATE_CONF.items() if name != logs.ENCODING}
    for batch in range(6):
        v1.replace(names.offsets(batch), logs.encode_offsets(OffsetLog(0, 0, old, ())))
    audit = audited(v1, tmp_path / "scratch")
    assert audit.findings == ()
    assert (audit.restart.batch, [store.store for store in audit.stores]) == (5, [STORE])
