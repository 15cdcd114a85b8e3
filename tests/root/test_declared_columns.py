"""The changes of columns that a job declares, and the file that records them, also with hostile bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from statekeeper.statestore.base.errors import CorruptFile, SchemaMismatch
from statekeeper.statestore.format import names, operators
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.root import columns as later_schemas
from statekeeper.statestore.root.columns import ColumnChange, ColumnMapping, StoreSchema, change_of
from statekeeper.statestore.storage import Storage
from tests.support.roots import GROWN, KEYS, VALUES, World, fresh_ids, opened, outer, store, wanted

OLD = pa.schema([("a", pa.int32()), pa.field("b", pa.date32(), nullable=False)])
ROWS = pa.table({"a": [1, None], "b": [0, 1]}, schema=pa.schema([("a", pa.int32()), ("b", pa.int32())]))


def changed(new: pa.Schema, **mapping: object) -> list[dict[str, object]]:
    """The rows of `ROWS` with the new columns."""
    values = pa.table([ROWS["a"], ROWS["b"].cast(pa.date32())], schema=OLD)
    change = change_of("default", spark_schema_json(OLD), spark_schema_json(new), ColumnMapping(**mapping), "root")
    assert change is not None
    return [dict(row) for row in change.columns.table(values).to_pylist()]


def test_equal_columns_are_no_change() -> None:
    assert change_of("default", *[spark_schema_json(OLD)] * 2, ColumnMapping(renamed={"x": "a"}), "root") is None


def test_rows_get_columns_in_the_declared_places_with_other_names_and_wider_types() -> None:
    new = pa.schema([("x", pa.string()), ("n", pa.float64()), ("y", pa.string()), ("b", pa.timestamp("us"))])
    found = changed(new, renamed={"a": "n"}, widened=["n", "b"])
    assert [(row["x"], row["n"], row["y"], str(row["b"])) for row in found] == [
        (None, 1.0, None, "1970-01-01 00:00:00"),
        (None, None, None, "1970-01-02 00:00:00"),
    ]


def test_a_column_can_become_nullable_only_if_the_mapping_names_it() -> None:
    new = pa.schema([OLD.field(0), ("b", pa.date32())])
    assert len(changed(new, widened=["b"])) == 2
    with pytest.raises(SchemaMismatch, match=r"widened=\['b'\]"):
        changed(new)


def test_a_type_that_does_not_hold_all_values_is_rejected_although_the_mapping_names_it() -> None:
    with pytest.raises(
        SchemaMismatch, match=r"can be widened to: long, double, decimal with 10 digits before the point"
    ):
        changed(pa.schema([("a", pa.int16()), OLD.field(1)]), widened=["a"])


def test_a_renamed_column_that_the_root_has_under_neither_name_is_rejected() -> None:
    with pytest.raises(SchemaMismatch, match=r"the job renames x to c, but the root has neither column.*are: a, b"):
        changed(pa.schema([*OLD, ("c", pa.int64())]), renamed={"x": "c"})


def test_roots_before_between_and_after_two_renames_start_with_the_same_code() -> None:
    after = spark_schema_json(pa.schema([("c", pa.int32())]))
    mapping = ColumnMapping(renamed={"a": "b", "b": "c"})
    for name in "abc":
        change = change_of("s", spark_schema_json(pa.schema([(name, pa.int32())])), after, mapping, "root")
        assert (None if change is None else str(change)) == (None if name == "c" else f"store 's': renames {name} to c")


def test_a_column_can_be_renamed_back_although_the_root_had_these_columns_before(storage: Storage) -> None:
    World().run(storage, 0)
    hops = pa.schema([("hops", pa.int64()), VALUES.field(1)])
    for batch, values, renamed in [(1, hops, {"legs": "hops"}), (2, VALUES, {"hops": "legs"})]:
        root = opened(storage, wanted(store(values)), batch, mapping=ColumnMapping(renamed=renamed))
        root.begin(batch, outer(batch))
        root.record_changes(batch)
        root.commit(batch, fresh_ids(root))
        assert root.binding.stores == (store(values),)
    body = json.loads(storage.read(names.later_schema(2)))
    assert body == {"default": store().value_json}


NEW = json.dumps({"value": store(GROWN).value_json, "sources": [0, 1, None]})


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"default": {}}',
        b'{"default": {"value": "{}", "sources": []}}',
        *(
            json.dumps({"default": {"value": store(GROWN).value_json, "sources": sources}}).encode()
            for sources in (
                [0, 1],
                [1, 0, None],
                [0, 0, None],
                [0, -1, None],
                [0, True, None],
                [0, "1", None],
                "012",
                None,
            )
        ),
        NEW.encode(),
    ],
)
def test_a_record_of_columns_with_invalid_bytes_is_rejected_with_a_typed_error(storage: Storage, body: bytes) -> None:
    World().run(storage, 0)
    storage.create(names.later_schema(1), body)
    with pytest.raises(CorruptFile, match=r"schemas/1\.json"):
        opened(storage, wanted(store(GROWN)), batch=1)


def test_a_source_that_the_columns_before_do_not_have_is_rejected_with_a_typed_error(storage: Storage) -> None:
    World().run(storage, 0)
    body = {"default": {"value": store(GROWN).value_json, "sources": [0, 1, 2]}}
    storage.create(names.later_schema(1), json.dumps(body).encode())
    root = opened(storage, wanted(store(GROWN)), batch=1)
    with pytest.raises(CorruptFile, match=r"schemas/1\.json"):
        root.rewrites(1)


def test_columns_added_at_the_end_have_the_file_of_earlier_releases() -> None:
    change = change_of("default", store().value_json, store(GROWN).value_json, ColumnMapping(), "root")
    assert change is not None
    body = later_schemas.encode({"default": change.after, "more": store().value_json}, [change])
    assert json.loads(body) == {"default": store(GROWN).value_json, "more": store().value_json}
    assert later_schemas.parse(body, "schemas/1.json")["default"].change_from("default", change.before) == change


LEGS, MEAN = VALUES
DIFFERENCES = {
    "another type": (
        store(pa.schema([("legs", pa.int32()), MEAN])),
        ": the root has the value column legs: long, but the job declares legs: integer.*can be widened to: decimal",
    ),
    "a wider type": (
        store(pa.schema([("legs", pa.decimal128(20, 0)), MEAN])),
        r": the root has .*legs: long, but .*legs: decimal\(20,0\).*declare ColumnMapping\(widened=\['legs'\]\)",
    ),
    "another name": (
        store(pa.schema([("hops", pa.int64()), MEAN])),
        ": the root has the value column legs: long, which the job does not declare.*add its new name to `column_mapping`",
    ),
    "nullable": (
        store(pa.schema([LEGS, ("mean", pa.float64())])),
        r": the root has .*mean: double not null, but .*mean: double;.*declare ColumnMapping\(widened=\['mean'\]\)",
    ),
    "not nullable": (
        store(pa.schema([LEGS.with_nullable(False), MEAN])),
        ": the root has .*legs: long, but .*legs: long not null;.* -> declare legs as nullable",
    ),
    "one less": (
        store(pa.schema([LEGS])),
        ": the root has the value column mean: double not null, which the job does not declare.*To drop the column, stop",
    ),
    "another order": (
        store(pa.schema([MEAN, LEGS])),
        ": the job declares the value columns of the root in another order; .* -> .*the root: legs, mean\\. New",
    ),
    "added not null": (
        store(VALUES.append(pa.field("worst", pa.float64(), nullable=False))),
        ": the job declares worst: double not null, which the root does not have; .*If it is new, declare it as nullable",
    ),
    "another key": (
        store(keys=pa.schema([("tail", pa.int64())])),
        ", key column 1.*tail: string.*: long.*a new checkpoint",
    ),
    "a key more": (store(keys=KEYS.append(pa.field("leg", pa.int64()))), ", key column 2.*has none.*leg: long"),
}


@pytest.mark.parametrize(("declared", "difference"), DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_a_different_schema_is_rejected_with_the_difference(
    storage: Storage, declared: StoreSchema, difference: str
) -> None:
    World().run(storage, 0)
    before = [entry.path for entry in storage.list("")]
    with pytest.raises(SchemaMismatch, match=f"store 'default'{difference}"):
        opened(storage, wanted(declared), batch=1)
    assert [entry.path for entry in storage.list("")] == before


def test_other_stores_are_rejected(storage: Storage) -> None:
    World().run(storage, 0)
    with pytest.raises(
        SchemaMismatch, match=r"has the stores \['default'\], but the job declares \['default', 'more'\]"
    ):
        opened(storage, wanted(store(), store(name="more")))


def schema_for_spark(storage: Storage) -> str:
    return operators.parse_schema(storage.read(names.state_schema(0)), "schema")[1]


def added_at_the_end() -> ColumnChange:
    return ColumnChange(store="default", before=store().value_json, after=store(GROWN).value_json, sources=(0, 1, None))


def test_an_added_nullable_column_is_recorded_and_in_sparks_schema_once_the_rows_have_it(storage: Storage) -> None:
    World().run(storage, 0)
    root = opened(storage, wanted(store(GROWN)), batch=1)
    root.begin(1, outer(1))
    assert root.binding.stores == (store(),)
    assert root.rewrites(1) == {0: added_at_the_end()}
    assert root.binding.stores == (store(),)
    root.record_changes(1)
    assert root.rewrites(1) == {0: added_at_the_end()}
    assert root.binding.stores == (store(GROWN),)
    assert json.loads(storage.read(names.later_schema(1))) == {"default": store(GROWN).value_json}
    assert schema_for_spark(storage) == store().value_json
    root.commit(1, fresh_ids(root))
    assert schema_for_spark(storage) == store(GROWN).value_json
    later = opened(storage, wanted(store(GROWN)), batch=2)
    later.begin(2, outer(2))
    assert later.rewrites(2) == {}
    with pytest.raises(SchemaMismatch, match=r"had before batch 1, which changed them.* rewind it to batch 0\."):
        opened(storage, wanted(), batch=2)


def test_columns_can_be_added_repeatedly(storage: Storage) -> None:
    values = VALUES
    for batch in range(4):
        root = opened(storage, wanted(store(values)), batch)
        root.begin(batch, outer(batch))
        assert set(root.rewrites(batch)) == ({0} if batch else set())
        root.record_changes(batch)
        root.commit(batch, fresh_ids(root))
        assert schema_for_spark(storage) == store(values).value_json
        values = values.append(pa.field(f"column_{batch}", pa.string()))


def test_a_second_column_before_the_commit_of_the_first_is_rejected_with_a_typed_error(storage: Storage) -> None:
    World().run(storage, 0)
    opened(storage, wanted(store(GROWN)), batch=1).record_changes(1)
    more = opened(storage, wanted(store(GROWN.append(pa.field("best", pa.float64())))), batch=1)
    with pytest.raises(
        SchemaMismatch, match=r"schemas/1\.json: an earlier attempt at batch 1 recorded a new schema.* -> run the batch"
    ):
        more.record_changes(1)
    assert opened(storage, wanted(store(GROWN)), batch=1).rewrites(1) == {0: added_at_the_end()}


@pytest.mark.parametrize("held", [True, False])
def test_a_source_of_ticks_cannot_be_added_or_removed(storage: Storage, held: bool) -> None:
    opened(storage, replace(wanted(), ticks=held))
    with pytest.raises(SchemaMismatch, match=r"by a job with.* `tick`, but the job has .* -> ticks are a source"):
        opened(storage, replace(wanted(), ticks=not held))
    assert opened(storage, replace(wanted(), ticks=held)).binding.ticks is held
