"""Edits of the checkpoints that Spark wrote: the named key is gone, and nothing else has changed."""

from __future__ import annotations

import datetime as dt
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import HalfSwitched, RefusedAsUnsafe, SchemaMismatch, UnsupportedProvider
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.executors import LocalExecutor
from statekeeper.statestore.maintenance.rewrites import edits
from statekeeper.statestore.maintenance.rewrites.edits import Edit
from statekeeper.statestore.maintenance.rewrites.edits.plan import refusals
from statekeeper.statestore.maintenance.rewrites.edits.tables import read_table
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.dumped import dumped
from tests.support.edited_keys import a_key_of, leaves, without_key
from tests.support.edits import FOR_SPARK, apply, goal, planned, row_table, rows, table, undo
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.placed_rows import placed_rows
from tests.support.switching import WRITES, contents
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

CHECKPOINTS = sorted((Path(__file__).parents[3] / "fixtures" / "checkpoints").glob("spark-*-v[12]-*.zip"))
V1, V2 = (next(one for one in CHECKPOINTS if one.stem.endswith(f"{v}-aggregation")) for v in ("v1", "v2"))
HDFS = V1.with_name("spark-4.2.0-hdfs-aggregation.zip")
BOTH = pytest.mark.parametrize("archive", [V1, V2], ids=["V1", "V2"])
POISON = goal(k="key 3")
OPTIONS = ("--operator", "0", "--delete", "k=key 3")
APPLY = ("--apply", "--confirm-stopped")


def opened(archive: Path, folder: Path) -> Storage:
    return open_storage(str(unpacked(archive, folder)))


@pytest.mark.parametrize("archive", CHECKPOINTS, ids=lambda one: one.stem.removeprefix("spark-4.2.0-"))
def test_the_deleted_key_is_gone_and_only_this_key(archive: Path, tmp_path: Path) -> None:
    checkpoint = unpacked(archive, tmp_path)
    storage = open_storage(str(checkpoint))
    chosen = a_key_of(checkpoint)
    if chosen is None:
        assert any(part in archive.stem for part in ("limit", "of-all-rows"))
        return
    operator, key = chosen
    before = dumped(checkpoint)
    run = apply(storage, goal(operator, **leaves(key)), tmp_path)
    expected = without_key(before, operator, key)
    assert len(expected) < len(before)
    assert dumped(checkpoint) == expected
    assert +placed_rows(checkpoint, tmp_path / "placed").elsewhere == {}
    clean(storage, tmp_path)
    assert rewrite_journal.open_journal(storage) is None
    undo(storage, run)
    assert dumped(checkpoint) == before
    clean(storage, tmp_path)


@BOTH
def test_only_the_store_with_the_key_is_changed(archive: Path, tmp_path: Path) -> None:
    storage = opened(archive, tmp_path)
    before, heads = contents(storage), catalog.heads(storage)
    apply(storage, POISON, tmp_path)
    after = contents(storage)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert {path for path in changed if not path.startswith("state/0/1/")} <= {names.commits(2)}
    assert heads is not None
    [changed_head] = [s for s, head in heads.heads.items() if catalog.heads(storage).heads[s] != head] or [None]
    assert (changed_head is None) is (archive is V1)


@BOTH
def test_an_undone_edit_leaves_the_same_state_and_files(archive: Path, tmp_path: Path) -> None:
    checkpoint = unpacked(archive, tmp_path)
    storage = open_storage(str(checkpoint))
    before, files = rows(checkpoint), contents(storage)
    run = apply(storage, POISON, tmp_path)
    assert rows(checkpoint) != before
    undo(storage, run)
    assert rows(checkpoint) == before
    assert contents(storage) == files
    with pytest.raises(RefusedAsUnsafe, match="reversed already"):
        undo(storage, run)


@BOTH
def test_a_begun_batch_does_not_block_an_edit_and_its_files_are_no_base_afterwards(
    archive: Path, tmp_path: Path
) -> None:
    checkpoint = unpacked(archive, tmp_path)
    storage = open_storage(str(checkpoint))
    storage.create(names.offsets(3), storage.read(names.offsets(2)))
    heads = catalog.heads(storage)
    assert heads is not None
    store = min(heads.heads)
    if archive is V1:
        # An attempt at batch 3 that a task of this store completed.
        storage.create(store.changelog(VersionId(4)), storage.read(store.changelog(VersionId(3))))
    plan = planned(storage, POISON, tmp_path)
    assert plan.refusals == ()
    assert plan.is_in_batch
    run = apply(storage, POISON, tmp_path)
    assert not any('"key 3"' in row for row in rows(checkpoint))
    assert storage.stat(store.changelog(VersionId(4))) is None
    if archive is V1:
        # Another attempt, on the edited state.
        storage.create(store.changelog(VersionId(4)), storage.read(store.changelog(VersionId(2))))
    undo(storage, run)
    assert storage.stat(store.changelog(VersionId(4))) is None
    assert any('"key 3"' in row for row in rows(checkpoint))


@BOTH
def test_an_edit_that_finds_nothing_changes_nothing(archive: Path, tmp_path: Path) -> None:
    checkpoint = unpacked(archive, tmp_path)
    files = contents(open_storage(str(checkpoint)))
    told = statekeeper("edit", str(checkpoint), "--operator", "0", "--delete", "k=no such key", *APPLY)
    assert "no row of the state has to be changed" in told
    assert contents(open_storage(str(checkpoint))) == files


def test_the_plan_shows_counts_and_rows_before_and_after(tmp_path: Path) -> None:
    checkpoint = unpacked(V2, tmp_path)
    shown = json.loads(statekeeper("edit", str(checkpoint), *OPTIONS, "--output", "json"))
    assert shown["totals"] == {"added": 0, "removed": 1, "changed": 0}
    [row] = shown["first"]
    assert row["key"] == {"k": "key 3"}
    assert row["before"]["count"] == 6
    assert row["after"] is None
    text = statekeeper("edit", str(checkpoint), *OPTIONS)
    assert text.endswith(
        f"run: statekeeper {shlex.join(['edit', str(checkpoint), *OPTIONS])} --apply --confirm-stopped\n"
    )


@BOTH
def test_an_upsert_replaces_and_inserts_rows_in_the_partition_of_their_keys(archive: Path, tmp_path: Path) -> None:
    checkpoint = unpacked(archive, tmp_path)
    storage = open_storage(str(checkpoint))
    new = pa.table({"k": ["key 3", "new 1", "new 2", "new 3"], "count": [7, 1, 1, 1], "sum": [70, 1, 2, 3]})
    before = {row["key"]["k"]: row["value"] for row in dumped(checkpoint)}
    plan = planned(storage, Edit(operator=0, upserts=new), tmp_path)
    assert {change.value: count for change, count in plan.totals.items()} == {"added": 3, "removed": 0, "changed": 1}
    apply(storage, Edit(operator=0, upserts=new), tmp_path)
    expected = before | {row.pop("k"): row for row in new.to_pylist()}
    assert {row["key"]["k"]: row["value"] for row in dumped(checkpoint)} == expected
    assert +placed_rows(checkpoint, tmp_path / "placed").elsewhere == {}
    clean(storage, tmp_path)
    assert planned(storage, Edit(operator=0, upserts=new), tmp_path).is_there


def test_keys_of_a_table_are_deleted(tmp_path: Path) -> None:
    checkpoint = unpacked(V2, tmp_path)
    for name in ("keys.parquet", "keys.csv"):
        path = tmp_path / name
        if name.endswith("csv"):
            path.write_text("k\nkey 1\nkey 2\n")
        else:
            table(path, {"k": ["key 3", "key 4", "no such key"]})
        statekeeper("edit", str(checkpoint), "--operator", "0", "--delete-keys", str(path), *APPLY)
    left = {row["key"]["k"] for row in dumped(checkpoint)}
    assert not left & {"key 1", "key 2", "key 3", "key 4"}
    assert "key 0" in left


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        (goal(nothing="1"), "the key has no column nothing; its columns are: k"),
        (goal(7, k="1"), "no stateful operator 7"),
        (Edit(operator=0, upserts=pa.table({"k": ["a"], "count": [1]})), "lacks the column sum"),
        (
            Edit(operator=0, upserts=pa.table({"k": ["a", "b"], "count": ["1", "x"], "sum": [1, 2]})),
            "row 1, column count: 'x'",
        ),
        (
            Edit(operator=0, upserts=pa.table({"k": ["a", "a"], "count": [1, 1], "sum": [1, 2]})),
            "rows 0 and 1 .* have the same key",
        ),
        (
            Edit(operator=0, upserts=pa.table({"k": ["a", "b"], "count": [1, 2], "sum": [1.0, 2.5]})),
            "row 1, column sum: 2.5",
        ),
    ],
)
def test_a_goal_that_does_not_fit_the_schema_is_rejected(edit: Edit, error: str, tmp_path: Path) -> None:
    storage = opened(V2, tmp_path)
    files = contents(storage)
    with pytest.raises(SchemaMismatch, match=error):
        planned(storage, edit, tmp_path)
    assert contents(storage) == files


def test_a_value_that_is_not_of_the_columns_type_is_rejected(tmp_path: Path) -> None:
    archive = next(one for one in CHECKPOINTS if one.stem.endswith("v1-windows-lzf"))
    with pytest.raises(SchemaMismatch, match=r"'yesterday' is not a value of column window.start"):
        planned(opened(archive, tmp_path), Edit(operator=0, texts={"window.start": "yesterday"}), tmp_path)


@pytest.mark.parametrize("name", ["v1-join-2", "v2-join-3", "v2-transformWithState"])
def test_an_edit_that_would_leave_an_operator_inconsistent_is_rejected(name: str, tmp_path: Path) -> None:
    archive = next(one for one in CHECKPOINTS if one.stem.endswith(name))
    storage = opened(archive, tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="only whole keys can be deleted"):
        planned(storage, goal(index="1"), tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="an upsert of one of them"):
        planned(storage, Edit(operator=0, upserts=pa.table({"k": ["a"]})), tmp_path)


def test_the_default_provider_is_rejected_with_the_command_that_converts_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedProvider, match="convert"):
        planned(opened(HDFS, tmp_path), POISON, tmp_path)


def test_a_damaged_store_blocks_the_edit(tmp_path: Path) -> None:
    storage = opened(V2, tmp_path)
    heads = catalog.heads(storage)
    assert heads is not None
    store, head = next(iter(heads.heads.items()))
    storage.replace(store.changelog(head), b"damaged")
    assert "the audit reports" in planned(storage, POISON, tmp_path).refusals[-1]


def die_before(storage: Storage, part: str, scratch: Path) -> None:
    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.BEFORE if request.kind in WRITES and part in request.path else None

    with pytest.raises(SimulatedCrash):
        apply(Dying(storage), POISON, scratch)


@BOTH
def test_a_half_done_edit_blocks_other_verbs_and_other_edits(archive: Path, tmp_path: Path) -> None:
    storage = opened(archive, tmp_path)
    die_before(storage, "cleared", tmp_path)
    kinds = {finding.kind for finding in audit.judge(audit.gather(storage)).findings}
    assert audit.FindingKind.HALF_SWITCHED in kinds
    root = storage.url.removeprefix("file://")
    refused = " ".join(statekeeper("snapshot", root, "--all", "--mode", "snapshots", exit_code=13).split())
    assert f"statekeeper edit {root} --operator 0 --delete 'k=key 3' --apply --confirm-stopped" in refused
    assert "half done" in statekeeper("switch", root, "--to", "v2", exit_code=3)
    assert "is half done" in planned(storage, goal(k="key 4"), tmp_path).refusals[0]
    with pytest.raises(HalfSwitched):
        rewrite_journal.require_none(storage)


def test_in_structure_v1_a_guard_prevents_a_start_until_all_stores_are_edited(tmp_path: Path) -> None:
    storage = opened(V1, tmp_path)
    die_before(storage, "/3.zip", tmp_path)
    found = catalog.files(storage)
    assert {s.folder for s, of in found.items() if any(one.id for one in of.snapshots)} == {"state/0/1"}


def test_an_edit_can_be_undone_only_until_its_old_files_are_deleted(tmp_path: Path) -> None:
    checkpoint = unpacked(V2, tmp_path)
    storage, scratch = open_storage(str(checkpoint)), ("--scratch", str(tmp_path))
    run = apply(storage, POISON, tmp_path)
    root = str(checkpoint)
    statekeeper("snapshot", root, "--at-head", "--confirm-stopped", "--mode", "snapshots", *scratch)
    statekeeper("gc", root, "--mode", "full", "--apply", "--grace", "0s", "--retain", "1")
    edited = rows(checkpoint)
    told = statekeeper("edit", root, "--undo", run, "--confirm-stopped", exit_code=13)
    assert "can no longer be restored" in " ".join(told.split())
    assert rows(checkpoint) == edited
    clean(storage, tmp_path)


def test_a_column_of_the_value_with_the_name_of_a_key_column_has_a_prefix(tmp_path: Path) -> None:
    archive = next(one for one in CHECKPOINTS if one.stem.endswith("v2-sessions-snappy"))
    checkpoint = unpacked(archive, tmp_path)
    storage = open_storage(str(checkpoint))
    found = dumped(checkpoint)[0]
    start, end = (parsed(found["value"]["session_window"][name]) for name in ("start", "end"))
    key = found["key"]["k"]
    new = pa.table(
        {
            "k": [key],
            "sessionStartTime": [parsed(found["key"]["sessionStartTime"])],
            "session_window": [{"start": start, "end": end}],
            "value.k": [key],
            "count": [77],
        }
    )
    apply(storage, Edit(operator=0, upserts=new), tmp_path)
    expected = {**found, "value": {**found["value"], "count": 77}}
    assert dumped(checkpoint)[0] == expected
    assert +placed_rows(checkpoint, tmp_path / "placed").elsewhere == {}
    clean(storage, tmp_path)


def parsed(instant: str) -> dt.datetime:
    return dt.datetime.fromisoformat(instant.replace("Z", "+00:00"))


def test_an_edit_needs_the_confirmation_that_the_query_is_stopped(tmp_path: Path) -> None:
    checkpoint = unpacked(V1, tmp_path)
    files = contents(open_storage(str(checkpoint)))
    told = statekeeper("edit", str(checkpoint), *OPTIONS, "--apply", exit_code=13)
    assert "--confirm-stopped" in told
    assert contents(open_storage(str(checkpoint))) == files


def test_own_state_roots_in_structure_v1_and_too_little_disk_block_the_edit(tmp_path: Path) -> None:
    here = LocalExecutor(clock=SystemClock(), scratch=tmp_path)
    facts = edits.gather(opened(V1, tmp_path), POISON, FOR_SPARK, executor=here, scratch=tmp_path)
    [own] = refusals(replace(facts.stopped, origin=Origin.OWN), POISON, FOR_SPARK, 1)
    assert "statekeeper switch ROOT --to v2" in own
    [full] = refusals(replace(facts.stopped, free_bytes=10), POISON, FOR_SPARK, 1)
    assert "10 are free" in full


PLAIN = ["v1-aggregation", "v2-aggregation", "v1-windows-lzf", "v2-sessions-snappy", "v2-a-zip-for-each-version"]
ON_DEFAULT_PROVIDER = ["hdfs-dropDuplicates-zstd", "hdfs-dropDuplicatesWithinWatermark"]


@pytest.mark.parametrize("name", [*PLAIN, *ON_DEFAULT_PROVIDER])
def test_an_upsert_of_all_rows_of_the_state_changes_no_byte(name: str, tmp_path: Path) -> None:
    checkpoint = unpacked(V1.with_name(f"spark-4.2.0-{name}.zip"), tmp_path)
    if name in ON_DEFAULT_PROVIDER:
        statekeeper("convert", str(checkpoint), "--to", "rocksdb", *APPLY, "--scratch", str(tmp_path / "scratch"))
    storage, found = open_storage(str(checkpoint)), dumped(checkpoint)
    upserts = read_table(row_table(tmp_path / "rows.parquet", found))
    assert planned(storage, Edit(operator=0, upserts=upserts), tmp_path / "scratch").is_there
    column = upserts.schema.names[0]
    if name in ON_DEFAULT_PROVIDER:
        upserts = upserts.drop_columns([one for one in upserts.schema.names if one == "__dummy__"])
    new = pa.table({**{one: upserts.column(one)[:1] for one in upserts.schema.names}, column: ["no such key"]})
    if column == "k":
        plan = planned(storage, Edit(operator=0, upserts=new), tmp_path / "scratch")
        assert {change.value: count for change, count in plan.totals.items() if count} == {"added": 1}


@pytest.mark.parametrize(("name", "column"), [("v2-join-3", "field0"), ("v2-transformWithState", "k")])
def test_the_command_deletes_a_whole_key_of_an_operator_with_several_stores_and_rejects_an_upsert(
    name: str, column: str, tmp_path: Path
) -> None:
    checkpoint = unpacked(V1.with_name(f"spark-4.2.0-{name}.zip"), tmp_path)
    options = ("edit", str(checkpoint), "--operator", "0")
    key = a_key_of(checkpoint)
    assert key is not None
    [(found, value)] = leaves(key[1]).items()
    assert found == column
    files = contents(open_storage(str(checkpoint)))
    upsert = table(tmp_path / "rows.parquet", {column: [value]})
    told = " ".join(statekeeper(*options, "--upsert", upsert, *APPLY, exit_code=13).split())
    assert "keeps a key in several stores or column families" in told
    assert "only --delete and --delete-keys work on this operator" in told
    told = " ".join(statekeeper(*options, "--delete", "index=1", *APPLY, exit_code=13).split())
    assert f"give all columns of the key, and no other column: {column}" in told
    assert contents(open_storage(str(checkpoint))) == files
    statekeeper(*options, "--delete", f"{column}={value}", *APPLY, "--scratch", str(tmp_path / "scratch"))
    assert not any(f'"{value}"' in row for row in rows(checkpoint))
    clean(open_storage(str(checkpoint)), tmp_path)
