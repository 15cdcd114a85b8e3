"""Audits of damaged commit logs and offsets."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import UnknownFormatVersion
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, Severity, gather
from tests.support.audits import SOME_ID, audited, changelog, the_only_finding
from tests.support.checkpoints import Checkpoint
from tests.support.hosts import column

# -- the commit log ----------------------------------------------------------------------------------------------------


def with_id(checkpoint: Checkpoint, batch: int, checkpoint_id: str) -> bytes:
    """The commit of a batch, with another id for partition 0."""
    path = names.commits(batch)
    commit = logs.parse_commit(checkpoint.storage.read(path), path)
    assert commit.ids is not None
    return logs.encode_commit(replace(commit, ids={0: ((checkpoint_id,), *commit.ids[0][1:])}))


def test_a_commit_with_an_unknown_id_is_found_by_the_lineage_and_no_other_version_is_lost(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.storage.replace(names.commits(3), with_id(checkpoint, 3, SOME_ID))
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.kind, finding.file) == (FindingKind.COMMIT_UNKNOWN_ID, names.commits(3))
    assert SOME_ID in finding.problem
    assert str(checkpoint.versions[4][0].id) in finding.problem
    assert audit.restart.batch == 5
    checkpoint.assert_right(tmp_path / "fresh")


@pytest.mark.parametrize(("batch", "restart"), [(5, 4), (1, 5)])
def test_an_unknown_id_that_no_lineage_names_is_a_missing_file(
    checkpoint: Checkpoint, tmp_path: Path, batch: int, restart: int
) -> None:
    checkpoint.storage.replace(names.commits(batch), with_id(checkpoint, batch, SOME_ID))
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert finding.kind is FindingKind.CHANGELOG_MISSING
    assert finding.file == checkpoint.stores[0].changelog(VersionId(batch + 1, SOME_ID))
    assert names.changelog(checkpoint.versions[batch + 1][0]) in finding.problem
    assert audit.restart.batch == restart
    checkpoint.assert_right(tmp_path / "fresh", restart)


COMMIT_HARMS: dict[str, tuple[bytes | None, FindingKind]] = {
    "missing": (None, FindingKind.COMMIT_MISSING),
    "truncated": (b'v2\n{"nextBatchWatermarkMs":0,"stateUni', FindingKind.COMMIT_UNREADABLE),
    "empty": (b"", FindingKind.COMMIT_UNREADABLE),
    "garbage": (b"\xff\xfe\0\0", FindingKind.COMMIT_UNREADABLE),
    "of a later format": (b"v9\n{}", FindingKind.COMMIT_UNREADABLE),
}


@pytest.mark.parametrize("how", list(COMMIT_HARMS))
def test_a_bad_commit_is_named_and_the_other_commits_are_audited(
    checkpoint: Checkpoint, tmp_path: Path, how: str
) -> None:
    body, what = COMMIT_HARMS[how]
    checkpoint.storage.delete([names.commits(3)])
    if body is not None:
        checkpoint.storage.replace(names.commits(3), body)
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    finding = the_only_finding(audit)
    assert (finding.kind, finding.file, finding.severity) == (what, "commits/3", Severity.WARNING)
    assert finding.meaning.startswith(
        "no start needs this, but a rewind to batch 3 is not possible; every store can restore the newest batch, 5"
    )
    assert audit.restart.as_is
    assert audit.breaks == (), "gc runs"
    assert [(store.tail, store.lost) for store in audit.stores] == [(3, ()), (3, ())]
    checkpoint.assert_right(tmp_path / "fresh")


def test_without_its_newest_commit_the_query_cannot_start_and_the_one_before_is_named(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.storage.replace(names.commits(5), b"v2\n{")
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert finding.meaning == (
        "the query cannot start, because this is the newest commit; the newest batch of which every store has all "
        "files is 4"
    )
    assert (audit.batch, audit.restart.batch) == (5, 4)
    checkpoint.assert_right(tmp_path / "fresh", 4)


def test_when_no_commit_can_be_read_each_is_named(checkpoint: Checkpoint) -> None:
    for batch in range(6):
        checkpoint.storage.replace(names.commits(batch), b"")
    audit = audited(checkpoint.storage)
    assert {finding.file for finding in audit.findings} == {names.commits(batch) for batch in range(6)}
    assert [finding.file for finding in audit.breaks] == [names.commits(5)]
    assert audit.restart.batch is None
    for batch in range(6):
        checkpoint.storage.replace(names.commits(batch), b"v9\n{}")
    with pytest.raises(UnknownFormatVersion, match="commits/5: has log version v9"):
        gather(checkpoint.storage)


def test_a_commit_without_a_partition_is_no_batch_to_restart_from(checkpoint: Checkpoint, tmp_path: Path) -> None:
    ids = ((str(checkpoint.versions[6][0].id),),)
    checkpoint.storage.replace(names.commits(5), logs.encode_commit(logs.CommitLog(0, {0: ids})))
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.kind, finding.file) == (FindingKind.COMMIT_AT_ODDS, "commits/5")
    assert "the metadata of operator 0: it names 1 partitions, but the metadata describes 2" in finding.problem
    assert audit.restart.batch == 4
    checkpoint.assert_right(tmp_path / "fresh", 4)


def test_a_lineage_at_odds_with_the_commit_log_is_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The head builds on version 5 of an attempt that was not committed."""
    with checkpoint.load(checkpoint.stores[0], checkpoint.versions[4][0], tmp_path / "twin") as twin:
        twin.put(column([b"counter"]), column([b"another attempt"]))
        other = twin.commit()
    path = changelog(checkpoint, 6)
    body = io.BytesIO()
    writer = ChangelogWriter(body, Header((checkpoint.versions[3][0], checkpoint.versions[4][0], other)))
    writer.finish()
    checkpoint.storage.replace(path, body.getvalue())
    for scratch in (None, tmp_path / "scratch"):
        audit = audited(checkpoint.storage, scratch)
        finding = the_only_finding(audit)
        assert (finding.kind, finding.file) == (FindingKind.LINEAGE_AT_ODDS, path)
        assert str(other.id) in finding.problem
        assert audit.restart.batch == 4
    checkpoint.assert_right(tmp_path / "fresh", 4)


def test_a_lineage_at_odds_below_the_head_is_found_by_a_deep_audit(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = changelog(checkpoint, 5)
    body = io.BytesIO()
    ChangelogWriter(body, Header((checkpoint.versions[3][0], VersionId(4, SOME_ID)))).finish()
    checkpoint.storage.replace(path, body.getvalue())
    assert audited(checkpoint.storage).findings == ()
    finding = the_only_finding(audited(checkpoint.storage, tmp_path / "scratch"))
    assert (finding.kind, finding.file) == (FindingKind.LINEAGE_AT_ODDS, path)


@pytest.mark.parametrize(
    ("lineage", "problem"),
    [
        ((), "has a lineage without the batch before"),
        ((VersionId(4, SOME_ID),), "has a lineage that skips a batch"),
    ],
)
def test_an_invalid_lineage_is_named(checkpoint: Checkpoint, lineage: tuple[VersionId, ...], problem: str) -> None:
    body = io.BytesIO()
    ChangelogWriter(body, Header(lineage)).finish()
    checkpoint.storage.replace(changelog(checkpoint, 6), body.getvalue())
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.kind, finding.file) == (FindingKind.LINEAGE_AT_ODDS, changelog(checkpoint, 6))
    assert problem in finding.problem


# -- offsets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "severity"), [(5, Severity.ERROR), (2, Severity.WARNING)])
def test_a_committed_batch_without_offsets_is_named(checkpoint: Checkpoint, batch: int, severity: Severity) -> None:
    checkpoint.storage.delete([names.offsets(batch)])
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.kind, finding.file, finding.severity) == (FindingKind.OFFSETS_MISSING, f"offsets/{batch}", severity)


@pytest.mark.parametrize(("batch", "severity"), [(5, Severity.ERROR), (2, Severity.WARNING)])
def test_offsets_that_cannot_be_read_are_named(
    checkpoint: Checkpoint, tmp_path: Path, batch: int, severity: Severity
) -> None:
    checkpoint.storage.replace(names.offsets(batch), b"v1\n{")
    finding = the_only_finding(audited(checkpoint.storage, tmp_path))
    assert (finding.kind, finding.file, finding.severity) == (
        FindingKind.OFFSETS_UNREADABLE,
        f"offsets/{batch}",
        severity,
    )


@pytest.mark.parametrize(("batch", "severity"), [(6, Severity.ERROR), (5, Severity.ERROR), (2, Severity.WARNING)])
def test_offsets_of_an_unknown_version_are_named_with_their_batch(
    checkpoint: Checkpoint, tmp_path: Path, batch: int, severity: Severity
) -> None:
    checkpoint.storage.replace(names.offsets(batch), b"v7\n{}\n")
    finding = the_only_finding(audited(checkpoint.storage, tmp_path))
    assert (finding.kind, finding.file, finding.severity) == (
        FindingKind.OFFSETS_UNREADABLE,
        f"offsets/{batch}",
        severity,
    )
    assert "has log version v7" in finding.problem
    assert "upgrade Statekeeper" in finding.action


def test_offsets_may_be_one_batch_ahead_and_no_more(checkpoint: Checkpoint) -> None:
    body = checkpoint.storage.read(names.offsets(5))
    checkpoint.storage.create(names.offsets(6), body)
    assert audited(checkpoint.storage).findings == ()
    checkpoint.storage.create(names.offsets(7), body)
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.kind, finding.file) == (FindingKind.OFFSETS_AHEAD, "offsets/7")
    assert "the newest commit is batch 5" in finding.problem


def test_a_hidden_checksum_where_a_log_will_be_written_is_named_and_those_of_purged_logs_are_not(
    checkpoint: Checkpoint,
) -> None:
    for path in ("commits/.2.crc", "offsets/.5.crc", "offsets/.x.crc"):
        checkpoint.storage.create(path, b"crc")
    assert audited(checkpoint.storage).findings == ()
    checkpoint.storage.create("offsets/.6.crc", b"crc")
    if not checkpoint.storage.url.startswith("file:"):
        assert audited(checkpoint.storage).findings == (), "Hadoop keeps them on local disks only"
        return
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.kind, finding.severity, finding.file) == (
        FindingKind.LOG_IN_THE_WAY,
        Severity.ERROR,
        "offsets/.6.crc",
    )
    assert finding.problem == "remained after offsets/6 was deleted"


def test_the_offsets_reveal_a_missing_commit_log(checkpoint: Checkpoint) -> None:
    checkpoint.storage.delete(names.commits(batch) for batch in range(6))
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.kind, finding.file) == (FindingKind.OFFSETS_AHEAD, "offsets/5")
