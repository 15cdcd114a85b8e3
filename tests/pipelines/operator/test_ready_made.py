"""The ready-made operators in a harness: what each returns, batch by batch."""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch, Ttl
from statekeeper.pipelines.operators import first_rows, latest_rows, running_aggregates, sessions, windows
from statekeeper.pipelines.operators.partial import result_columns
from statekeeper.pipelines.startup.older_roots import with_separate_timers
from statekeeper.pipelines.testing.harness import OperatorHarness, Result
from statekeeper.statestore.base.errors import SchemaMismatch, WrongInput, WrongResult

COLUMNS = pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", TIMESTAMP)])
AGGREGATES = {"n": ("count", None), "known": ("count", "value"), "total": ("sum", "value"), "top": ("max", "value")}
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def at(minutes: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def rows(*given: tuple[str | None, int | None, float], **spans: float) -> list[dict[str, Any]]:
    """Rows of key, value and minutes. `spans`: columns that begin or end so many minutes after the row."""
    return [
        {"key": key, "value": value, "at": at(minute), **{name: at(minute + more) for name, more in spans.items()}}
        for key, value, minute in given
    ]


def tuples(result: Result) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in result.output.to_pylist()), key=repr)


def test_running_aggregates_ignore_nulls_and_add_the_batches() -> None:
    with OperatorHarness(running_aggregates(COLUMNS, ["key"], AGGREGATES), columns=COLUMNS) as harness:
        first = harness.batch(rows(("a", 2, 0), ("a", None, 0), (None, 5, 0), ("b", None, 0)))
        assert tuples(first) == [("a", 2, 1, 2, 2), ("b", 1, 0, None, None), (None, 1, 1, 5, 5)]
        assert tuples(harness.batch(rows(("a", 10, 0), (None, 1, 0)))) == [("a", 3, 2, 12, 10), (None, 2, 2, 6, 5)]


def test_running_aggregates_begin_again_after_their_ttl() -> None:
    operator = running_aggregates(COLUMNS, ["key"], {"n": ("count", None)}, ttl=Ttl("10m"))
    with OperatorHarness(operator, columns=COLUMNS) as harness:
        assert tuples(harness.batch(rows(("a", 1, 0)), at=at(0))) == [("a", 1)]
        assert tuples(harness.batch(rows(("a", 1, 0)), at=at(9))) == [("a", 2)]
        assert harness.batch(at=at(19)).state.num_rows == 0
        assert tuples(harness.batch(rows(("a", 1, 0)), at=at(20))) == [("a", 1)]


def test_the_latest_row_is_that_with_the_latest_time_and_not_the_last_to_arrive() -> None:
    with OperatorHarness(latest_rows(COLUMNS, ["key"], ["at"]), columns=COLUMNS) as harness:
        assert tuples(harness.batch(rows(("a", 1, 5), ("a", 2, 1), (None, 3, 0)))) == [
            ("a", 1, at(5)),
            (None, 3, at(0)),
        ]
        assert tuples(harness.batch(rows(("a", 9, 4), (None, 4, 1)))) == [(None, 4, at(1))]
        # Of rows with the same time, the last one wins.
        assert tuples(harness.batch(rows(("a", 7, 5)))) == [("a", 7, at(5))]


def test_any_value_in_order_by_is_later_than_null_and_nan_is_the_latest() -> None:
    columns = pa.schema([("key", pa.int64()), ("version", pa.float64()), ("text", pa.string())])

    def row(version: float | None) -> dict[str, Any]:
        return {"key": 1, "version": version, "text": str(version)}

    with OperatorHarness(latest_rows(columns, ["key"], ["version"]), columns=columns) as harness:

        def latest(*versions: float | None) -> list[str]:
            return [found["text"] for found in harness.batch([row(one) for one in versions]).output.to_pylist()]

        assert latest(None) == ["None"]
        assert latest(None, 5.0) == ["5.0"]
        assert latest(None) == []
        assert latest(math.nan, 6.0) == ["nan"]
        assert latest(7.0) == []


@pytest.mark.parametrize("as_sessions", [False, True])
@pytest.mark.parametrize(
    ("kind", "value"), [(pa.decimal128(38, 0), Decimal(6 * 10**37)), (pa.int64(), -(2**62)), (pa.int64(), 2**62)]
)
def test_a_sum_that_its_type_does_not_hold_fails_and_changes_nothing(
    kind: pa.DataType, value: Any, as_sessions: bool
) -> None:
    columns = pa.schema([("key", pa.int64()), ("at", TIMESTAMP), ("paid", kind)])
    aggregates = {"paid": ("sum", "paid")}
    given, spans = columns, {}
    operator = running_aggregates(columns, ["key"], aggregates)
    if as_sessions:
        given = pa.schema([*columns, ("session_start", TIMESTAMP), ("session_end", TIMESTAMP)])
        spans = {"session_start": at(0), "session_end": at(1)}
        operator = sessions(columns, ["key"], "at", aggregates, allowed_lateness="0m")
    row = {"key": 1, "at": at(0), "paid": value, **spans}
    other = {"key": 2, "at": at(0), "paid": value, **spans}
    with OperatorHarness(operator, columns=given) as harness:
        state = harness.batch([row, other]).state
        with pytest.raises(
            WrongResult, match=rf"the sum 'paid' of a key is .*, which does not fit into {re.escape(str(kind))}"
        ):
            harness.batch([row, row])
        assert harness.batch([]).state == state


@pytest.mark.parametrize(
    ("kind", "extreme"),
    [
        (pa.int64(), 2**63 - 1),
        (pa.int64(), -(2**63)),
        (pa.decimal128(38, 2), Decimal("9" * 36 + ".99")),
        (pa.decimal128(38, 2), Decimal("-" + "9" * 36 + ".99")),
    ],
)
def test_the_most_extreme_sum_that_its_type_holds_is_kept(kind: pa.DataType, extreme: Any) -> None:
    columns = pa.schema([("key", pa.int64()), ("paid", kind)])
    with OperatorHarness(running_aggregates(columns, ["key"], {"paid": ("sum", "paid")}), columns=columns) as harness:
        row, none = {"key": 1, "paid": extreme}, {"key": 1, "paid": type(extreme)(0)}
        assert tuples(harness.batch([row, none, none])) == [(1, extreme)]
        assert tuples(harness.batch([none])) == [(1, extreme)]
        past_it = Decimal("0.01") if pa.types.is_decimal(kind) else 1
        with pytest.raises(WrongResult, match="does not fit into"):
            harness.batch([{"key": 1, "paid": past_it if extreme > 0 else -past_it}])


def test_a_sum_of_decimals_has_ten_more_digits_and_nan_is_the_largest_number() -> None:
    columns = pa.schema([("key", pa.int64()), ("paid", pa.decimal128(5, 2)), ("score", pa.float64())])
    aggregates = {"paid": ("sum", "paid"), "best": ("max", "score"), "worst": ("min", "score")}
    operator = running_aggregates(columns, ["key"], aggregates)
    assert result_columns(columns, {"all": ("sum", "paid")}).field("all").type == pa.decimal128(15, 2)
    most = Decimal("999.99")

    def row(key: int, score: float | None) -> dict[str, Any]:
        return {"key": key, "paid": most, "score": score}

    with OperatorHarness(operator, columns=columns) as harness:
        first = harness.batch([row(1, 1.0), row(1, math.nan), row(2, None), row(3, 2.0)])
        assert repr(tuples(first)) == repr([(1, 2 * most, math.nan, 1.0), (2, most, None, None), (3, most, 2.0, 2.0)])
        second = harness.batch([row(1, 5.0), row(2, math.nan), row(3, None)])
        assert repr(tuples(second)) == repr(
            [(1, 3 * most, math.nan, 1.0), (2, 2 * most, math.nan, math.nan), (3, 2 * most, 2.0, 2.0)]
        )


def test_duplicates_are_dropped_until_the_watermark_passes() -> None:
    with OperatorHarness(first_rows(COLUMNS, ["key"], "at", within="10m"), columns=COLUMNS) as harness:
        assert tuples(harness.batch(rows(("a", 2, 5), ("a", 1, 1), ("b", 3, 1)))) == [("a", 1, at(1)), ("b", 3, at(1))]
        assert tuples(harness.batch(rows(("a", 4, 8), ("c", 5, 40)))) == [("c", 5, at(40))]
        later = harness.batch(rows(("a", 6, 35), ("c", 7, 41)))
        # The watermark of the previous batch decides that the row of a is a duplicate.
        assert (tuples(later), later.late.num_rows) == ([], 0)
        assert tuples(harness.batch(rows(("a", 6, 35), ("b", 8, 3)))) == [("a", 6, at(35))]


def test_a_window_is_returned_once_when_the_watermark_passes_its_end() -> None:
    columns = pa.schema([*COLUMNS, ("window_start", TIMESTAMP), ("window_end", TIMESTAMP)])
    operator = windows(COLUMNS, ["key"], "at", {"total": ("sum", "value")}, allowed_lateness="5m")
    window = {"window_start": at(0), "window_end": at(10)}

    def in_first(*given: tuple[str | None, int | None, float]) -> list[dict[str, Any]]:
        return [{**row, **window} for row in rows(*given)]

    with OperatorHarness(operator, columns=columns) as harness:
        assert tuples(harness.batch(in_first(("a", 1, 1), ("a", 2, 9)))) == []
        assert tuples(harness.batch(in_first(("a", 4, 2)))) == []
        harness.batch(rows(("b", 1, 15), window_start=-5, window_end=5))
        closing = harness.batch(in_first(("a", 8, 9)))
        assert (tuples(closing), closing.late.num_rows) == ([("a", at(0), at(10), 15)], 0)
        late = harness.batch(in_first(("a", 16, 9)))
        assert (tuples(late), late.late.num_rows, late.timers.num_rows) == ([], 1, 1)


def test_each_of_many_windows_is_returned_once_although_only_new_ones_get_a_timer() -> None:
    columns = pa.schema([*COLUMNS, ("window_start", TIMESTAMP), ("window_end", TIMESTAMP)])
    operator = windows(COLUMNS, ["key"], "at", {"total": ("sum", "value")}, allowed_lateness="0m")
    random = Random(5)
    expected: Counter[tuple[str, int]] = Counter()
    returned: list[tuple[Any, ...]] = []
    with OperatorHarness(operator, columns=columns, partitions=3) as harness:
        for minute in range(60):
            start = minute - minute % 20
            given = [(str(random.randrange(300)), random.randrange(9), minute + 0.5) for _ in range(200)]
            for key, value, _ in given:
                expected[key, start] += value
            begin = start - (minute + 0.5)
            result = harness.batch(rows(*given, window_start=begin, window_end=begin + 20))
            returned += tuples(result)
            assert result.timers.num_rows == result.state.num_rows
        for _ in range(2):
            returned += tuples(harness.batch(rows(("last", 0, 90), window_start=-10, window_end=10)))
    found = {(key, (start - at(0)).total_seconds() // 60): total for key, start, _, total in returned}
    assert found == expected
    assert len(returned) == len(expected) > 500


def test_windows_close_once_with_more_key_groups_in_a_partition_than_a_byte_counts() -> None:
    columns = pa.schema([*COLUMNS, ("window_start", TIMESTAMP), ("window_end", TIMESTAMP)])
    operator = windows(COLUMNS, ["key"], "at", {"total": ("sum", "value")}, allowed_lateness="0m")
    keys = [str(number) for number in range(300)]
    with OperatorHarness(operator, columns=columns, key_groups=600) as harness:
        # The local copy gets the changes of some batches, and later ones stay in memory.
        for _ in range(20):
            given = rows(*((key, 1, 1) for key in keys), window_start=-1, window_end=9)
            assert tuples(harness.batch(given)) == []
        harness.batch(rows(("later", 0, 90), window_start=-10, window_end=10))
        closed = tuples(harness.batch(rows(("later", 0, 90), window_start=-10, window_end=10)))
    assert sorted(closed) == sorted((key, at(0), at(10), 20) for key in keys)


def test_windows_in_one_sorted_store_do_what_windows_with_separate_timers_do() -> None:
    """Each batch of shuffled and late rows, over more batches than lie between two looks at all windows."""
    columns = pa.schema([*COLUMNS, ("window_start", TIMESTAMP), ("window_end", TIMESTAMP)])
    sorted_store = windows(COLUMNS, ["key"], "at", {"total": ("sum", "value")}, allowed_lateness="7m")
    separate = with_separate_timers(sorted_store, "window_end")
    random = Random(7)
    closed = late = 0
    with (
        OperatorHarness(sorted_store, columns=columns, partitions=2) as one,
        OperatorHarness(separate, columns=columns, partitions=2) as other,
    ):
        for minute in range(0, 210, 3):
            given: list[dict[str, Any]] = []
            for _ in range(random.randrange(12)):
                moment = max(0, minute - random.randrange(25)) + random.random()
                start = (moment // 10) * 10 - moment
                (row,) = rows((random.choice([None, "a", "b", "c"]), random.randrange(9), moment))
                given.append({**row, "window_start": at(moment + start), "window_end": at(moment + start + 10)})
            ours, theirs = one.batch(given), other.batch(given)
            for ours_of, theirs_of in zip(
                (ours.output, ours.state, ours.timers, ours.late),
                (theirs.output, theirs.state, theirs.timers, theirs.late),
                strict=True,
            ):
                assert sorted(map(repr, ours_of.to_pylist())) == sorted(map(repr, theirs_of.to_pylist()))
            closed += ours.output.num_rows
            late += ours.late.num_rows
    assert closed > 50
    assert late > 10


def on_nothing(due: pa.Table, state: pa.Table, batch: Batch) -> Update:
    del due, batch
    return Update(state, state)


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"timer_key": "at"}, "'at' is a key column, late_by='at'"),
        ({"timers": "processing"}, 'timers="event"'),
        ({"accepts_initial": True}, "accepts_initial=False"),
        ({"ttl": Ttl("1h")}, "no TTL"),
    ],
)
def test_a_timer_key_that_does_not_fit_the_operator_is_rejected(changed: dict[str, Any], missing: str) -> None:
    operator = windows(COLUMNS, ["key"], "at", {"total": ("sum", "value")}, allowed_lateness="0m")
    with pytest.raises(SchemaMismatch, match=f"needs: {missing}"):
        replace(operator, **changed)


def test_results_that_a_timer_key_excludes_and_a_row_without_its_time_are_rejected() -> None:
    columns = pa.schema([*COLUMNS, ("window_start", TIMESTAMP), ("window_end", TIMESTAMP)])
    operator = windows(COLUMNS, ["key"], "at", {"total": ("sum", "value")}, allowed_lateness="0m")
    window = {"window_start": at(0), "window_end": at(10)}
    [row] = rows(("a", 1, 1))
    with (
        OperatorHarness(with_timers(operator), columns=columns) as harness,
        pytest.raises(WrongResult, match="returned timers, but the key column 'window_end' has the timer of each key"),
    ):
        harness.batch([{**row, **window}])
    with (
        OperatorHarness(operator, columns=columns) as harness,
        pytest.raises(WrongInput, match="'window_end' has the time of the timer of each key, but it is null"),
    ):
        harness.batch([{**row, "window_start": at(0), "window_end": None}])
    with OperatorHarness(replace(operator, on_timer=on_nothing), columns=columns) as harness:
        harness.batch([{**row, **window}])
        harness.batch([{**rows(("b", 1, 30))[0], "window_start": at(30), "window_end": at(40)}])
        with pytest.raises(WrongResult, match="`on_timer` returned state of 1 keys"):
            harness.batch()
    for returned, message in (
        (None, "returned NoneType"),
        (Update(operator.output.empty_table(), deleted=pa.table({"key": ["a"]})), "deletions of 1 keys"),
    ):
        wrong = replace(operator, on_timer=lambda due, state, batch, returned=returned: returned)
        with OperatorHarness(wrong, columns=columns) as harness:
            harness.batch([{**row, **window}])
            harness.batch([{**rows(("b", 1, 30))[0], "window_start": at(30), "window_end": at(40)}])
            with pytest.raises(WrongResult, match=message):
                harness.batch()


def with_timers(operator: StatefulOperator) -> StatefulOperator:
    def update(given: pa.Table, state: pa.Table) -> Update:
        result = operator.update(given, state)
        return replace(
            result, timers=result.state.select(operator.keys).append_column("at", result.state["window_end"])
        )

    return replace(operator, update=update)


@pytest.mark.parametrize("ready_made", [windows, sessions])
def test_initial_rows_that_no_timer_would_end_are_rejected(ready_made: Any) -> None:
    operator = ready_made(COLUMNS, ["key"], "at", {"total": ("sum", "value")}, allowed_lateness="0m")
    with pytest.raises(SchemaMismatch, match="only a timer ends its windows or sessions"):
        OperatorHarness(operator, initial=pa.table({"key": ["a"]}))


def test_sessions_of_a_key_merge_and_are_returned_one_by_one() -> None:
    columns = pa.schema([*COLUMNS, ("session_start", TIMESTAMP), ("session_end", TIMESTAMP)])
    operator = sessions(COLUMNS, ["key"], "at", {"total": ("sum", "value")}, allowed_lateness="10m")

    def given(*of: tuple[str | None, int | None, float]) -> list[dict[str, Any]]:
        return rows(*of, session_start=0, session_end=5)

    with OperatorHarness(operator, columns=columns) as harness:
        assert tuples(harness.batch(given(("a", 1, 0), ("a", 2, 9), ("a", 4, 20), (None, 1, 3)))) == []
        # A row between two sessions joins them.
        assert tuples(harness.batch(given(("a", 8, 4), ("b", 1, 45)))) == [(None, at(3), at(8), 1)]
        assert tuples(harness.batch()) == [("a", at(0), at(14), 11), ("a", at(20), at(25), 4)]
        result = harness.batch()
        assert [row["key"] for row in result.state.to_pylist()] == ["b"]
        assert result.timers.to_pylist() == [{"key": "b", "at": at(50)}]


@pytest.mark.parametrize("aggregate", [("median", "value"), ("sum", None), ("sum", "other")])
def test_an_unknown_function_or_column_of_an_aggregate_is_rejected(aggregate: tuple[str, str | None]) -> None:
    with pytest.raises(SchemaMismatch, match="aggregate 'x'"):
        running_aggregates(COLUMNS, ["key"], {"x": aggregate})


@pytest.mark.parametrize("ready_made", [running_aggregates, windows, sessions, latest_rows, first_rows])
def test_zeros_of_both_signs_are_one_key_and_so_are_all_nans(ready_made: Any) -> None:
    columns = pa.schema([("key", pa.float64()), ("value", pa.int64()), ("at", TIMESTAMP)])
    spans = [(f"{kind}_{end}", TIMESTAMP) for kind in ("window", "session") for end in ("start", "end")]
    total = {"total": ("sum", "value")}
    given: dict[Any, dict[str, Any]] = {
        running_aggregates: {"aggregates": total},
        windows: {"event_time": "at", "aggregates": total, "allowed_lateness": "0m"},
        sessions: {"event_time": "at", "aggregates": total, "allowed_lateness": "0m"},
        latest_rows: {"order_by": ["at"]},
        first_rows: {"event_time": "at", "within": "5m"},
    }
    operator = ready_made(columns, ["key"], **given[ready_made])
    negative_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    with OperatorHarness(operator, columns=pa.schema([*columns, *spans])) as harness:
        for minute in (1, 2):
            of_minute = [
                {"key": key, "value": 1, "at": at(minute), **{name: at(9 * name.endswith("end")) for name, _ in spans}}
                for key in (0.0, -0.0, float("nan"), negative_nan)
            ]
            state = harness.batch(of_minute).state
        assert sorted(map(str, state["key"].to_pylist())) == ["0.0", "nan"]


def test_a_null_key_is_a_key_like_any_other() -> None:
    with OperatorHarness(first_rows(COLUMNS, ["key"], "at", within="10m"), columns=COLUMNS) as harness:
        assert tuples(harness.batch(rows((None, 1, 1)))) == [(None, 1, at(1))]
        assert tuples(harness.batch(rows((None, 2, 2), ("a", 3, 1)))) == [("a", 3, at(1))]
    columns = pa.schema([*COLUMNS, ("session_start", TIMESTAMP), ("session_end", TIMESTAMP)])
    operator = sessions(COLUMNS, ["key"], "at", {"total": ("sum", "value")}, allowed_lateness="0s")
    with OperatorHarness(operator, columns=columns) as harness:
        harness.batch(rows((None, 1, 0), (None, 2, 30), session_start=0, session_end=5))
        assert tuples(harness.batch()) == [(None, at(0), at(5), 1)]
