"""Audits of damaged metadata and schemas, of foreign files, of unknown formats, and near the lineage ceiling."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.base.errors import StorageError, UnknownFormatVersion
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.compression import BlockWriter
from statekeeper.statestore.format.java_io import utf
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.upkeep.audit import AuditFacts, FindingKind, Severity, gather, judge
from statekeeper.statestore.maintenance.upkeep.audit.facts import StoreAuditFacts
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.audits import SOME_ID, assert_restart_is_right, audited, changelog, harm, the_only_finding
from tests.support.checkpoints import Checkpoint

# -- metadata of the checkpoint ----------------------------------------------------------------------------------------


DESCRIPTIONS = {
    names.BINDING: Severity.ERROR,
    names.QUERY_METADATA: Severity.ERROR,
    names.operator_metadata(0): Severity.ERROR,
    names.state_schema(0): Severity.WARNING,
}


@pytest.mark.parametrize("path", list(DESCRIPTIONS))
def test_a_description_that_cannot_be_read_is_named_and_the_stores_are_audited(
    checkpoint: Checkpoint, path: str
) -> None:
    checkpoint.storage.replace(path, b"\0")
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.kind, finding.file, finding.severity) == (
        FindingKind.DESCRIPTION_UNREADABLE,
        path,
        DESCRIPTIONS[path],
    )
    assert (len(audit.stores), audit.restart.batch) == (2, 5)


def test_a_missing_operator_metadata_is_named_and_its_stores_are_audited(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.storage.delete([names.operator_metadata(0)])
    harm(checkpoint, changelog(checkpoint, 5), "missing")
    audit = audited(checkpoint.storage)
    assert [(finding.kind, finding.file) for finding in audit.findings] == [
        (FindingKind.DESCRIPTION_MISSING, names.operator_metadata(0)),
        (FindingKind.CHANGELOG_MISSING, changelog(checkpoint, 5)),
    ]
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_other_files_of_the_job_reveal_a_missing_binding(checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(names.pending(5, SOME_ID), b"{}")
    checkpoint.storage.delete([names.BINDING])
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.kind, finding.file) == (FindingKind.DESCRIPTION_MISSING, names.BINDING)


def test_two_operators_with_one_id_are_named(checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(names.operator_metadata(1), checkpoint.storage.read(names.operator_metadata(0)))
    audit = audited(checkpoint.storage)
    [finding] = [finding for finding in audit.findings if finding.kind is FindingKind.TWO_OPERATORS]
    assert finding.file == names.operator_metadata(1)
    assert names.operator_metadata(0) in finding.problem
    assert [store.store for store in audit.stores] == checkpoint.stores


def test_operator_metadata_with_a_billion_partitions_is_rejected(checkpoint: Checkpoint) -> None:
    info = operators.StoreInfo(name=names.DEFAULT_STORE, prefix_columns=1, partitions=10**9)
    body = operators.encode_operator(operators.OperatorMetadata(0, "counting", (info,)))
    checkpoint.storage.replace(names.operator_metadata(0), body)
    audit = audited(checkpoint.storage)
    assert {(finding.kind, finding.file) for finding in audit.findings} == {
        (FindingKind.DESCRIPTION_UNREADABLE, names.operator_metadata(0))
    }
    assert len(audit.stores) == 2


def test_descriptions_that_disagree_are_named(checkpoint: Checkpoint) -> None:
    checkpoint.storage.replace(names.QUERY_METADATA, logs.encode_metadata("another root"))
    checkpoint.storage.replace(names.state_schema(0), operators.encode_schema("{}", "{}"))
    found = [(finding.kind, finding.file) for finding in audited(checkpoint.storage).findings]
    assert found == [
        (FindingKind.DESCRIPTION_AT_ODDS, names.QUERY_METADATA),
        (FindingKind.DESCRIPTION_AT_ODDS, names.state_schema(0)),
    ]


def test_a_newer_schema_of_an_unknown_store_is_a_finding_on_the_binding(checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(names.later_schema(4), json.dumps({"nobody's": "{}"}).encode())
    finding = the_only_finding(audited(checkpoint.storage))
    assert finding.kind is FindingKind.DESCRIPTION_UNREADABLE
    assert "names a store that is not in the binding" in finding.problem


@pytest.mark.parametrize(
    "path",
    ["state/0/0/foo.zip", "state/0/0/SSTs/foo", "state/00/0/1.zip", "state/notes", "commits/foo", "offsets/5.bak"],
)
def test_a_foreign_name_is_named(checkpoint: Checkpoint, path: str) -> None:
    checkpoint.storage.create(path, b"x")
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.kind, finding.file, finding.severity) == (FindingKind.FOREIGN_FILE, path, Severity.WARNING)
    assert audit.restart.batch == 5


def test_sparks_sidecars_are_no_foreign_names(checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(f"{changelog(checkpoint, 5)}.crc", b"{}")
    assert audited(checkpoint.storage).findings == ()


def test_files_of_a_store_without_metadata_are_named(checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(StorePath(0, 7).changelog(VersionId(1, SOME_ID)), b"x")
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.kind, finding.store) == (FindingKind.STORE_UNDESCRIBED, StorePath(0, 7))


# -- the ceiling, formats, storage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "severity"),
    [(500, None), (640, Severity.WARNING), (795, Severity.WARNING), (810, Severity.ERROR), (900, Severity.ERROR)],
)
def test_the_commits_left_to_the_ceiling_are_reported_before_a_query_stops(
    tmp_path: Path, versions: int, severity: Severity | None
) -> None:
    storage = open_storage(str(tmp_path / "root"))
    checkpoint = Checkpoint(storage, tmp_path, partitions=1)
    checkpoint.grow(2)
    facts = with_lineage(gather(storage), versions)
    audit = judge(facts)
    assert [(finding.severity, finding.kind) for finding in audit.findings] == (
        [] if severity is None else [(severity, FindingKind.NEAR_CEILING)]
    )
    left = audit.stores[0].commits_left
    assert left is not None
    assert (left == 0) == (versions == 900)
    assert (audit.stores[0].lineage_bytes or 0) > versions * 70


def with_lineage(facts: AuditFacts, versions: int) -> AuditFacts:
    [store] = facts.stores
    assert isinstance(store, StoreAuditFacts)
    lineage = tuple(VersionId(number, f"{number:08x}-0000-4000-8000-000000000000") for number in range(1, versions + 1))
    return replace(facts, stores=(replace(store, lineage=lineage),))


def test_a_state_schema_of_an_unknown_version_is_written_again_by_the_job(checkpoint: Checkpoint) -> None:
    path = names.state_schema(0)
    checkpoint.storage.replace(path, checkpoint.storage.read(path).replace(b"v2", b"v9", 1))
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.kind, finding.file, finding.severity) == (
        FindingKind.DESCRIPTION_UNREADABLE,
        path,
        Severity.WARNING,
    )
    assert "has state schema version 'v9'" in finding.problem
    assert "start the job: it writes the file again" in finding.action


def test_a_store_of_an_unknown_format_does_not_stop_the_audit_of_the_others(checkpoint: Checkpoint) -> None:
    for partition in (0, 1):
        path = changelog(checkpoint, 6, partition)
        checkpoint.storage.replace(path, of_version_5())
        if partition == 0:
            audit = audited(checkpoint.storage)
            finding = the_only_finding(audit)
            assert (finding.kind, finding.file) == (FindingKind.STORE_UNKNOWN_FORMAT, path)
            assert [store.store for store in audit.stores] == [checkpoint.stores[1]]
            assert audit.restart.batch is None
            assert "is unknown" in audit.restart.explained
    with pytest.raises(UnknownFormatVersion, match="changelog format v5"):
        gather(checkpoint.storage)


def of_version_5() -> bytes:
    body = io.BytesIO()
    stream = BlockWriter(body)
    stream.write(utf("v5") + utf("[]") + b"\0" * 32)
    stream.finish()
    return body.getvalue()


class FailsBelow:
    """A storage that answers nothing below a folder but listings."""

    def __init__(self, inner: Storage, folder: str) -> None:
        self._inner = inner
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        if path.startswith(self._folder):
            raise StorageError("timed out", path=path, hint="try again")
        return self._inner.read_range(path, start, length)


def test_a_store_that_cannot_be_read_does_not_stop_the_rest(checkpoint: Checkpoint) -> None:
    audit = audited(FailsBelow(checkpoint.storage, "state/0/0/"))  # type: ignore[arg-type]
    finding = the_only_finding(audit)
    assert (finding.kind, finding.store) == (FindingKind.STORE_NOT_AUDITED, StorePath(0, 0))
    assert "timed out" in finding.problem
    assert [store.store for store in audit.stores] == [checkpoint.stores[1]]
