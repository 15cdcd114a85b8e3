"""Value columns of state roots are added, dropped, widened and renamed; the job continues with the new columns."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from statekeeper.statestore.base.errors import BatchConflict, RefusedAsUnsafe, SchemaMismatch
from statekeeper.statestore.format import names, operators
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.root.state_root import StateRoot
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.evolved_roots import (
    NEW,
    OLD,
    PLAIN,
    by_key,
    commit,
    declared,
    evolve,
    goal,
    new_rows,
    old_rows,
    plain_rows,
    rows_of,
    undo,
)
from tests.support.keyed_roots import KeyedRoot
from tests.support.rescales import planned
from tests.support.rewinds import rewound
from tests.support.roots import opened, outer
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

KEYS = [f"key {n}" for n in range(40)]
ARCHIVE = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"
APPLY = ("--apply", "--confirm-stopped")


@pytest.fixture
def root(tmp_path: Path) -> Storage:
    (tmp_path / "root").mkdir()
    storage = open_storage(str(tmp_path / "root"))
    commit(storage, tmp_path / "host", 0, old_rows("gone"), plain_rows("a"))
    commit(storage, tmp_path / "host", 1, old_rows(*KEYS), plain_rows("a", "b"))
    return storage


def all_files(storage: Storage) -> dict[str, bytes]:
    """Every file but those of maintenance."""
    kept = ("state/", "commits/", "offsets/", "_statekeeper/binding.json", names.SCHEMAS)
    return {entry.path: storage.read(entry.path) for entry in storage.list("") if entry.path.startswith(kept)}


def test_the_rows_have_the_new_columns_and_the_job_continues_with_them(root: Storage, tmp_path: Path) -> None:
    before = rows_of(root, 1, tmp_path)
    heads = [path for path in all_files(root) if path.startswith("state/1/")]
    evolve(root, goal(), tmp_path)
    clean(root, tmp_path)
    expected = by_key(pa.concat_tables([new_rows(old_rows(*KEYS)), new_rows(old_rows("gone"))]))
    assert rows_of(root, 0, tmp_path) == expected
    assert rows_of(root, 1, tmp_path) == before
    assert [path for path in all_files(root) if path.startswith("state/1/")] == heads
    # The batch before has the old columns.
    assert rows_of(root, 0, tmp_path, 0) == by_key(old_rows("gone"))
    schema = names.state_schema(0)
    wanted = declared(NEW, PLAIN).stores
    assert operators.parse_schema(root.read(schema), schema) == (wanted[0].key_json, wanted[0].value_json)
    added = new_rows(old_rows("key 0", "new"))
    commit(root, tmp_path / "host", 2, added, plain_rows("c"))
    assert rows_of(root, 0, tmp_path) == by_key(
        pa.concat_tables([new_rows(old_rows("gone")), new_rows(old_rows(*KEYS)).slice(1), added])
    )
    clean(root, tmp_path)


def test_a_job_with_the_old_columns_is_rejected_with_the_name_of_the_verb(root: Storage, tmp_path: Path) -> None:
    with pytest.raises(
        SchemaMismatch, match="declares currency: string not null, which the root does not have"
    ) as early:
        opened(root, declared(NEW, PLAIN), 2)
    assert "statekeeper evolve ROOT --schema" in str(early.value.hint)
    running = opened(root, declared(OLD, PLAIN), 2)
    evolve(root, goal(), tmp_path)
    with pytest.raises(
        SchemaMismatch, match="the columns that the root had before batch 1, which changed them"
    ) as late:
        opened(root, declared(OLD, PLAIN), 2)
    assert "statekeeper evolve ROOT --schema" in str(late.value.hint)
    with pytest.raises(BatchConflict, match="`statekeeper evolve` changed the columns"):
        running.begin(2, outer(2))
    assert isinstance(opened(root, declared(NEW, PLAIN), 2), StateRoot)


def test_a_job_that_still_declares_a_dropped_column_does_not_add_it_again(root: Storage, tmp_path: Path) -> None:
    evolve(root, goal(counts={"drop": ["note"]}), tmp_path)
    with pytest.raises(SchemaMismatch, match="the columns that the root had before batch 1, which changed them"):
        opened(root, declared(OLD, PLAIN), 2)


def test_an_undo_restores_every_file_until_the_next_batch(root: Storage, tmp_path: Path) -> None:
    before = all_files(root)
    run = evolve(root, goal(), tmp_path)
    undo(root, run)
    assert all_files(root) == before
    first = evolve(root, goal(), tmp_path)
    between = rows_of(root, 0, tmp_path)
    second = evolve(root, goal(counts={"rename": {"amount": "sum"}}), tmp_path)
    assert [row["sum"] for row in rows_of(root, 0, tmp_path)] == [row["amount"] for row in between]
    with pytest.raises(RefusedAsUnsafe, match="is not the newest rewrite"):
        undo(root, first)
    undo(root, second)
    assert rows_of(root, 0, tmp_path) == between
    clean(root, tmp_path)
    run = evolve(root, goal(sums={"widen": {"sum": "decimal(20,0)"}}), tmp_path)
    wide = pa.schema([("key", pa.string()), ("sum", pa.decimal128(20, 0))])
    commit(root, tmp_path / "host", 2, new_rows(old_rows("x")), plain_rows("c").cast(wide))
    with pytest.raises(RefusedAsUnsafe, match="the query has committed since"):
        undo(root, run)


def test_a_rewind_before_the_evolution_restores_the_old_columns(root: Storage, tmp_path: Path) -> None:
    evolve(root, goal(), tmp_path)
    commit(root, tmp_path / "host", 2, new_rows(old_rows("x")), plain_rows("c"))
    rewound(root, 0, tmp_path, keep_query_id=True)
    assert rows_of(root, 0, tmp_path) == by_key(old_rows("gone"))
    assert read_binding(root)[0].stores == declared(OLD, PLAIN).stores
    commit(root, tmp_path / "host", 1, old_rows("y"), plain_rows("c"))
    clean(root, tmp_path)


WRONG: list[tuple[dict[str, object], str]] = [
    ({"drop": ["nothing"]}, "drop names the unknown column nothing"),
    ({"drop": ["key"]}, "names the key column key, but key columns cannot change"),
    ({"rename": {"key": "k"}}, "names the key column key, but key columns cannot change"),
    ({"widen": {"count": "float"}}, "which float does not widen without loss"),
    ({"widen": {"count": "short"}}, "which short does not widen without loss"),
    ({"widen": {"count": "decimal(9,0)"}}, "does not widen without loss"),
    ({"widen": {"count": "no type"}}, "'no type' is not a type that state can have"),
    ({"widen": {"total": {"nullable": False}}}, "may contain nulls"),
    ({"rename": {"total": "note"}}, "two value columns would have the name note"),
    ({"rename": {"total": "key"}}, "name of the key column key"),
    ({"add": {"note": {"type": "string"}}}, "two value columns would have the name note"),
    ({"add": {"x": {"type": "long", "default": "5"}}}, "is not a value of the type long"),
    ({"add": {"x": {"type": "byte", "default": 300}}}, "does not fit the type byte"),
    ({"add": {"x": {"type": "boolean", "default": 1}}}, "is not a value of the type boolean"),
    ({"add": {"x": {"type": "date", "default": "soon"}}}, "'soon' is not a value of column x"),
    ({"add": {"x": {"type": "long", "nullable": False}}}, "is not null, but has no default"),
    ({"add": {"x": {"type": "long", "size": 1}}}, "unknown entry size"),
    ({"add": {"x": {}}}, "has no type"),
    ({"drop": ["note"], "rename": {"note": "n"}}, "is dropped and also changed"),
    ({"drop": ["count", "total", "note"]}, "no value column remains"),
    ({"rename": {"count": "count"}}, "the changes give the present columns"),
    ({"delete": ["note"]}, "unknown entry delete"),
    ({}, "has no change of a column"),
]


def test_a_wrong_change_is_a_typed_error_and_nothing_is_written(root: Storage, tmp_path: Path) -> None:
    before = {entry.path for entry in root.list("")}
    for changes, problem in WRONG:
        with pytest.raises(SchemaMismatch, match=re.escape(problem)):
            planned(root, goal(counts=changes), tmp_path)
    file = tmp_path / "changes.json"
    file.write_text(json.dumps({"stores": {"counts": {"drop": ["nothing"]}}}))
    code = SchemaMismatch.exit_code
    told = statekeeper("evolve", str(tmp_path / "root"), "--schema", str(file), *APPLY, exit_code=code)
    assert "drop names the unknown column nothing" in " ".join(told.split())
    assert {entry.path for entry in root.list("")} == before


def test_an_unknown_store_and_an_unreadable_file_are_typed_errors(root: Storage, tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="no store default; it has: counts, sums"):
        planned(root, goal(default={"drop": ["note"]}), tmp_path)
    (tmp_path / "bad.toml").write_text("[stores")
    for name in ("bad.toml", "missing.toml"):
        file = str(tmp_path / name)
        told = statekeeper("evolve", str(tmp_path / "root"), "--schema", file, exit_code=SchemaMismatch.exit_code)
        assert "cannot be read as a schema file" in " ".join(told.split())


def test_a_root_that_cannot_be_evolved_is_refused_with_its_reason(root: Storage, tmp_path: Path) -> None:
    opened(root, declared(OLD, PLAIN), 2).begin(2, outer(2))
    (begun,) = planned(root, goal(), tmp_path).refusals
    assert "batch 2 is started but not committed" in begun
    (tmp_path / "v1").mkdir()
    v1 = KeyedRoot(open_storage(str(tmp_path / "v1")), tmp_path / "job", partitions=2, structure=Structure.V1)
    v1.grow(1)
    (structure,) = planned(v1.storage, goal(), tmp_path).refusals
    assert "statekeeper switch ROOT --to v2" in structure
    native = open_storage(str(unpacked(ARCHIVE, tmp_path / "native")))
    refused = planned(native, goal(), tmp_path).refusals
    assert "Spark itself accepts other names of value columns" in refused[0]


def test_the_command_shows_the_rows_before_and_after_and_then_changes_them(root: Storage, tmp_path: Path) -> None:
    file = tmp_path / "changes.toml"
    file.write_text(
        '[stores.counts]\ndrop = ["note"]\nrename = { total = "amount" }\nwiden = { count = "bigint", total = "double" }\n'
        '[stores.counts.add.currency]\ntype = "string"\nnullable = false\ndefault = "EUR"\n'
    )
    command = ("evolve", str(tmp_path / "root"), "--schema", str(file))
    before = all_files(root)
    plan = json.loads(statekeeper(*command, "--output", "json"))
    assert sum(plan["rows"].values()) == len(KEYS) + 1
    assert len(plan["first"]) == 20
    first = next(row for row in plan["first"] if row["key"]["key"] == "gone" or row["before"]["total"] is not None)
    assert list(first["before"]) == OLD.names
    assert list(first["after"]) == NEW.names
    assert first["after"]["currency"] == "EUR"
    text = " ".join(statekeeper(*command).split())
    assert "columns afterwards: count: long not null, amount: double, currency: string not null" in text
    assert all_files(root) == before
    told = statekeeper(*command, *APPLY)
    expected = pa.concat_tables([new_rows(old_rows(*KEYS)), new_rows(old_rows("gone"))])
    assert rows_of(root, 0, tmp_path) == by_key(expected)
    run = told.split("--undo ")[1].split()[0]
    statekeeper("evolve", str(tmp_path / "root"), "--undo", run, "--confirm-stopped")
    assert all_files(root) == before
