"""Audits: every damage is made on purpose and diagnosed by name, and the advice is tried by loading what it names."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statestore.clock import SystemClock
from statestore.errors import NotACheckpoint, StatekeeperError, StorageError, UnknownFormatVersion
from statestore.format import logs, names, operators
from statestore.format.changelog import ChangelogWriter, Header
from statestore.format.compression import BlockWriter
from statestore.format.java_io import utf
from statestore.format.names import StorePath, VersionId
from statestore.format.snapshot import encode_snapshot, read_snapshot
from statestore.maintenance import passes
from statestore.maintenance.audit import Audit, AuditFacts, AuditPolicy, Finding, FindingKind, Severity, gather, judge
from statestore.maintenance.audit.facts import StoreAuditFacts
from statestore.maintenance.config import Policies
from statestore.maintenance.retention import Amount, RetentionPolicy
from statestore.storage import Entry, Storage, open_storage
from tests.support.checkpoints import NO_ROWS, ROOT_ID, Checkpoint
from tests.support.hosts import column
from tests.support.snapshots import publish_snapshot, take

SOME_ID = "0badc0de-0000-4000-8000-000000000000"
FEWEST_CASES = 150
FLIPS_PER_FILE = 6


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("template")
    made = Checkpoint(open_storage(str(folder / "root")), folder)
    made.grow(3)
    take(made.storage, folder)
    made.grow(3)
    return made


@pytest.fixture
def checkpoint(template: Checkpoint, storage: Storage, tmp_path: Path) -> Checkpoint:
    """Two stores, versions 1 to 6, a snapshot of version 3."""
    return template.copied_to(storage, tmp_path)


def audited(storage: Storage, scratch: Path | None = None, **policy: Any) -> Audit:
    return judge(gather(storage, scratch=scratch), AuditPolicy(**policy))


def garbage(storage: Storage, versions: int = 100) -> dict[StorePath, Amount]:
    """What the next gc deletes of each store, when no file is too young for it."""
    policies = Policies(retention=RetentionPolicy(versions=versions, grace_seconds=0.0))
    figures = passes.audit.look(storage, policies, clock=SystemClock()).forecast
    assert figures is not None
    return {store: amount for store, amount in figures.stores.items() if amount.files}


def the_only_finding(audit: Audit) -> Finding:
    assert len(audit.findings) == 1, audit.findings
    return audit.findings[0]


def changelog(checkpoint: Checkpoint, version: int, partition: int = 0) -> str:
    return checkpoint.stores[partition].changelog(checkpoint.versions[version][partition])


def snapshot(checkpoint: Checkpoint, version: int, partition: int = 0) -> str:
    return checkpoint.stores[partition].snapshot(checkpoint.versions[version][partition])


def tables(checkpoint: Checkpoint, version: int, partition: int = 0) -> list[str]:
    path = snapshot(checkpoint, version, partition)
    named = read_snapshot(checkpoint.storage.read(path), path).metadata.tables
    return [checkpoint.stores[partition].table_file(table.dfs_name) for table in named]


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]


def loads(checkpoint: Checkpoint, batch: int, host: Path) -> bool:
    """Whether every store loads that batch's version on a new host; what loads has to be right."""
    try:
        checkpoint.assert_right(host, batch)
    except StatekeeperError:
        return False
    return True


def assert_restart_is_right(checkpoint: Checkpoint, audit: Audit, tmp_path: Path) -> None:
    """The batch that is advised loads in every store and is right, and no newer one does."""
    newest_first = range(len(checkpoint.versions) - 2, -1, -1)
    loadable = (batch for batch in newest_first if loads(checkpoint, batch, tmp_path / f"host of {batch}"))
    assert audit.restart.batch == next(loadable, None)


# -- what is no finding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True])
def test_a_whole_checkpoint_is_clean_and_nothing_is_written_below_it(
    checkpoint: Checkpoint, tmp_path: Path, deep: bool
) -> None:
    before = checkpoint.storage.list("")
    written = checkpoint.storage.requests.snapshot()
    audit = audited(checkpoint.storage, tmp_path / "scratch" if deep else None)
    assert audit.findings == ()
    assert (audit.batch, audit.restart.batch, audit.versions) == (5, 5, 12)
    assert checkpoint.storage.list("") == before
    spent = checkpoint.storage.requests.since(written)
    assert (spent.create, spent.replace, spent.delete, spent.bytes_written) == (0, 0, 0, 0)
    for store, versions in zip(audit.stores, zip(*checkpoint.versions, strict=True), strict=True):
        assert (store.oldest, store.head, store.loadable, store.base) == (1, versions[6], versions[6], versions[3])
        assert (store.tail, store.lost) == (3, ())
    assert garbage(checkpoint.storage) == {}
    if deep:
        assert [(one.changelogs, one.snapshots) for one in audit.decoded.values()] == [(6, 1), (6, 1)]
        assert [one.keys for one in audit.decoded.values()] == [len(state) for state in checkpoint.states[3]]
        assert not list((tmp_path / "scratch").iterdir())
    assert audit.unproven


def test_a_batch_that_is_committed_while_the_files_are_listed_is_no_finding(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = checkpoint.storage.list

    def commits_after(prefix: str, *, hidden: bool = False) -> list[Entry]:
        entries = listing(prefix, hidden=hidden)
        if prefix == names.STATE:
            monkeypatch.undo()
            checkpoint.grow(1)
        return entries

    monkeypatch.setattr(checkpoint.storage, "list", commits_after)
    found = audited(checkpoint.storage)
    assert (found.batch, found.findings) == (5, ())


def test_an_audit_makes_at_most_three_requests_a_store_and_one_a_snapshot(storage: Storage, tmp_path: Path) -> None:
    checkpoint = Checkpoint(storage, tmp_path, partitions=4)
    for _ in range(3):
        checkpoint.grow(2)
        take(storage, tmp_path)
    checkpoint.grow(2)
    stores, snapshots, batches, root = 4, 12, 8, 12
    audit = audited(storage)
    assert audit.findings == ()
    assert audit.requests.total <= 3 * stores + snapshots + batches + root
    checkpoint.storage.delete(names.commits(batch) for batch in range(3))
    checkpoint.storage.delete(names.offsets(batch) for batch in range(3))
    checkpoint.storage.delete(changelog(checkpoint, version, p) for version in (1, 2) for p in range(4))
    audit = audited(storage)
    assert audit.findings == ()
    assert audit.requests.total <= 3 * stores + snapshots + batches - 3 + root


def test_what_is_no_checkpoint_is_said_and_one_without_batches_is_clean(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(NotACheckpoint, match="has neither `metadata` nor `commits/`"):
        gather(storage)
    Checkpoint(storage, tmp_path)
    audit = audited(storage)
    assert (audit.batch, audit.findings, audit.stores) == (None, (), ())
    assert audit.restart.explained == "no batch is committed"


def test_what_retention_leaves_is_no_finding(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.storage.delete(changelog(checkpoint, version, p) for version in (1, 2, 3) for p in (0, 1))
    audit = audited(checkpoint.storage, tmp_path)
    assert audit.findings == ()
    assert [store.oldest for store in audit.stores] == [3, 3]
    checkpoint.storage.delete(names.commits(batch) for batch in range(4))
    checkpoint.storage.delete(names.offsets(batch) for batch in range(4))
    audit = audited(checkpoint.storage, tmp_path)
    assert audit.findings == ()
    assert [store.oldest for store in audit.stores] == [5, 5]
    for batch in (4, 5):
        checkpoint.assert_right(tmp_path / f"host {batch}", batch)


def test_what_an_interrupted_retention_leaves_is_no_finding_when_it_is_old_enough(checkpoint: Checkpoint) -> None:
    checkpoint.storage.delete([changelog(checkpoint, 1)])
    assert audited(checkpoint.storage, retained_versions=4).findings == ()
    assert the_only_finding(audited(checkpoint.storage, retained_versions=5)).what is FindingKind.CHANGELOG_MISSING


def test_dead_branches_running_attempts_and_unnamed_tables_are_counted_or_passed_over(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    store = checkpoint.stores[0]
    publish_snapshot(checkpoint.storage, store, VersionId(5, SOME_ID), {b"a": b"dead branch"}, tmp_path / "dead")
    running = {store.changelog(VersionId(7, SOME_ID)): b"x", store.snapshot(VersionId(8, SOME_ID)): b"y"}
    dead = {store.changelog(VersionId(6, SOME_ID)): b"garbage"}
    unnamed = {store.table_file("000099-6ad1c2f0.sst"): b"no zip names it"}
    for path, body in {**running, **dead, **unnamed}.items():
        checkpoint.storage.create(path, body)
    checkpoint.storage.create(names.offsets(6), checkpoint.storage.read(names.offsets(5)))
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    assert audit.findings == ()
    assert audit.stores[0].base == checkpoint.versions[3][0]
    # The zip of the dead branch and its changelog. The zip of the attempt at work may name any table: it cannot be read.
    [(of, amount)] = garbage(checkpoint.storage).items()
    assert (of, amount.files) == (store, 2)
    checkpoint.storage.delete([store.snapshot(VersionId(8, SOME_ID))])
    # And the table of the dead branch, and the table that nothing names.
    [(of, amount)] = garbage(checkpoint.storage).items()
    assert (of, amount.files) == (store, 4)
    assert amount.bytes > len(b"garbage") + len(b"no zip names it")
    checkpoint.assert_right(tmp_path / "fresh")


def test_old_versions_that_the_next_gc_deletes_are_counted(checkpoint: Checkpoint) -> None:
    audit = audited(checkpoint.storage, retained_versions=2)
    assert audit.findings == ()
    # The changelogs of versions 1 to 3: at version 3, the base, the snapshot restores.
    assert {store: amount.files for store, amount in garbage(checkpoint.storage, 2).items()} == dict.fromkeys(
        checkpoint.stores, 3
    )


# -- changelogs --------------------------------------------------------------------------------------------------------

Harm = Callable[[bytes], bytes | None]
HARMS: dict[str, Harm] = {
    "missing": lambda body: None,
    "empty": lambda body: b"",
    "truncated": lambda body: body[:-20],
    "flipped": lambda body: flipped(body, len(body) - 30),
}


def harm(checkpoint: Checkpoint, path: str, how: str) -> None:
    body = HARMS[how](checkpoint.storage.read(path))
    if body is None:
        checkpoint.storage.delete([path])
    else:
        checkpoint.storage.replace(path, body)


@pytest.mark.parametrize("how", list(HARMS))
@pytest.mark.parametrize(("version", "restart"), [(2, 5), (5, 3), (6, 4)])
def test_a_bad_changelog_is_named_with_the_versions_that_are_lost(
    checkpoint: Checkpoint, tmp_path: Path, how: str, version: int, restart: int
) -> None:
    path = changelog(checkpoint, version)
    harm(checkpoint, path, how)
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    finding = the_only_finding(audit)
    assert (finding.severity, finding.file, finding.store) == (Severity.ERROR, path, StorePath(0, 0))
    assert finding.what is (FindingKind.CHANGELOG_MISSING if how == "missing" else FindingKind.CHANGELOG_UNREADABLE)
    assert [v.version for v in audit.stores[0].lost] == {2: [2], 5: [5, 6], 6: [6]}[version]
    assert audit.restart.batch == restart
    assert ("version 3 and later can" in finding.meaning) == (version == 2)
    assert ("roll back to batch" in finding.action) == (version > 2)
    assert_restart_is_right(checkpoint, audit, tmp_path)
    assert not loads(checkpoint, version - 1, tmp_path / "another")


@pytest.mark.parametrize(("how", "version"), [("missing", 5), ("empty", 5), ("empty", 6)])
def test_names_sizes_and_heads_tell_it_without_reading_every_byte(
    checkpoint: Checkpoint, how: str, version: int
) -> None:
    harm(checkpoint, changelog(checkpoint, version), how)
    assert the_only_finding(audited(checkpoint.storage)).file == changelog(checkpoint, version)


def test_missing_changelogs_in_a_row_are_one_finding(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for version in (4, 5):
        harm(checkpoint, changelog(checkpoint, version, 1), "missing")
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert finding.file == changelog(checkpoint, 4, 1)
    assert "2 in a row" in finding.problem
    assert finding.meaning.startswith(f"versions 4 to 6 (batches 3 to 5) of store {finding.store} cannot be restored")
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_the_first_changelog_that_is_gone_before_any_snapshot_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    checkpoint = Checkpoint(storage, tmp_path)
    checkpoint.grow(3)
    harm(checkpoint, changelog(checkpoint, 1), "missing")
    audit = audited(storage)
    assert the_only_finding(audit).file == changelog(checkpoint, 1)
    assert audit.restart.batch is None
    assert audit.restart.explained == "no batch can be restored in every store"
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_a_restart_needs_a_batch_that_every_store_loads(checkpoint: Checkpoint, tmp_path: Path) -> None:
    harm(checkpoint, changelog(checkpoint, 6, 0), "missing")
    harm(checkpoint, changelog(checkpoint, 2, 0), "missing")
    harm(checkpoint, changelog(checkpoint, 4, 1), "truncated")
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    assert [finding.file for finding in audit.findings] == [
        changelog(checkpoint, 2, 0),
        changelog(checkpoint, 6, 0),
        changelog(checkpoint, 4, 1),
    ]
    assert audit.restart.batch == 2
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_a_bad_changelog_that_a_snapshot_stands_for_loses_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    harm(checkpoint, changelog(checkpoint, 3), "flipped")
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    finding = the_only_finding(audit)
    assert (finding.severity, finding.what) == (Severity.WARNING, FindingKind.CHANGELOG_UNREADABLE)
    assert_restart_is_right(checkpoint, audit, tmp_path)


# -- snapshots ---------------------------------------------------------------------------------------------------------


def drop_old_changelogs(checkpoint: Checkpoint, partition: int = 0) -> None:
    checkpoint.storage.delete(changelog(checkpoint, version, partition) for version in (1, 2, 3))


@pytest.mark.parametrize("is_needed", [False, True])
@pytest.mark.parametrize("how", list(HARMS))
def test_a_bad_zip_is_a_warning_until_something_hangs_on_it(
    checkpoint: Checkpoint, tmp_path: Path, how: str, is_needed: bool
) -> None:
    path = snapshot(checkpoint, 3)
    harm(checkpoint, path, how)
    if is_needed:
        drop_old_changelogs(checkpoint)
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.file, finding.store) == (path, StorePath(0, 0))
    assert finding.what is (FindingKind.SNAPSHOT_MISSING if how == "missing" else FindingKind.SNAPSHOT_UNREADABLE)
    assert finding.severity is (Severity.ERROR if is_needed else Severity.WARNING)
    assert audit.restart.batch == (None if is_needed else 5)
    assert_restart_is_right(checkpoint, audit, tmp_path)
    assert audited(checkpoint.storage, tmp_path / "scratch").findings == audit.findings


TABLE_HARMS = {
    "missing": FindingKind.TABLE_MISSING,
    "truncated": FindingKind.TABLE_WRONG_SIZE,
    "empty": FindingKind.TABLE_WRONG_SIZE,
    "flipped": FindingKind.TABLE_UNREADABLE,
}


@pytest.mark.parametrize("is_needed", [False, True])
@pytest.mark.parametrize("how", list(TABLE_HARMS))
def test_a_bad_table_is_named_and_every_byte_of_it_counts_only_in_a_deep_audit(
    checkpoint: Checkpoint, tmp_path: Path, how: str, is_needed: bool
) -> None:
    [path] = tables(checkpoint, 3)
    if how == "flipped":
        checkpoint.storage.replace(path, flipped(checkpoint.storage.read(path), 20))
        assert audited(checkpoint.storage).findings == ()
    else:
        harm(checkpoint, path, how)
    if is_needed:
        drop_old_changelogs(checkpoint)
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    finding = the_only_finding(audit)
    assert (finding.what, finding.file) == (TABLE_HARMS[how], path)
    is_trap = how == "flipped"  # a load takes it, and only a read shows it
    assert finding.severity is (Severity.ERROR if is_needed or is_trap else Severity.WARNING)
    assert names.snapshot(checkpoint.versions[3][0]) in finding.problem
    assert str(tmp_path) not in finding.problem
    assert audit.stores[0].base == (None if is_needed else names.EMPTY)
    assert audit.restart.delete_first == ((snapshot(checkpoint, 3),) if is_trap and not is_needed else ())
    if is_trap:
        assert finding.meaning.startswith(
            "loads of versions 3 to 6 (batches 2 to 5) use it without detecting the damage"
        )
        assert not loads(checkpoint, 5, tmp_path / "before")
    else:
        assert audited(checkpoint.storage).findings == audit.findings
    checkpoint.storage.delete(audit.restart.delete_first)
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_a_table_that_two_snapshots_share_is_one_finding_that_names_both(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """FLINK-37686, SPARK-55892: a file that another snapshot had borrowed is removed by its owner."""
    take(checkpoint.storage, tmp_path)
    [shared] = set(tables(checkpoint, 3)) & set(tables(checkpoint, 6))
    harm(checkpoint, shared, "missing")
    drop_old_changelogs(checkpoint)
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    finding = the_only_finding(audit)
    assert (finding.what, finding.file, finding.severity) == (FindingKind.TABLE_MISSING, shared, Severity.ERROR)
    for version in (3, 6):
        assert names.snapshot(checkpoint.versions[version][0]) in finding.problem
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_one_object_missing_at_restore_leaves_the_older_snapshot_and_a_replay(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """RisingWave #19865."""
    take(checkpoint.storage, tmp_path)
    only_new = set(tables(checkpoint, 6)) - set(tables(checkpoint, 3))
    checkpoint.storage.delete(only_new)
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.what, finding.severity) == (FindingKind.TABLE_MISSING, Severity.WARNING)
    assert (audit.stores[0].base, audit.stores[0].tail) == (checkpoint.versions[3][0], 3)
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_a_snapshot_that_holds_another_number_of_keys_than_it_says_is_found_by_a_deep_audit(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """SPARK-43404, SPARK-51717: the tables under a zip are not those that it was made of."""
    path = snapshot(checkpoint, 3)
    held = read_snapshot(checkpoint.storage.read(path), path)
    for said, found in ((held.metadata.key_count + 1, FindingKind.SNAPSHOT_AT_ODDS), (-1, None)):
        checkpoint.storage.replace(
            path, encode_snapshot(replace(held, metadata=replace(held.metadata, key_count=said)))
        )
        audit = audited(checkpoint.storage, tmp_path / "scratch")
        assert [(finding.what, finding.file) for finding in audit.findings] == ([(found, path)] if found else [])
        assert audited(checkpoint.storage).findings == ()


# -- the commit log ----------------------------------------------------------------------------------------------------


def with_id(checkpoint: Checkpoint, batch: int, checkpoint_id: str) -> bytes:
    """The commit of a batch, with another id for partition 0."""
    path = names.commits(batch)
    commit = logs.parse_commit(checkpoint.storage.read(path), path)
    assert commit.ids is not None
    return logs.encode_commit(replace(commit, ids={0: ((checkpoint_id,), *commit.ids[0][1:])}))


def test_a_commit_that_names_an_unknown_id_is_told_by_the_lineage_and_nothing_else_is_lost(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.storage.replace(names.commits(3), with_id(checkpoint, 3, SOME_ID))
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.what, finding.file) == (FindingKind.COMMIT_UNKNOWN_ID, names.commits(3))
    assert SOME_ID in finding.problem
    assert str(checkpoint.versions[4][0].id) in finding.problem
    assert audit.restart.batch == 5
    checkpoint.assert_right(tmp_path / "fresh")


@pytest.mark.parametrize(("batch", "restart"), [(5, 4), (1, 5)])
def test_where_no_lineage_reaches_an_unknown_id_is_a_missing_file_beside_those_that_there_are(
    checkpoint: Checkpoint, tmp_path: Path, batch: int, restart: int
) -> None:
    checkpoint.storage.replace(names.commits(batch), with_id(checkpoint, batch, SOME_ID))
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert finding.what is FindingKind.CHANGELOG_MISSING
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
def test_a_bad_commit_is_named_and_the_others_tell_enough(checkpoint: Checkpoint, tmp_path: Path, how: str) -> None:
    body, what = COMMIT_HARMS[how]
    checkpoint.storage.delete([names.commits(3)])
    if body is not None:
        checkpoint.storage.replace(names.commits(3), body)
    audit = audited(checkpoint.storage, tmp_path / "scratch")
    finding = the_only_finding(audit)
    assert (finding.what, finding.file, finding.severity) == (what, "commits/3", Severity.ERROR)
    assert finding.meaning.startswith(
        "batch 3 can no longer be restored; the query can restart from its newest batch, 5"
    )
    assert [(store.tail, store.lost) for store in audit.stores] == [(3, ()), (3, ())]
    checkpoint.assert_right(tmp_path / "fresh")


def test_without_its_newest_commit_the_query_cannot_start_and_the_one_before_is_named(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.storage.replace(names.commits(5), b"v2\n{")
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert finding.meaning == (
        "the query cannot start, because this is the newest commit; the newest batch that every store can restore is 4 "
        "(version 5)"
    )
    assert (audit.batch, audit.restart.batch) == (5, 4)
    checkpoint.assert_right(tmp_path / "fresh", 4)


def test_when_no_commit_can_be_read_each_is_named(checkpoint: Checkpoint) -> None:
    for batch in range(6):
        checkpoint.storage.replace(names.commits(batch), b"")
    audit = audited(checkpoint.storage)
    assert [finding.file for finding in audit.findings] == [names.commits(batch) for batch in range(6)]
    assert audit.restart.batch is None
    for batch in range(6):
        checkpoint.storage.replace(names.commits(batch), b"v9\n{}")
    with pytest.raises(UnknownFormatVersion, match="commits/5: log version v9"):
        gather(checkpoint.storage)


def test_a_commit_that_lacks_a_partition_is_no_batch_to_go_back_to(checkpoint: Checkpoint, tmp_path: Path) -> None:
    ids = ((str(checkpoint.versions[6][0].id),),)
    checkpoint.storage.replace(names.commits(5), logs.encode_commit(logs.CommitLog(0, {0: ids})))
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.what, finding.file) == (FindingKind.COMMIT_AT_ODDS, "commits/5")
    assert "the metadata of operator 0: it names 1 partitions, but the metadata describes 2" in finding.problem
    assert audit.restart.batch == 4
    checkpoint.assert_right(tmp_path / "fresh", 4)


def test_a_lineage_at_odds_with_the_commit_log_is_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The head stands on another attempt's version 5 than the one that was committed."""
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
        assert (finding.what, finding.file) == (FindingKind.LINEAGE_AT_ODDS, path)
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
    assert (finding.what, finding.file) == (FindingKind.LINEAGE_AT_ODDS, path)


@pytest.mark.parametrize(
    ("lineage", "problem"),
    [
        ((), "has a lineage without the previous version"),
        ((VersionId(4, SOME_ID),), "has a lineage that skips a version"),
    ],
)
def test_a_lineage_that_leads_nowhere_is_named(
    checkpoint: Checkpoint, lineage: tuple[VersionId, ...], problem: str
) -> None:
    body = io.BytesIO()
    ChangelogWriter(body, Header(lineage)).finish()
    checkpoint.storage.replace(changelog(checkpoint, 6), body.getvalue())
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.what, finding.file) == (FindingKind.LINEAGE_AT_ODDS, changelog(checkpoint, 6))
    assert problem in finding.problem


# -- offsets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "severity"), [(5, Severity.ERROR), (2, Severity.WARNING)])
def test_a_committed_batch_without_offsets_is_named(checkpoint: Checkpoint, batch: int, severity: Severity) -> None:
    checkpoint.storage.delete([names.offsets(batch)])
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.what, finding.file, finding.severity) == (FindingKind.OFFSETS_MISSING, f"offsets/{batch}", severity)


@pytest.mark.parametrize(("batch", "severity"), [(5, Severity.ERROR), (2, Severity.WARNING)])
def test_offsets_that_cannot_be_read_are_named(
    checkpoint: Checkpoint, tmp_path: Path, batch: int, severity: Severity
) -> None:
    checkpoint.storage.replace(names.offsets(batch), b"v1\n{")
    finding = the_only_finding(audited(checkpoint.storage, tmp_path))
    assert (finding.what, finding.file, finding.severity) == (
        FindingKind.OFFSETS_UNREADABLE,
        f"offsets/{batch}",
        severity,
    )


def test_offsets_may_be_one_batch_ahead_and_no_more(checkpoint: Checkpoint) -> None:
    body = checkpoint.storage.read(names.offsets(5))
    checkpoint.storage.create(names.offsets(6), body)
    assert audited(checkpoint.storage).findings == ()
    checkpoint.storage.create(names.offsets(7), body)
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.what, finding.file) == (FindingKind.OFFSETS_AHEAD, "offsets/7")
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
    assert (finding.what, finding.severity, finding.file) == (
        FindingKind.LOG_IN_THE_WAY,
        Severity.ERROR,
        "offsets/.6.crc",
    )
    assert finding.problem == "remained after offsets/6 was deleted"


def test_a_commit_log_that_is_gone_is_told_by_the_offsets(checkpoint: Checkpoint) -> None:
    checkpoint.storage.delete(names.commits(batch) for batch in range(6))
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.what, finding.file) == (FindingKind.OFFSETS_AHEAD, "offsets/5")


# -- what describes the checkpoint -------------------------------------------------------------------------------------

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
    assert (finding.what, finding.file, finding.severity) == (
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
    assert [(finding.what, finding.file) for finding in audit.findings] == [
        (FindingKind.DESCRIPTION_MISSING, names.operator_metadata(0)),
        (FindingKind.CHANGELOG_MISSING, changelog(checkpoint, 5)),
    ]
    assert_restart_is_right(checkpoint, audit, tmp_path)


def test_a_missing_binding_is_told_by_what_else_the_job_wrote(checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(names.pending(5, SOME_ID), b"{}")
    checkpoint.storage.delete([names.BINDING])
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.what, finding.file) == (FindingKind.DESCRIPTION_MISSING, names.BINDING)


def test_two_operators_with_one_id_are_named(checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(names.operator_metadata(1), checkpoint.storage.read(names.operator_metadata(0)))
    audit = audited(checkpoint.storage)
    [finding] = [finding for finding in audit.findings if finding.what is FindingKind.TWO_OPERATORS]
    assert finding.file == names.operator_metadata(1)
    assert names.operator_metadata(0) in finding.problem
    assert [store.store for store in audit.stores] == checkpoint.stores


def test_an_operator_whose_metadata_claims_a_billion_partitions_is_not_believed(checkpoint: Checkpoint) -> None:
    info = operators.StoreInfo(names.DEFAULT_STORE, 1, 10**9)
    body = operators.encode_operator(operators.OperatorMetadata(0, "counting", (info,)))
    checkpoint.storage.replace(names.operator_metadata(0), body)
    audit = audited(checkpoint.storage)
    assert {(finding.what, finding.file) for finding in audit.findings} == {
        (FindingKind.DESCRIPTION_UNREADABLE, names.operator_metadata(0))
    }
    assert len(audit.stores) == 2


def test_descriptions_that_disagree_are_named(checkpoint: Checkpoint) -> None:
    checkpoint.storage.replace(names.QUERY_METADATA, logs.encode_metadata("another root"))
    checkpoint.storage.replace(names.state_schema(0), operators.encode_schema("{}", "{}"))
    found = [(finding.what, finding.file) for finding in audited(checkpoint.storage).findings]
    assert found == [
        (FindingKind.DESCRIPTION_AT_ODDS, names.QUERY_METADATA),
        (FindingKind.DESCRIPTION_AT_ODDS, names.state_schema(0)),
    ]


def test_a_later_schema_that_names_an_unknown_store_is_said_of_the_binding(checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(names.later_schema(4), json.dumps({"nobody's": "{}"}).encode())
    finding = the_only_finding(audited(checkpoint.storage))
    assert finding.what is FindingKind.DESCRIPTION_UNREADABLE
    assert "names a store that is not in the binding" in finding.problem


@pytest.mark.parametrize(
    "path",
    ["state/0/0/foo.zip", "state/0/0/SSTs/foo", "state/00/0/1.zip", "state/notes", "commits/foo", "offsets/5.bak"],
)
def test_a_foreign_name_is_named(checkpoint: Checkpoint, path: str) -> None:
    checkpoint.storage.create(path, b"x")
    audit = audited(checkpoint.storage)
    finding = the_only_finding(audit)
    assert (finding.what, finding.file, finding.severity) == (FindingKind.FOREIGN_FILE, path, Severity.WARNING)
    assert audit.restart.batch == 5


def test_sidecars_of_sparks_are_no_foreign_names(checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(f"{changelog(checkpoint, 5)}.crc", b"{}")
    assert audited(checkpoint.storage).findings == ()


def test_files_of_a_store_that_nothing_describes_are_named(checkpoint: Checkpoint) -> None:
    checkpoint.storage.create(StorePath(0, 7).changelog(VersionId(1, SOME_ID)), b"x")
    finding = the_only_finding(audited(checkpoint.storage))
    assert (finding.what, finding.store) == (FindingKind.STORE_UNDESCRIBED, StorePath(0, 7))


# -- the ceiling, formats, storage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "severity"),
    [(500, None), (640, Severity.WARNING), (795, Severity.WARNING), (810, Severity.ERROR), (900, Severity.ERROR)],
)
def test_the_distance_to_the_ceiling_is_said_before_a_query_stops(
    tmp_path: Path, versions: int, severity: Severity | None
) -> None:
    storage = open_storage(str(tmp_path / "root"))
    checkpoint = Checkpoint(storage, tmp_path, partitions=1)
    checkpoint.grow(2)
    facts = with_lineage(gather(storage), versions)
    audit = judge(facts)
    assert [(finding.severity, finding.what) for finding in audit.findings] == (
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


def test_a_store_of_an_unknown_format_does_not_keep_the_others_from_being_audited(checkpoint: Checkpoint) -> None:
    for partition in (0, 1):
        path = changelog(checkpoint, 6, partition)
        checkpoint.storage.replace(path, of_version_5())
        if partition == 0:
            audit = audited(checkpoint.storage)
            finding = the_only_finding(audit)
            assert (finding.what, finding.file) == (FindingKind.STORE_UNKNOWN_FORMAT, path)
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
    assert (finding.what, finding.store) == (FindingKind.STORE_NOT_AUDITED, StorePath(0, 0))
    assert "timed out" in finding.problem
    assert [store.store for store in audit.stores] == [checkpoint.stores[1]]


# -- structure V1 ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_structure_v1_is_audited_by_its_names(storage: Storage, tmp_path: Path) -> None:
    storage.create(names.QUERY_METADATA, logs.encode_metadata(ROOT_ID))
    storage.create(names.state_schema(0), operators.encode_schema(NO_ROWS.key_json, NO_ROWS.value_json))
    info = operators.StoreInfo(names.DEFAULT_STORE, 0, 1)
    storage.create(names.operator_metadata(0), operators.encode_operator(operators.OperatorMetadata(0, "agg", (info,))))
    store = StorePath(0, 0)
    for number in range(1, 6):
        body = io.BytesIO()
        writer = ChangelogWriter(body, Header(None))
        writer.append(column([b"key %d" % number]), column([b"value"]))
        writer.finish()
        storage.create(store.changelog(VersionId(number)), body.getvalue())
        storage.create(names.offsets(number - 1), logs.encode_offsets(logs.OffsetLog(0, 0, logs.STATE_CONF, ())))
        storage.create(names.commits(number - 1), logs.encode_commit(logs.CommitLog(0, None)))
    publish_snapshot(storage, store, VersionId(3), {b"key %d" % n: b"value" for n in (1, 2, 3)}, tmp_path)
    audit = audited(storage, tmp_path / "scratch")
    assert audit.findings == ()
    assert (audit.stores[0].base, audit.stores[0].tail, audit.stores[0].commits_left) == (VersionId(3), 2, None)
    storage.delete([store.changelog(VersionId(4))])
    audit = audited(storage)
    assert the_only_finding(audit).file == store.changelog(VersionId(4))
    assert audit.restart.batch == 2
    storage.delete([names.operator_metadata(0)])
    assert [finding.what for finding in audited(storage).findings] == [
        FindingKind.DESCRIPTION_MISSING,
        FindingKind.CHANGELOG_MISSING,
    ]
    # Spark 3.5 describes no operator, and its queries keep the confs that they began with.
    old = {name: value for name, value in logs.STATE_CONF.items() if name != logs.ENCODING}
    for number in range(5):
        storage.replace(names.offsets(number), logs.encode_offsets(logs.OffsetLog(0, 0, old, ())))
    audit = audited(storage)
    assert the_only_finding(audit).what is FindingKind.CHANGELOG_MISSING
    assert [one.store for one in audit.stores] == [store]


# -- every file in turn ------------------------------------------------------------------------------------------------


def test_whatever_file_goes_or_byte_flips_the_audit_says_so_or_nothing_is_lost(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"))
    checkpoint = Checkpoint(storage, tmp_path, partitions=1)
    checkpoint.grow(2)
    take(storage, tmp_path)
    checkpoint.grow(2)
    take(storage, tmp_path)
    checkpoint.grow(1)
    cases = said = 0
    for path, body, harmed in _harmed_files(storage):
        audit = audited(storage, tmp_path / "scratch")
        host = tmp_path / f"host {cases}"
        if audit.findings:
            said += 1
            if audit.restart.batch is not None:
                traps = {trap: storage.read(trap) for trap in audit.restart.delete_first}
                storage.delete(traps)
                checkpoint.assert_right(host, audit.restart.batch)
                for trap, trap_body in traps.items():
                    storage.create(trap, trap_body)
        else:
            newest = max(gather(storage).logs.readable)
            for version in range(audit.stores[0].oldest, newest + 2):
                assert loads(checkpoint, version - 1, host / str(version)), (path, harmed, version)
        cases += 1
        storage.replace(path, body)
    print(f"{cases} cases, in {said} of them the audit had findings")
    assert audited(storage, tmp_path / "scratch").findings == ()
    assert cases >= FEWEST_CASES


def _harmed_files(storage: Storage) -> Iterator[tuple[str, bytes, str]]:
    """Each file below the root, without which the root stands now, or with one bit of which flipped."""
    for entry in storage.list(""):
        body = storage.read(entry.path)
        storage.delete([entry.path])
        yield entry.path, body, "deleted"
        for number in range(FLIPS_PER_FILE):
            position = number * (len(body) - 1) // (FLIPS_PER_FILE - 1)
            storage.replace(entry.path, flipped(body, position))
            yield entry.path, body, f"byte {position} of {len(body)} flipped"
