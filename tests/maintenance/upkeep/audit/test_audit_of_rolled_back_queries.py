"""Audits of queries that were rolled back by hand, and of checkpoints with both structures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.rollback import repair
from statekeeper.statestore.maintenance.rollback.repair import RepairReason
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, Severity
from statekeeper.statestore.storage import Storage
from tests.support.audits import SOME_ID, audited, the_only_finding
from tests.support.checkpoints import Checkpoint
from tests.support.snapshots import publish_snapshot
from tests.support.sparks_checkpoints import STORE, add_sidecar, changelog, commit

# -- files of rolled-back batches --------------------------------------------------------------------------------------


def roll_back(storage: Storage, to: int) -> None:
    """Go back to a batch as people do it: by hand, and only in the logs."""
    storage.delete(path(batch) for batch in range(to + 1, 6) for path in (names.commits, names.offsets))


def test_a_rolled_back_query_in_v1_would_load_a_snapshot_of_the_abandoned_time_line(
    v1: Storage, tmp_path: Path
) -> None:
    publish_snapshot(v1, STORE, VersionId(5), {b"given": b"up"}, tmp_path)
    assert audited(v1).findings == ()
    roll_back(v1, 2)
    audit = audited(v1)
    finding = the_only_finding(audit)
    assert (finding.kind, finding.severity, finding.file) == (
        FindingKind.ROLLED_BACK_FILES,
        Severity.ERROR,
        "state/0/0/5.zip",
    )
    assert (
        "once the query reaches batch 4 again, a restart loads the old 5.zip and silently uses wrong state"
        in finding.meaning
    )
    assert f"statekeeper repair {v1.url} --apply --confirm-stopped" in finding.action
    v1.delete(f"state/0/0/{name}" for name in ("5.zip", "4.changelog", "5.changelog", "6.changelog"))
    assert audited(v1).findings == ()


def test_in_v2_files_of_the_abandoned_time_line_are_a_warning(v2: Checkpoint, tmp_path: Path) -> None:
    roll_back(v2.storage, 3)
    found = audited(v2.storage).findings
    assert [(one.kind, one.severity, one.store) for one in found] == [
        (FindingKind.ROLLED_BACK_FILES, Severity.WARNING, store) for store in v2.stores
    ]
    assert all("no load uses them" in one.meaning and "maintenance" not in one.meaning for one in found)
    publish_snapshot(v2.storage, STORE, VersionId(9, SOME_ID), {b"given": b"up"}, tmp_path)
    v2.storage.create(STORE.snapshot(VersionId(9)), b"of structure V1")
    worse = audited(v2.storage).findings[0]
    assert "/9" in worse.file
    assert worse.severity is Severity.WARNING
    assert "maintenance counts from the largest number in a file name" in worse.meaning
    for number in (120, 300):
        publish_snapshot(v2.storage, STORE, VersionId(number, SOME_ID), {b"given": b"up"}, tmp_path)
    worst = audited(v2.storage).findings[0]
    assert worst.severity is Severity.ERROR
    assert "still needed: every file with a number below 120" in worst.meaning
    v2.assert_right(tmp_path / "host", 3)


@pytest.mark.parametrize("next_batch_began", [False, True])
def test_the_repair_quarantines_exactly_the_time_line_that_the_audit_reports(
    v1: Storage, v2: Checkpoint, next_batch_began: bool
) -> None:
    for storage in (v1, v2.storage):
        for batch in (3, 4, 5):
            storage.delete([names.commits(batch), *([] if next_batch_began and batch == 3 else [names.offsets(batch)])])
        told = [finding for finding in audited(storage).findings if finding.kind is FindingKind.ROLLED_BACK_FILES]
        plan = repair.plan(repair.gather(storage), None)
        assert {action.reason for action in plan.actions} == {RepairReason.ROLLED_BACK_FILES}
        assert told
        assert {finding.file for finding in told} <= {action.path for action in plan.actions}
        first = 4 if next_batch_began else 3
        assert all(f"of batches {first} to 5" in finding.problem for finding in told)
        assert all(f"the logs end at batch {first - 1}" in finding.problem for finding in told)
        places = [names.parse_store_path(action.path.removesuffix(names.SIDECAR)) for action in plan.actions]
        assert {place[1].version.version for place in places if place} == set(range(first + 1, 7))
        list(repair.execute(storage, plan, run=SOME_ID))
        assert not [finding for finding in audited(storage).findings if finding.kind is FindingKind.ROLLED_BACK_FILES]
        assert repair.plan(repair.gather(storage), None).actions == ()


def test_offsets_ahead_of_the_commits_are_the_only_finding_while_they_exist(v1: Storage) -> None:
    v1.delete(names.commits(batch) for batch in (3, 4, 5))
    assert the_only_finding(audited(v1)).kind is FindingKind.OFFSETS_AHEAD
    v1.delete(names.offsets(batch) for batch in (3, 4, 5))
    assert the_only_finding(audited(v1)).kind is FindingKind.ROLLED_BACK_FILES


def test_the_version_of_a_running_batch_is_no_abandoned_time_line(v1: Storage, v2: Checkpoint) -> None:
    v1.create(STORE.changelog(VersionId(7)), b"x")
    v1.create(STORE.snapshot(VersionId(7)), b"x")
    assert the_only_finding(audited(v1)).kind is FindingKind.ROLLED_BACK_FILES
    v1.create(names.offsets(6), v1.read(names.offsets(5)))
    assert audited(v1).findings == ()


def test_a_query_that_commits_during_the_listing_was_not_rolled_back(
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


def test_a_switchover_is_a_finding_only_without_its_snapshot(v1: Storage, tmp_path: Path) -> None:
    first = switched(v1, tmp_path)
    assert audited(v1).findings == audited(v1, tmp_path / "scratch").findings == ()
    v1.delete([STORE.snapshot(first)])
    found = {one.kind: one for one in audited(v1).findings}
    assert found[FindingKind.COMMITS_MIXED].file == names.commits(6)
    assert "has structure V2, but commits/5 has V1" in found[FindingKind.COMMITS_MIXED].problem
    assert found[FindingKind.COMMITS_MIXED].severity is Severity.ERROR


def test_commits_that_alternate_between_structures_are_named(v1: Storage, tmp_path: Path) -> None:
    switched(v1, tmp_path)
    commit(v1, 8, None)
    v1.create(STORE.changelog(VersionId(9)), changelog(9))
    found = [one for one in audited(v1).findings if one.kind is FindingKind.COMMITS_MIXED]
    assert [one.file for one in found] == [names.commits(8)]
    assert "has structure V1, but commits/7 has V2" in found[0].problem


def test_a_start_with_the_wrong_structure_is_a_finding_with_an_action(v1: Storage) -> None:
    """Spark 4.2, checkpointFormatVersion flipped from 1 to 2: None.get after one more changelog."""
    v1.create(names.offsets(6), v1.read(names.offsets(5)))
    v1.create(STORE.changelog(VersionId(7)), changelog(7))
    assert audited(v1).findings == ()
    add_sidecar(v1, STORE.changelog(VersionId(7)))
    finding = the_only_finding(audited(v1))
    assert (finding.kind, finding.severity) == (FindingKind.FORMAT_FLIPPED, Severity.WARNING)
    assert finding.file == STORE.changelog(VersionId(7))
    assert finding.action.startswith("to restart from batch 5, set ")
    assert "checkpointFormatVersion=1." in finding.action
    add_sidecar(v1, STORE.changelog(VersionId(6)))
    assert audited(v1).findings == (), "Spark 4.1 gives one to each changelog"


# -- another number of partitions --------------------------------------------------------------------------------------


def sets_partitions(storage: Storage, batches: range, partitions: int) -> None:
    for batch in batches:
        conf = {**logs.STATE_CONF, logs.SHUFFLE_PARTITIONS: str(partitions)}
        log = logs.OffsetLog(watermark_ms=0, timestamp_ms=0, conf=conf, sources=('"a source"',))
        storage.replace(names.offsets(batch), logs.encode_offsets(log))


def test_a_start_with_another_number_of_partitions_is_a_finding_with_the_rewind(v1: Storage, v2: Checkpoint) -> None:
    """Spark 4.2 with an offset log of v2: only the offsets after the first restart contain the number."""
    for storage, partitions in ((v1, 1), (v2.storage, 2)):
        sets_partitions(storage, range(4, 6), partitions)
        assert audited(storage).findings == ()
        sets_partitions(storage, range(4, 6), 7)
        found = audited(storage)
        [finding] = [one for one in found.findings if one.kind is FindingKind.PARTITIONS_CHANGED]
        assert (finding.severity, finding.file) == (Severity.ERROR, names.offsets(4))
        assert (
            f"sets spark.sql.shuffle.partitions=7, but the query began with {partitions} partitions" in finding.problem
        )
        assert "State and output of batch 4 and later are wrong" in finding.meaning
        assert f"statekeeper rewind {storage.url} --to-batch 3 --apply" in finding.action
        assert f"with spark.sql.shuffle.partitions={partitions}" in finding.action
        assert finding in found.breaks, "gc would delete the batches to which the query can be rewound"


def test_a_rescale_after_the_first_restart_is_no_start_with_another_number(v1: Storage, v2: Checkpoint) -> None:
    """The metadata then have the number of the rescale, and the offsets of the first restart have the former number."""
    for storage, partitions in ((v1, 1), (v2.storage, 2)):
        sets_partitions(storage, range(3, 5), 7)
        sets_partitions(storage, range(5, 6), partitions)
        assert FindingKind.PARTITIONS_CHANGED not in {one.kind for one in audited(storage).findings}


def test_a_batch_that_began_with_another_number_of_partitions_leaves_the_batches_before_intact(v2: Checkpoint) -> None:
    sets_partitions(v2.storage, range(6, 7), 7)
    finding = the_only_finding(audited(v2.storage))
    assert finding.kind is FindingKind.PARTITIONS_CHANGED
    assert "batch 6 fails or loses state. The batches before are not affected" in finding.meaning
    assert f"rewind {v2.storage.url} --to-batch 5 " in finding.action
