"""Audits of file names, changelogs, logs and descriptions, as Spark judges them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import CorruptFile, UnsupportedProvider
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.logs import STATE_CONF, OffsetLog
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import PROVIDER
from statekeeper.statestore.format.snapshot import Snapshot, encode_snapshot, read_snapshot
from statekeeper.statestore.maintenance.upkeep import retention
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, Severity, gather
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.audits import SOME_ID, audited, the_only_finding
from tests.support.checkpoints import ROOT_ID, Checkpoint
from tests.support.hosts import column
from tests.support.snapshots import publish_snapshot
from tests.support.sparks_checkpoints import STORE, add_schema, changelog, commit, describe

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
def test_the_severity_of_a_foreign_name_follows_sparks_reaction(
    v1: Storage, v2: Checkpoint, name: str, in_v1: FindingKind | None, in_v2: FindingKind | None
) -> None:
    path = f"{STORE.folder}/{name}"
    metadata = read_snapshot(v1.read(STORE.snapshot(VersionId(3))), "3.zip").metadata
    body = encode_snapshot(Snapshot({"CURRENT": b"x"}, metadata))
    for storage, expected in ((v1, in_v1), (v2.storage, in_v2)):
        storage.create(path, body)
        found = audited(storage).findings
        assert [(one.kind, one.file) for one in found] == ([] if expected is None else [(expected, path)])
        for one in found:
            assert (one.severity is Severity.ERROR) == (expected is FindingKind.NAME_STOPS_LOADS)
            assert ("out of the checkpoint" in one.action) == (expected is not FindingKind.FOREIGN_FILE)
        storage.delete([path])


# -- changelogs and logs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "is_read"), [(65_535, True), (65_536, True), (0x00027632, False)])
def test_a_first_key_with_the_length_of_a_header_is_a_key_unless_spark_misreads_it(
    v1: Storage, tmp_path: Path, length: int, is_read: bool
) -> None:
    """SPARK-51922, SPARK-52553. The length 161,330 is the bytes 0 2 "v2", the header of another version of the format."""
    body = io.BytesIO()
    writer = ChangelogWriter(body, Header(None))
    writer.append(column([b"v" * length]), column([b"value"]))
    writer.finish()
    v1.replace(STORE.changelog(VersionId(6)), body.getvalue())
    found = audited(v1, tmp_path / "scratch").findings
    assert [one.kind for one in found] == ([] if is_read else [FindingKind.CHANGELOG_UNREADABLE])


def test_lineages_that_contradict_the_commit_log_below_a_gap_are_named(v2: Checkpoint, tmp_path: Path) -> None:
    """The commit log has a gap, and a lineage contradicts the log below the gap."""
    storage = v2.storage
    five = v2.versions[5][0]
    lineage = (VersionId(3, SOME_ID), v2.versions[4][0])
    storage.replace(STORE.changelog(five), changelog(5, lineage))
    storage.delete([names.commits(3)])
    assert {one.kind for one in audited(storage).findings} == {FindingKind.COMMIT_MISSING}
    publish_snapshot(storage, STORE, five, {b"key": b"value"}, tmp_path)
    six = v2.versions[6][0]
    storage.replace(STORE.changelog(six), changelog(6, (five,)))
    found = {one.kind: one for one in audited(storage).findings}
    assert found.keys() == {FindingKind.COMMIT_MISSING, FindingKind.LINEAGE_AT_ODDS}
    assert found[FindingKind.LINEAGE_AT_ODDS].file == STORE.changelog(five)
    assert SOME_ID in found[FindingKind.LINEAGE_AT_ODDS].problem


def test_a_query_with_another_state_store_is_rejected_with_its_name(v1: Storage) -> None:
    of_another = {**STATE_CONF, PROVIDER: "com.example.StateStoreProvider"}
    for batch in range(6):
        offsets = OffsetLog(watermark_ms=0, timestamp_ms=0, conf=of_another, sources=())
        v1.replace(names.offsets(batch), logs.encode_offsets(offsets))
    with pytest.raises(
        UnsupportedProvider, match=r"offsets/5: the query's state store provider is com\.example\.StateStoreProvider"
    ):
        gather(v1)


def test_offsets_of_an_unknown_version_are_a_finding_in_both_structures(v1: Storage, v2: Checkpoint) -> None:
    for storage in (v1, v2.storage):
        storage.replace(names.offsets(5), storage.read(names.offsets(5)).replace(b"v1", b"v7", 1))
        finding = the_only_finding(audited(storage))
        assert (finding.kind, finding.severity) == (FindingKind.OFFSETS_UNREADABLE, Severity.ERROR)
        assert (finding.file, finding.problem[:18]) == ("offsets/5", "has log version v7")
        assert "a newer Spark release may have written it" in finding.meaning
        assert finding.action == "upgrade Statekeeper; do not change the file"


@pytest.mark.parametrize("described", [True, False], ids=["described", "as Spark 3.5 leaves it"])
@pytest.mark.parametrize("gone", [1, 3], ids=["in the middle", "the last"])
def test_a_missing_folder_of_a_partition_in_v1_is_a_finding(tmp_path: Path, described: bool, gone: int) -> None:
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
        retention.gather(storage, RetentionPolicy(versions=1, grace_seconds=0), clock=SystemClock()),
        RetentionPolicy(versions=1, grace_seconds=0),
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
def test_an_invalid_number_of_partitions_is_rejected_without_a_loop_of_billions(v1: Storage, number: str) -> None:
    v1.delete([names.operator_metadata(0)])
    v1.create(StorePath(0, 1).changelog(VersionId(1)), changelog(1))
    v1.replace(
        names.offsets(5),
        logs.encode_offsets(
            OffsetLog(watermark_ms=0, timestamp_ms=0, conf={**STATE_CONF, logs.SHUFFLE_PARTITIONS: number}, sources=())
        ),
    )
    with pytest.raises(CorruptFile, match=r"offsets/5: sets spark\.sql\.shuffle\.partitions to "):
        catalog.heads(v1)


def test_a_checkpoint_of_spark_3_5_without_operator_metadata_is_clean(v1: Storage, tmp_path: Path) -> None:
    v1.delete([names.operator_metadata(0)])
    assert [finding.kind for finding in audited(v1).findings] == [FindingKind.DESCRIPTION_MISSING], (
        "4.0 and later describe"
    )
    old = {name: value for name, value in STATE_CONF.items() if name != logs.ENCODING}
    for batch in range(6):
        v1.replace(
            names.offsets(batch), logs.encode_offsets(OffsetLog(watermark_ms=0, timestamp_ms=0, conf=old, sources=()))
        )
    audit = audited(v1, tmp_path / "scratch")
    assert audit.findings == ()
    assert (audit.restart.batch, [store.store for store in audit.stores]) == (5, [STORE])
