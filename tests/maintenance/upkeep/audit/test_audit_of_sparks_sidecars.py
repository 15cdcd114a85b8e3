"""Audits of Spark's checksum files and of Hadoop's hidden checksums."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statekeeper.statestore.format import names
from statekeeper.statestore.format.logs import CODEC, STATE_CONF
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, Severity
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.audits import SOME_ID, audited, the_only_finding
from tests.support.checkpoints import Checkpoint
from tests.support.sparks_checkpoints import STORE, add_sidecar, commit, describe, path_of


def test_intact_checkpoints_are_clean_and_unverifiable_facts_are_reported(
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
    "garbage": (lambda said: b"garbage", "not valid JSON"),
    "empty": (lambda said: b"", ""),
}


@pytest.mark.parametrize("how", list(SIDECAR_HARMS))
@pytest.mark.parametrize(
    ("kind", "version", "versions"),
    [("changelog", 5, "batches 4 to 5"), ("zip", 3, "batches 2 to 5")],
)
def test_a_wrong_sidecar_of_an_intact_file_is_named_with_the_versions_that_spark_cannot_load(
    v2: Checkpoint, tmp_path: Path, how: str, kind: str, version: int, versions: str
) -> None:
    path = path_of(v2, kind, version)
    make, problem = SIDECAR_HARMS[how]
    v2.storage.replace(names.sidecar(path), make(json.loads(v2.storage.read(names.sidecar(path)))))
    finding = the_only_finding(audited(v2.storage, tmp_path / "scratch"))
    assert (finding.kind, finding.severity, finding.file) == (
        FindingKind.SIDECAR_AT_ODDS,
        Severity.ERROR,
        names.sidecar(path),
    )
    assert problem in finding.problem
    assert "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED" in finding.meaning
    assert f"cannot restore {versions}; if you delete" in finding.meaning
    assert "every store can restore the newest batch, 5" in finding.meaning
    name = names.sidecar(path).rpartition("/")[2]
    mended = (
        f"Delete its checksum file {name}"
        if kind == "changelog"
        else f"To quarantine its checksum file {name}, run: statekeeper repair {v2.storage.url} --apply --confirm-stopped"
    )
    assert finding.action.startswith(f"{path.rpartition('/')[2]} is intact. {mended}")
    shallow = audited(v2.storage)
    seen = how == "empty" or kind == "zip"
    assert [one.kind for one in shallow.findings] == ([FindingKind.SIDECAR_AT_ODDS] if seen else [])
    v2.storage.delete([names.sidecar(path)])
    assert audited(v2.storage, tmp_path / "scratch").findings == ()


def test_a_sidecar_of_a_changelog_that_no_load_reads_is_a_warning(v2: Checkpoint, tmp_path: Path) -> None:
    path = path_of(v2, "changelog", 3)
    v2.storage.replace(names.sidecar(path), b"garbage")
    finding = the_only_finding(audited(v2.storage, tmp_path / "scratch"))
    assert (finding.kind, finding.severity) == (FindingKind.SIDECAR_AT_ODDS, Severity.WARNING)
    assert finding.meaning.endswith("every batch loads without this file")


def test_a_file_without_its_sidecar_and_a_sidecar_without_its_file_are_no_findings(
    v2: Checkpoint, tmp_path: Path
) -> None:
    v2.storage.delete([names.sidecar(path_of(v2, "changelog", 6)), names.sidecar(path_of(v2, "zip", 3))])
    v2.storage.create(names.sidecar(STORE.changelog(VersionId(1, SOME_ID))), b"garbage")
    assert audited(v2.storage).findings == audited(v2.storage, tmp_path / "scratch").findings == ()


def test_a_bad_file_is_a_finding_and_its_sidecar_is_not(v2: Checkpoint, tmp_path: Path) -> None:
    path = path_of(v2, "changelog", 6)
    v2.storage.replace(path, v2.storage.read(path)[:-9])
    finding = the_only_finding(audited(v2.storage, tmp_path / "scratch"))
    assert (finding.kind, finding.file) == (FindingKind.CHANGELOG_UNREADABLE, path)


def test_with_a_codec_without_checksums_only_the_sidecar_reveals_a_wrong_value(tmp_path: Path) -> None:
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
    assert (finding.kind, finding.severity) == (FindingKind.SIDECAR_AT_ODDS, Severity.ERROR)
    assert "from a backup: the values in" in finding.action
    storage.delete([names.sidecar(STORE.changelog(version))])
    assert audited(storage, tmp_path / "scratch").findings == (), "said in `unproven`"


def test_in_v1_only_spark_4_1_verifies_sidecars_and_only_of_changelogs(v1: Storage, tmp_path: Path) -> None:
    """SPARK-56461."""
    v1.create(names.sidecar(STORE.changelog(VersionId(6))), b"garbage")
    v1.create(names.sidecar(STORE.snapshot(VersionId(3))), b"garbage")
    finding = the_only_finding(audited(v1, tmp_path / "scratch"))
    assert (finding.kind, finding.severity) == (FindingKind.SIDECAR_AT_ODDS, Severity.WARNING)
    assert finding.meaning.startswith("Spark 4.1 rejects 6.changelog")
    assert finding.meaning.endswith("later Spark releases ignore the checksum file in structure V1")


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
    assert {(one.kind, one.severity, one.file) for one in found} == {
        (FindingKind.HIDDEN_CHECKSUM_AT_ODDS, Severity.ERROR, path) for path in checked
    }
    assert all("ChecksumException" in one.meaning and "batches 2 to 5" in one.meaning for one in found)
    shutil.rmtree(tmp_path / "scratch")
    storage.delete(hidden)
    assert audited(storage, tmp_path / "scratch").findings == ()
