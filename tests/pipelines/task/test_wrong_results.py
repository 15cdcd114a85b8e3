"""A result of an update function has the declared form, or is rejected with a typed error and not committed.

The tasks run here without Spark, in this process; test_operator.py shows the errors that reach the user through Spark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from statekeeper.pipelines.batch.spark import named
from statekeeper.pipelines.operator.declaration import Frames, Update
from statekeeper.statestore.base.errors import LineageCeiling, UnusableFunction, WrongResult
from statekeeper.statestore.store.state_store import StoreLimits
from tests.support.partition_task import NEW, OUT, STATE, Task


@pytest.fixture
def task(tmp_path):
    return Task(tmp_path)


def changed(table: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, [values])
    return table


TWICE_NAMED = pa.Table.from_arrays([*OUT.columns, OUT.column(0)], names=["key", "label", "key"])
STRANGER = changed(NEW, key=pa.array([1, 2, 3]))
RIGHT_KEYS = NEW.select(["key", "name"])

GARBAGE = {
    "nothing": (None, "the update function returned NoneType .*return an Update"),
    "a table": (OUT, "the update function returned Table .*return an Update"),
    "no output": (Update(None, NEW), "the output does not match its schema"),
    "a number for a table": (Update(OUT, 7), "state of store 'default' does not match its schema"),
    "output without a column": (Update(OUT.drop_columns(["label"]), NEW), r"the output lacks the columns \['label'\]"),
    "a column twice": (Update(TWICE_NAMED, NEW), "the output does not match its schema: .*exists 2 times"),
    "numbers for texts": (
        Update(changed(OUT, label=pa.array([1, 2])), NEW),
        "the output: column 'label' is int64, not string.*return the declared columns: key: int64, label: string",
    ),
    "texts for numbers": (Update(OUT, changed(NEW, total=["1", "2", "3"])), "column 'total' is string, not int32"),
    "a list for a number": (Update(OUT, changed(NEW, total=[[1], [2], [3]])), "column 'total' is list<.*>, not int32"),
    "numbers of other lists": (
        Update(OUT, changed(NEW, tags=[[[1]], [], []])),
        r"column 'tags' is list<item: list<item: int64>>, not list<element: string not null>: row 0 holds \[\[1\]\]",
    ),
    "a number too large": (
        Update(OUT, changed(NEW, total=pa.array([2**40, 1, 1]))),
        "column 'total' is int64, not int32: row 0 holds 1099511627776, which does not fit",
    ),
    "a fraction for a whole": (Update(OUT, changed(NEW, total=[0.5, 1.0, 1.0])), "0.500000 was truncated"),
    "nulls in the output": (
        Update(changed(OUT, label=["one", None]), NEW),
        "the output: column 'label' contains nulls",
    ),
    "nulls in the state": (
        Update(OUT, changed(NEW, total=pa.array([1, None, 3], pa.int32()))),
        "state of store 'default': column 'total' contains nulls, but is declared without nulls",
    ),
    "nulls in a list of the state": (
        Update(OUT, changed(NEW, tags=pa.array([["x"], [None], None], pa.list_(pa.string())))),
        "state of store 'default': column 'tags.element' contains nulls, but is declared without nulls",
    ),
    "a key that no row has": (
        Update(OUT, STRANGER),
        r"store 'default': the function returned state of a key that is not in the rows: \{'key': 3, 'name': None\}",
    ),
    "a key put together from two": (
        Update(OUT, changed(NEW, name=["b", "a", None])),
        "a key that is not in the rows",
    ),
    "a key twice": (
        Update(OUT, pa.concat_tables([NEW, NEW.slice(1, 1)])),
        "the function returned one key twice",
    ),
    "a null key twice": (
        Update(OUT, pa.concat_tables([NEW, NEW.slice(2, 1)])),
        "the function returned one key twice",
    ),
    "a deleted key twice": (
        Update(OUT, None, pa.concat_tables([RIGHT_KEYS, RIGHT_KEYS])),
        "the function returned one key twice",
    ),
    "a deleted stranger": (Update(OUT, None, STRANGER), "a key that is not in the rows"),
    "a key kept and deleted": (
        Update(OUT, NEW, RIGHT_KEYS.slice(2, 1)),
        "the function returned new state of a key and deleted the same key",
    ),
    "state without keys": (Update(OUT, NEW.drop_columns(["name"])), r"state of store 'default' lacks .*\['name'\]"),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_an_invalid_result_of_an_update_function_is_rejected_and_not_committed(task, what):
    task.returned, said = GARBAGE[what]
    with pytest.raises(WrongResult, match=said) as refused:
        task.run()
    assert "\n" not in str(refused.value), "a line in a log"
    assert task.nothing_was_committed()
    assert task.no_file_is_left_over()


MISSPELT = {
    "a column of the state": lambda rows, state: state["totl"],
    "a column of the state in an expression": lambda rows, state: state.filter(pc.field("totl") > 1),
    "a column to sort by": lambda rows, state: state.sort_by("totl"),
    "a column of pandas": lambda rows, state: state.to_pandas()["totl"],
    "columns of pandas": lambda rows, state: state.to_pandas()[["totl"]],
    "an attribute of pandas": lambda rows, state: state.to_pandas().totl,
}


@pytest.mark.parametrize("read", MISSPELT.values(), ids=list(MISSPELT))
def test_a_misspelt_column_names_the_column_that_was_meant_and_the_line(task, read):
    def update(rows, state):
        read(rows, state)
        return Update(OUT, NEW)

    task._update = update
    with pytest.raises(UnusableFunction, match="reads column 'totl'") as refused:
        task.run()
    assert "test_wrong_results.py, line " in str(refused.value)
    assert "did you mean 'total'?" in str(refused.value)
    assert task.nothing_was_committed()


@pytest.mark.parametrize("read", [lambda: {}["totl"], lambda: OUT["total"], lambda: OUT.nothing])
def test_another_error_of_the_function_stays_as_it_is(task, read):
    def update(rows, state):
        return read()

    task._update = update
    with pytest.raises((KeyError, AttributeError)):
        task.run()


def test_declared_results_are_accepted_and_stored_for_the_next_batch(task):
    assert [row["label"] for row in task.run()] == ["one", "two"]
    task.returned = Update(OUT.slice(0, 0))
    assert task.run() == []
    assert task.state.to_pylist() == NEW.to_pylist()


INNER = pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.int32())])
NESTED = [
    (INNER, [None, {"a": 1, "b": None}], [{"a": 1}, {"a": None, "b": 2}], "deep.a"),
    (pa.list_(pa.field("element", INNER)), [[None], None], [[{"a": None}], []], "deep.element.a"),
    (
        pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)),
        [[("k", 1)], None],
        [[("k", None)], []],
        "deep.value",
    ),
]


@pytest.mark.parametrize(("kind", "right", "wrong", "place"), NESTED, ids=["struct", "list", "map"])
def test_nulls_are_found_at_any_depth_of_the_output(tmp_path, kind, right, wrong, place):
    schema = pa.schema([("deep", kind)])
    task = Task(tmp_path, output=schema)
    task.returned = Update(pa.table({"deep": pa.array(right, kind)}))
    assert [row["deep"] for row in task.run()] == right
    task.returned = Update(pa.table({"deep": pa.array(wrong, kind)}))
    with pytest.raises(
        WrongResult, match=f"the output: column '{place}' contains nulls, but is declared without nulls"
    ):
        task.run()


def test_narrow_numbers_dictionaries_and_null_columns_are_cast_to_the_declared_types(task):
    labels = pa.array(["one", "one"]).dictionary_encode()
    state = changed(NEW, total=pa.array([1, 2, 3], pa.int8()), tags=pa.nulls(3), key=pa.array([1.0, 2.0, None]))
    task.returned = Update(changed(OUT, label=labels), state.select(["tags", "total", "name", "key"]))
    assert [row["label"] for row in task.run()] == ["one", "one"]
    task.run()
    assert task.state.column("total").to_pylist() == [1, 2, 3]


@pytest.mark.parametrize(
    "state",
    [NEW.to_pandas().assign(total=["a", "b", "c"]), NEW.to_pandas().assign(total=[1, "b", None]), {"total": [1]}],
    ids=["texts", "a mixture", "a dict"],
)
def test_invalid_pandas_results_are_rejected(tmp_path, state):
    task = Task(tmp_path, frames=Frames.PANDAS)
    task.returned = Update(OUT.to_pandas(), state)
    with pytest.raises(WrongResult, match="state of store 'default'"):
        task.run()
    assert task.nothing_was_committed()


def test_pandas_frames_with_missing_values_keep_them_missing(tmp_path):
    task = Task(tmp_path, frames=Frames.PANDAS)
    state = pd.DataFrame({"key": [1.0, np.nan], "name": ["a", None], "total": [1.0, 2.0], "tags": [["x"], None]})
    task.returned = Update(OUT.to_pandas(), state)
    task.run()
    task.returned = Update(OUT.to_pandas())
    task.run()
    assert pa.Table.from_pandas(task.state, preserve_index=False).column("key").to_pylist() == [1, None]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"first": NEW, "third": NEW}, "returned state of stores that are not declared: third -> .*: first, second"),
        (NEW, "state is a Table .*several stores must return a dict"),
        (
            {"first": NEW, "second": STRANGER},
            "store 'second': the function returned state of a key that is not in the rows",
        ),
    ],
)
def test_with_several_stores_none_is_committed_when_one_result_is_wrong(tmp_path, state, said):
    task = Task(tmp_path, state={"first": STATE, "second": STATE})
    task.returned = Update(OUT, state)
    with pytest.raises(WrongResult, match=said):
        task.run()
    assert task.nothing_was_committed()
    assert task.no_file_is_left_over()


def test_a_user_error_is_raised_unchanged(task):
    class Broken:
        @property
        def output(self) -> Any:
            raise LookupError("no tariff for zone 7")

    task.returned = Broken()
    with pytest.raises(WrongResult, match="returned Broken"):
        task.run()

    def fails(rows: Any, state: Any) -> Any:
        raise LookupError("no tariff for zone 7")

    task._update = fails
    with pytest.raises(LookupError, match="no tariff for zone 7"):
        task.run()
    assert task.nothing_was_committed()
    assert task.no_file_is_left_over()


def test_a_typed_error_survives_sparks_traceback(task):
    task.returned, _ = GARBAGE["numbers for texts"]
    with pytest.raises(WrongResult) as refused:
        task.run()
    name = f"{WrongResult.__module__}.{WrongResult.__qualname__}"
    text = f"Traceback\n  File x\n{name}: {refused.value}\n\tat java.lang.Thread.run"
    found = named(RuntimeError(text))
    assert isinstance(found, WrongResult)
    assert "return the declared columns: key: int64, label: string" in str(found)


def test_a_version_beyond_the_lineage_ceiling_is_rejected_at_load(task):
    task.run()
    task.limits = StoreLimits(lineage_bytes=50)
    with pytest.raises(LineageCeiling, match="1 versions since the newest snapshot"):
        task.run()
    assert len(task.reports.all) == 1
