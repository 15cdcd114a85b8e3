"""Unit tests of operators without Spark: results, state and errors are those of a query's tasks."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from statekeeper.pipelines.operator.declaration import Frames, Pieces, StatefulOperator, Update
from statekeeper.pipelines.testing.harness import OperatorHarness
from statekeeper.statestore.base.errors import (
    HotKey,
    SchemaMismatch,
    StatekeeperError,
    UnsupportedEnvironment,
    UnsupportedType,
    UnusableFunction,
    WrongInitial,
    WrongResult,
)
from tests.support.adding_operator import OUTPUT, ROWS, STATE, add_up, adding

DICTS = [{"key": 2, "at": 0, "value": 5}, {"key": 1, "at": 1, "value": 3}, {"key": None, "at": 2, "value": 1}]


@pytest.fixture
def harness() -> Iterator[OperatorHarness]:
    with OperatorHarness(adding(), columns=ROWS, partitions=3) as harness:
        yield harness


def total(result: Any) -> dict[int | None, int]:
    return {row["key"]: row["total"] for row in result.state.to_pylist()}


def test_the_state_is_kept_over_batches(harness: OperatorHarness) -> None:
    first = harness.batch(DICTS)
    second = harness.batch([{"key": 1, "at": 3, "value": 7}])
    assert (first.batch.number, second.batch.number) == (0, 1)
    assert second.output.to_pylist() == [{"key": 1, "count": 2, "total": 10}]
    assert second.output.schema == OUTPUT
    assert list(total(second).items()) == [(None, 1), (1, 10), (2, 5)]
    assert total(first)[1] == 3, "a result does not change later"


@pytest.mark.parametrize("given", [DICTS, pd.DataFrame(DICTS).astype("Int64"), pa.Table.from_pylist(DICTS)], ids=type)
def test_rows_are_dicts_a_frame_or_a_table(given: Any) -> None:
    with OperatorHarness(adding()) as harness:
        assert total(harness.batch(given)) == {None: 1, 1: 3, 2: 5}


def test_a_batch_can_have_no_rows(harness: OperatorHarness) -> None:
    assert harness.batch([]).output.num_rows == 0
    assert total(harness.batch(DICTS)) == total(harness.batch(ROWS.empty_table()))


def test_a_failed_batch_changes_nothing_and_can_run_again() -> None:
    fails = [True]

    def update(rows: pa.Table, state: pa.Table) -> Update:
        if fails and rows.num_rows == 2:
            raise ZeroDivisionError(fails.pop())
        return add_up(rows, state)

    with OperatorHarness(adding(update), columns=ROWS) as harness:
        harness.batch([{"key": 1, "at": 0, "value": 1}])
        rows = [{"key": 1, "at": 1, "value": 2}, {"key": 2, "at": 1, "value": 3}]
        with pytest.raises(ZeroDivisionError):
            harness.batch(rows)
        result = harness.batch(rows)
        assert (result.batch.number, total(result)) == (1, {1: 3, 2: 3})


def test_named_stores_are_a_mapping_of_tables_and_keys_are_deleted() -> None:
    def update(rows: pa.Table, state: Any) -> Update:
        keys = rows.select(["key"]).group_by("key").aggregate([])
        seen = keys.append_column("seen", pa.array([True] * keys.num_rows))
        has_state = state["first"].num_rows > 0
        return Update(
            seen,
            state={"second": seen} if has_state else {"first": seen},
            deleted={"first": keys} if has_state else None,
        )

    seen = pa.schema([("seen", pa.bool_())])
    operator = adding(update, state={"first": seen, "second": seen}, output=pa.schema([("key", pa.int64()), *seen]))
    with OperatorHarness(operator, columns=ROWS) as harness:
        first = harness.batch(DICTS)
        assert {name: table.num_rows for name, table in first.state.items()} == {"first": 3, "second": 0}
        second = harness.batch(DICTS[:1])
        assert second.state["second"].to_pylist() == [{"key": 2, "seen": True}]
        assert second.state["first"]["key"].to_pylist() == [None, 1]
    with OperatorHarness(operator, columns=ROWS, initial={"first": [{"key": 2, "seen": True}]}) as harness:
        assert harness.batch(DICTS[:1]).state["second"]["key"].to_pylist() == [2]


def test_a_test_can_start_from_a_state(harness: OperatorHarness) -> None:
    state = harness.batch(DICTS[:2]).state
    rows = [{"key": 1, "at": 3, "value": 7}, {"key": 9, "at": 3, "value": 1}]
    for initial in (state, state.to_pylist()):
        with OperatorHarness(adding(), columns=ROWS, initial=initial, partitions=2) as continued:
            assert total(continued.batch(rows)) == {1: 10, 2: 5, 9: 1}
            assert continued.batch().state.equals(harness.batch(rows if initial is state else []).state)


def test_wrong_initial_rows_are_rejected() -> None:
    row = {"key": 1, "count": 1, "total": 1}
    for initial, error, problem in (
        ([row, row], WrongInitial, r"contain two rows of one key: \{'key': 1\};"),
        (
            [{**row, "key": key} for key in (*range(9), 3, 3, 5, 7, 8)],
            WrongInitial,
            r"of one key: (\{'key': [3578]\}(, |;)){3}",
        ),
        ([{**row, "key": None}], WrongInitial, "key column 'key' contains nulls"),
        ([{**row, "count": "1"}], SchemaMismatch, "column count of the rows cannot be int64"),
        (pa.table({"key": [1]}), SchemaMismatch, "the rows lack the columns"),
    ):
        with OperatorHarness(adding(), initial=initial) as harness, pytest.raises(error, match=problem):
            harness.batch(DICTS)
    several = adding(state={"first": STATE, "second": STATE})
    with pytest.raises(SchemaMismatch, match="initial is not a dict of the stores"):
        OperatorHarness(several, initial=[row])


def test_the_function_gets_rows_in_the_order_of_spark() -> None:
    calls: list[list[dict[str, Any]]] = []

    def update(rows: pa.Table, state: pa.Table) -> Update:
        del state
        calls.append(rows.to_pylist())
        return Update(rows.select(["key"]))

    columns = pa.schema([("key", pa.string()), ("real", pa.float64()), ("list", pa.list_(pa.int64()))])
    operator = StatefulOperator(
        ["key"], ["real", "list"], state=STATE, output=pa.schema([("key", pa.string())]), update=update
    )
    order = [
        (None, None),
        (-math.inf, None),
        (-0.0, []),
        (0.0, [None]),
        (0.0, [1]),
        (math.inf, [1]),
        (math.nan, [0]),
        (math.nan, [1, 0]),
    ]
    rows = [
        {"key": key, "real": real, "list": items} for key in ("\uffff", "😀", None) for real, items in reversed(order)
    ]
    with OperatorHarness(operator, columns=columns, key_groups=1) as harness:
        harness.batch(rows)
    [call] = calls
    assert [row["key"] for row in call] == [None] * 8 + ["\uffff"] * 8 + ["😀"] * 8
    assert repr([(row["real"], row["list"]) for row in call]) == repr(order * 3)


def test_the_function_gets_pandas_frames_and_pieces() -> None:
    calls: list[int] = []

    def update(rows: Any, state: Any) -> Update:
        calls.append(len(rows))
        return Update(pd.concat([rows.assign(count=1, total=rows["value"]), state])[["key", "count", "total"]])

    with OperatorHarness(adding(update, frames=Frames.PANDAS, pieces=Pieces(rows=2))) as harness:
        harness.batch(DICTS)
    assert len(calls) > 1
    assert sum(calls) == len(DICTS)


def test_rows_must_fit_the_declared_columns(harness: OperatorHarness) -> None:
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    good = {"key": 1, "at": moment, "value": 2}
    columns = pa.schema(
        [("key", pa.int8()), ("at", pa.timestamp("us", tz="UTC")), pa.field("value", pa.int64(), nullable=False)]
    )
    with OperatorHarness(adding(lambda rows, state: Update(OUTPUT.empty_table())), columns=columns) as declared:
        declared.batch([good])
        for change, problem in (
            ({"key": 300}, "column key of the rows cannot be int8"),
            ({"value": 2.5}, "column value of the rows cannot be int64"),
            ({"value": True}, "column value of the rows cannot be int64"),
            ({"at": dt.date(2026, 1, 1)}, "column at of the rows cannot be timestamp"),
            ({"value": None}, "column value of the rows contains nulls"),
            ({"note": ""}, r"the rows have other columns \['note'\]"),
        ):
            with pytest.raises(SchemaMismatch, match=problem):
                declared.batch([good | change])
    with pytest.raises(SchemaMismatch, match=r"the rows lack the columns \['at'\]"):
        harness.batch(ROWS.empty_table().drop_columns(["at"]))
    with pytest.raises(SchemaMismatch, match="column value of the rows is string, but that of the stream is int64"):
        harness.batch(pa.table({"key": [1], "at": [1], "value": ["2"]}))
    with pytest.raises(SchemaMismatch, match="the rows have the type int"):
        harness.batch(1)


@pytest.mark.parametrize(
    ("rows", "error", "problem"),
    [
        ([], SchemaMismatch, "the columns of the stream are unknown"),
        ([{"key": 1, "at": None, "value": 2}], UnsupportedType, "column at has only nulls"),
        ([{"key": 1, "at": 1, "value": 2}, {"key": "a"}], SchemaMismatch, "column key has values of different types"),
        (pa.table({"key": [1], "at": pa.array([1], pa.uint8())}), UnsupportedType, "column at has the type uint8"),
        ([{"key": 1, "value": 2}], SchemaMismatch, r"the stream has no columns \['at'\]"),
    ],
)
def test_a_first_batch_must_have_columns_that_spark_supports(
    rows: Any, error: type[StatekeeperError], problem: str
) -> None:
    with OperatorHarness(adding()) as harness, pytest.raises(error, match=problem):
        harness.batch(rows)


def test_results_are_checked_as_in_a_query() -> None:
    wrong, small = adding(lambda rows, state: Update(rows)), adding(pieces=Pieces(hot_key_rows=1))
    with OperatorHarness(wrong) as harness, pytest.raises(WrongResult, match="the output lacks the columns"):
        harness.batch(DICTS)
    with OperatorHarness(small) as harness, pytest.raises(HotKey, match="a key has more than 1 rows in a batch"):
        harness.batch([*DICTS, *DICTS])


def test_an_operator_that_a_query_cannot_run_is_rejected() -> None:
    with pytest.raises(UnusableFunction):
        OperatorHarness(adding(lambda rows: Update(rows)))
    with pytest.raises(UnsupportedEnvironment):
        OperatorHarness(adding(), partitions=129)
    with pytest.raises(UnsupportedType):
        OperatorHarness(adding(), columns=pa.schema([("key", pa.map_(pa.string(), pa.string())), ("at", pa.int64())]))


def test_closing_deletes_all_files_of_many_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    harness = OperatorHarness(adding(), columns=ROWS)
    for number in range(40):
        result = harness.batch([{"key": number % 3, "at": number, "value": 1}])
    assert total(result) == {0: 14, 1: 13, 2: 13}
    assert len(list(tmp_path.glob("*/local/*/*/0-0"))) == 1
    harness.close()
    assert list(tmp_path.iterdir()) == []
