"""Audits of checkpoints without damage, and an audit after damage to each file in turn."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import NotACheckpoint
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind, gather
from statekeeper.statestore.storage import Entry, Storage, open_storage
from tests.support.audits import SOME_ID, audited, changelog, flipped, garbage, loads, the_only_finding
from tests.support.checkpoints import NO_ROWS, ROOT_ID, Checkpoint
from tests.support.hosts import column
from tests.support.snapshots import publish_snapshot, take

FEWEST_CASES = 150


FLIPS_PER_FILE = 6


# -- no findings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True])
def test_an_intact_checkpoint_is_clean_and_unchanged(checkpoint: Checkpoint, tmp_path: Path, deep: bool) -> None:
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


def test_a_folder_without_a_checkpoint_is_an_error_and_a_checkpoint_without_batches_is_clean(
    storage: Storage, tmp_path: Path
) -> None:
    with pytest.raises(NotACheckpoint, match="has neither `metadata` nor `commits/`"):
        gather(storage)
    Checkpoint(storage, tmp_path)
    audit = audited(storage)
    assert (audit.batch, audit.findings, audit.stores) == (None, (), ())
    assert audit.restart.explained == "no batch is committed"


def test_the_files_after_retention_are_no_finding(checkpoint: Checkpoint, tmp_path: Path) -> None:
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


def test_old_files_of_an_interrupted_retention_are_no_finding(checkpoint: Checkpoint) -> None:
    checkpoint.storage.delete([changelog(checkpoint, 1)])
    assert audited(checkpoint.storage, retained_versions=4).findings == ()
    assert the_only_finding(audited(checkpoint.storage, retained_versions=5)).kind is FindingKind.CHANGELOG_MISSING


def test_dead_branches_running_attempts_and_unnamed_tables_are_counted_or_ignored(
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


# -- structure V1 ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_structure_v1_is_audited_by_its_names(storage: Storage, tmp_path: Path) -> None:
    storage.create(names.QUERY_METADATA, logs.encode_metadata(ROOT_ID))
    storage.create(names.state_schema(0), operators.encode_schema(NO_ROWS.key_json, NO_ROWS.value_json))
    info = operators.StoreInfo(name=names.DEFAULT_STORE, prefix_columns=0, partitions=1)
    storage.create(names.operator_metadata(0), operators.encode_operator(operators.OperatorMetadata(0, "agg", (info,))))
    store = StorePath(0, 0)
    for number in range(1, 6):
        body = io.BytesIO()
        writer = ChangelogWriter(body, Header(None))
        writer.append(column([b"key %d" % number]), column([b"value"]))
        writer.finish()
        storage.create(store.changelog(VersionId(number)), body.getvalue())
        storage.create(
            names.offsets(number - 1),
            logs.encode_offsets(logs.OffsetLog(watermark_ms=0, timestamp_ms=0, conf=logs.STATE_CONF, sources=())),
        )
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
    assert [finding.kind for finding in audited(storage).findings] == [
        FindingKind.DESCRIPTION_MISSING,
        FindingKind.CHANGELOG_MISSING,
    ]
    # Spark 3.5 describes no operator, and its queries keep the confs that they began with.
    old = {name: value for name, value in logs.STATE_CONF.items() if name != logs.ENCODING}
    for number in range(5):
        storage.replace(
            names.offsets(number),
            logs.encode_offsets(logs.OffsetLog(watermark_ms=0, timestamp_ms=0, conf=old, sources=())),
        )
    audit = audited(storage)
    assert the_only_finding(audit).kind is FindingKind.CHANGELOG_MISSING
    assert [one.store for one in audit.stores] == [store]


# -- every file in turn ------------------------------------------------------------------------------------------------


def test_any_deleted_file_or_flipped_byte_is_a_finding_or_loses_no_version(tmp_path: Path) -> None:
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
    """Yield each damage: a file is deleted, or one bit of it is flipped."""
    for entry in storage.list(""):
        body = storage.read(entry.path)
        storage.delete([entry.path])
        yield entry.path, body, "deleted"
        for number in range(FLIPS_PER_FILE):
            position = number * (len(body) - 1) // (FLIPS_PER_FILE - 1)
            storage.replace(entry.path, flipped(body, position))
            yield entry.path, body, f"byte {position} of {len(body)} flipped"
