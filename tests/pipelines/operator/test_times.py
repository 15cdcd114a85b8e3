"""Event time, timers and expiries of an operator, in one task with real stores, compared with a model of each key."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeeper.pipelines.operator.declaration import Pieces, StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch, Ttl
from statekeeper.pipelines.testing.harness import OperatorHarness
from statekeeper.statestore.base.errors import SchemaMismatch, WrongInput, WrongResult
from tests.support.timed_query import ROWS, TimedQuery, at, minutes

STATE = pa.schema([("sum", pa.int64()), ("until", TIMESTAMP)])
OUTPUT = pa.schema([("key", pa.int64()), ("what", pa.string())])
TIMEOUT_MINUTES = 30
TTL_MINUTES = 50


def tables(rows: list[dict[str, Any]], *columns: str) -> pa.Table:
    schema = pa.schema([("key", pa.int64()), *STATE, ("at", TIMESTAMP)])
    return pa.Table.from_pylist(rows, schema=pa.schema([schema.field(name) for name in ("key", *columns)]))


def add(rows: pa.Table, state: pa.Table, batch: Batch) -> Update:
    """Sum the values of each key. A value of 0 deletes the key and its timer; another sets the timer."""
    del batch
    sums = {row["key"]: row["sum"] for row in state.to_pylist()}
    seen: dict[int, dict[str, Any]] = {}
    for row in rows.to_pylist():
        sums[row["key"]] = 0 if row["value"] == 0 else sums.get(row["key"], 0) + row["value"]
        seen[row["key"]] = row
    new = [{"key": key, "sum": sums[key], "until": None} for key, row in seen.items() if row["value"]]
    timers = [
        {"key": key, "at": row["at"] + dt.timedelta(minutes=TIMEOUT_MINUTES) if row["value"] else None}
        for key, row in seen.items()
    ]
    gone = [{"key": key} for key, row in seen.items() if not row["value"]]
    return Update(output([]), tables(new, "sum", "until"), tables(gone), tables(timers, "at"))


def add_only(rows: pa.Table, state: pa.Table, batch: Batch) -> Update:
    """The same without timers."""
    return replace(add(rows, state, batch), timers=None)


def tell(keys: pa.Table, state: pa.Table, batch: Batch) -> Update:
    """Report each timer with the state that it finds."""
    assert batch.watermark is not None
    sums = {row["key"]: row["sum"] for row in state.to_pylist()}
    return Update(output([(row["key"], f"{minutes(row['at'])}: {sums.get(row['key'])}") for row in keys.to_pylist()]))


def output(rows: list[tuple[int, str]]) -> pa.Table:
    return pa.table({"key": [key for key, _ in rows], "what": [what for _, what in rows]}, schema=OUTPUT)


def operator(**declared: Any) -> StatefulOperator:
    return StatefulOperator(
        ["key"],
        ["at"],
        **{
            "state": STATE,
            "output": OUTPUT,
            "update": add,
            "event_time": "at",
            "allowed_lateness": "5m",
            "timers": "event",
            "on_timer": tell,
            **declared,
        },
    )


class Model:
    """What each key must have, by the rules of the docs."""

    def __init__(self, lateness: float = 5) -> None:
        self.lateness = lateness
        self.watermark: float | None = None
        self.late_watermark: float | None = None
        self.sums: dict[int, tuple[int, float]] = {}
        """Key -> sum and expiry."""
        self.timers: dict[int, float] = {}

    def batch(self, rows: list[tuple[int, int, float]]) -> tuple[list[str], int]:
        """The rows of the output and the number of late rows."""
        late = [row for row in rows if self.late_watermark is not None and row[2] <= self.late_watermark]
        now = self.watermark
        before = {key: total for key, (total, end) in self.sums.items() if self._is_visible(end)}
        newest: dict[int, float] = {}
        for key, value, moment in sorted((row for row in rows if row not in late), key=lambda row: (row[0], row[2])):
            newest[key] = moment
            if value == 0:
                before[key] = 0
                self.sums.pop(key, None)
                self.timers.pop(key, None)
                continue
            before[key] = before.get(key, 0) + value
            self.sums[key] = (before[key], newest[key] + TTL_MINUTES)
            self.timers[key] = newest[key] + TIMEOUT_MINUTES
        due = {key: end for key, end in self.timers.items() if now is not None and end <= now}
        seen = {key: total for key, (total, end) in self.sums.items() if self._is_visible(end)}
        told = sorted(f"{key}, {end}: {seen.get(key)}" for key, end in due.items())
        for key in due:
            del self.timers[key]
        self.sums = {key: (total, end) for key, (total, end) in self.sums.items() if now is None or end > now}
        self.late_watermark = self.watermark
        if rows:
            latest = max(moment for _, _, moment in rows) - self.lateness
            self.watermark = latest if self.watermark is None else max(self.watermark, latest)
        return told, len(late)

    def _is_visible(self, end: float) -> bool:
        return self.late_watermark is None or end > self.late_watermark


moments = st.integers(0, 200).map(float)
batches = st.lists(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 2, 3]), moments),
        max_size=8,
        unique_by=lambda row: (row[0], row[2]),
    ),
    max_size=8,
)


@given(batches, st.sampled_from([1, 3]), st.sampled_from([2, 65_536]))
@settings(max_examples=5, deadline=None)
def test_rows_timers_and_expiries_are_those_of_a_model(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[list[tuple[int, int, float]]],
    partitions: int,
    rows_per_call: int,
) -> None:
    compare_with_model(tmp_path_factory.mktemp("query"), history, partitions, rows_per_call)


@pytest.mark.slow
@given(batches, st.sampled_from([1, 3, 8]), st.sampled_from([2, 65_536]))
@settings(max_examples=200, deadline=None)
def test_many_histories_are_those_of_a_model(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[list[tuple[int, int, float]]],
    partitions: int,
    rows_per_call: int,
) -> None:
    compare_with_model(tmp_path_factory.mktemp("query"), history, partitions, rows_per_call)


def compare_with_model(
    folder: Path, history: list[list[tuple[int, int, float]]], partitions: int, rows_per_call: int
) -> None:
    declared = {"ttl": Ttl(f"{TTL_MINUTES}m", by="event"), "pieces": Pieces(rows=rows_per_call)}
    query, model = TimedQuery(folder, operator(**declared), partitions), Model()
    for rows in history:
        compare_batch(query, model, rows)
    compare_state(query, model)
    for rows in ([(0, 1, 230.0)], [], [(1, 1, 400.0)], []):
        compare_batch(query, model, rows)
    compare_state(query, model)
    assert len(query.state("timers_due")) <= 2
    assert len(query.state("default_expiries")) <= 2


def compare_batch(query: TimedQuery, model: Model, rows: list[tuple[int, int, float]]) -> None:
    told, late = model.batch(rows)
    assert sorted(f"{row['key']}, {row['what']}" for row in query.batch(rows)) == told
    assert query.counts.late_rows == late


def compare_state(query: TimedQuery, model: Model) -> None:
    assert {row["key"]: row["sum"] for row in query.state()} == {key: total for key, (total, _) in model.sums.items()}
    assert {row["key"]: minutes(row["fires_at"]) for row in query.state("timers")} == model.timers
    expiries = {key: end for key, (_, end) in model.sums.items()}
    for name, truth in (("timers_due", model.timers), ("default_expiries", expiries)):
        # The invariant of the index: each key has an entry at its time or before.
        entries = {(row["key"], row["due_at"]) for row in query.state(name)}
        for key, end in truth.items():
            text = f"{at(end):%Y-%m-%dT%H:%M:%S.000Z}"
            assert any(of == key and due <= text for of, due in entries), (name, key, text, entries)


def test_a_timeout_that_moves_with_each_batch_writes_no_entry_of_the_index(tmp_path: Path) -> None:
    query = TimedQuery(tmp_path, operator())
    for minute in range(0, 30, 3):
        query.batch([(1, 1, minute)])
    [entry] = query.state("timers_due")
    assert (entry["due_at"], entry["batch"]) == ("2026-01-01T00:30:00.000Z", 0)
    query.batch([(2, 1, 40)])
    query.batch()
    assert [row["due_at"] for row in query.state("timers_due")] == [
        "2026-01-01T00:57:00.000Z",
        "2026-01-01T01:10:00.000Z",
    ]


def test_a_timer_that_stays_at_its_time_is_not_written_again(tmp_path: Path) -> None:
    query = TimedQuery(tmp_path, operator())
    timers = [store.name for store in query.stores].index("timers")

    def written() -> int:
        return sum(report.stores[timers].commit.changed_keys for report in query.reports)

    query.batch([(1, 1, 5), (2, 1, 5)])
    assert written() == 2
    query.batch([(1, 1, 5), (2, 1, 6)])
    assert written() == 1, "the timer is 30 minutes after the newest row of the key"
    assert [row["fires_at"] for row in query.state("timers")] == [at(35), at(36)]


def test_timers_by_processing_time_fire_once_and_can_be_set_again(tmp_path: Path) -> None:
    def on_timer(keys: pa.Table, state: pa.Table, batch: Batch) -> Update:
        del state
        again = [row["key"] for row in keys.to_pylist() if batch.time < at(60)]
        later = [{"key": key, "at": batch.time + dt.timedelta(minutes=10)} for key in again]
        return Update(
            output([(row["key"], str(minutes(row["at"]))) for row in keys.to_pylist()]), timers=tables(later, "at")
        )

    def update(rows: pa.Table, state: pa.Table, batch: Batch) -> Update:
        del state
        keys = sorted(set(rows["key"].to_pylist()))
        soon = batch.time + dt.timedelta(minutes=10)
        return Update(output([]), timers=tables([{"key": key, "at": soon} for key in keys], "at"))

    query = TimedQuery(tmp_path, operator(update=update, on_timer=on_timer, timers="processing", event_time=None))
    assert query.batch([(1, 1, 0), (2, 1, 0)], now=0) == []
    assert query.batch(now=9) == []
    assert [row["what"] for row in query.batch(now=12)] == ["10.0", "10.0"]
    assert query.batch([(2, 1, 0)], now=20) == []
    assert query.batch(now=25) == [{"key": 1, "what": "22.0"}]
    assert [(row["key"], row["what"]) for row in query.batch(now=60)] == [(1, "35.0"), (2, "30.0")]
    assert query.batch(now=900) == []
    assert query.state("timers") == query.state("timers_due") == []


def test_the_ttl_counts_from_a_column_and_null_never_expires(tmp_path: Path) -> None:
    def update(rows: pa.Table, state: pa.Table) -> Update:
        del state
        new = [
            {"key": row["key"], "sum": 1, "until": None if row["value"] == 0 else at(row["value"])}
            for row in rows.to_pylist()
        ]
        return Update(output([]), tables(new, "sum", "until"))

    declared = {"timers": None, "on_timer": None, "event_time": None, "update": update}
    query = TimedQuery(tmp_path, operator(ttl=Ttl("10m", column="until"), **declared))
    query.batch([(1, 5, 0), (2, 0, 0), (3, 50, 0)], now=1)
    query.batch(now=14)
    assert [row["key"] for row in query.state()] == [1, 2, 3]
    query.batch(now=15)
    assert [row["key"] for row in query.state()] == [2, 3]
    query.batch([(2, 5, 0)], now=16)
    # A row that is written with a time in the past is deleted by the same batch.
    assert [row["key"] for row in query.state()] == [3]
    query.batch(now=10_000)
    assert query.state() == query.state("default_expiries") == []


def test_a_changed_ttl_applies_to_the_rows_that_are_written_from_then_on(tmp_path: Path) -> None:
    declared = {"timers": None, "on_timer": None, "update": add_only}
    query = TimedQuery(tmp_path, operator(ttl=Ttl("10m"), **declared))
    query.batch([(1, 1, 0), (2, 1, 0), (3, 1, 0)], now=0)
    query.operator = operator(ttl=Ttl("60m"), **declared)
    query.batch([(2, 1, 1)], now=1)
    query.operator = operator(ttl=Ttl(None), **declared)
    query.batch([(3, 1, 2)], now=2)
    query.batch(now=10)
    assert [row["key"] for row in query.state()] == [2, 3]
    query.operator = operator(ttl=Ttl("5m"), **declared)
    query.batch([(2, 1, 3)], now=11)
    query.batch(now=16)
    assert [(row["key"], row["expires_at"]) for row in query.state()] == [(3, None)]


def test_a_batch_deletes_expired_rows_in_portions_and_no_function_sees_them(tmp_path: Path) -> None:
    seen: list[int] = []

    def update(rows: pa.Table, state: pa.Table, batch: Batch) -> Update:
        seen.extend(state["key"].to_pylist())
        return add(rows, state, batch)

    declared = {"timers": "event", "pieces": Pieces(expired_rows=3), "ttl": Ttl("10m"), "update": update}
    query = TimedQuery(tmp_path, operator(**declared), partitions=1)
    query.batch([(key, 1, 0) for key in range(8)], now=0)
    query.batch(now=10)
    assert (query.counts.expired_rows, len(query.state())) == (3, 5)
    query.batch([(7, 1, 1)], now=11)
    assert seen == []
    # The key that was written again has a new expiry.
    assert {row["key"]: minutes(row["expires_at"]) for row in query.state()}[7] == 21
    for now in range(12, 20):
        query.batch(now=now)
    assert [row["key"] for row in query.state()] == [7]


def test_rows_are_compared_with_the_watermark_of_the_batch_before(tmp_path: Path) -> None:
    query = TimedQuery(tmp_path, operator(update=add_only, allowed_lateness="0s", timers=None, on_timer=None))
    query.batch([(1, 1, 10)])
    query.batch([(2, 1, 20)])
    query.batch([(3, 1, 10.0), (4, 1, 10.001)])
    assert query.counts.late_rows == 1
    query.batch([(3, 1, 19), (4, 1, 20), (5, 1, 21)])
    assert query.counts.late_rows == 2
    assert [row["key"] for row in query.state()] == [1, 2, 4, 5]


def test_a_row_without_an_event_time_is_rejected(tmp_path: Path) -> None:
    query = TimedQuery(tmp_path, operator())
    table = pa.table({"key": [1], "value": [1], "at": [None]}, schema=ROWS)
    from statekeeper.pipelines.task.event_time import EventTime
    from statekeeper.statestore.root.times import BatchTimes

    reader = EventTime(query.operator, BatchTimes(batch=0, time_ms=0))
    with pytest.raises(WrongInput, match="column 'at' has the event time of the rows, but it is null in 1 of 1 rows"):
        reader.late(table)


def timer_at(time: dt.datetime | None, key: int = 1) -> Any:
    def update(rows: pa.Table, state: pa.Table, batch: Batch) -> Update:
        del rows, state, batch
        return Update(output([]), timers=pa.table({"key": [key], "at": pa.array([time], TIMESTAMP)}))

    return update


@pytest.mark.parametrize(
    ("update", "said"),
    {
        "at the watermark": (
            timer_at(at(5)),
            "at 2026-01-01 00:05.*the watermark of the previous batch is 2026-01-01 00:05",
        ),
        "in the past": (timer_at(at(-1)), "a new timer is at 2025-12-31 23:59:00.* for key {.key.: 1}"),
        "of a key that is not in the piece": (
            timer_at(at(90), 7),
            "timers of a key that is not in the rows: {'key': 7}",
        ),
    }.values(),
    ids=["at the watermark", "in the past", "of another key"],
)
def test_a_wrong_timer_is_rejected(tmp_path: Path, update: Any, said: str) -> None:
    query = TimedQuery(tmp_path, operator())
    query.batch([(1, 1, 10)])
    query.batch()
    query.operator = operator(update=update)
    with pytest.raises(WrongResult, match=said):
        query.batch([(1, 1, 11)])


def test_initial_rows_of_a_ttl_by_event_time_need_a_column() -> None:
    rows = pa.table({"key": [1], "sum": [1], "until": pa.array([at(0)], TIMESTAMP)})
    with pytest.raises(SchemaMismatch, match="these rows have no event time"):
        OperatorHarness(operator(ttl=Ttl("30d", by="event")), columns=ROWS, initial=rows)
    column = Ttl("30m", by="event", column="until")
    with OperatorHarness(operator(ttl=column), columns=ROWS, initial=rows) as harness:
        for minute in (10, 40, 60):
            state = harness.batch([{"key": 2, "value": 1, "at": at(minute)}]).state
        assert state["key"].to_pylist() == [2]


def test_the_limit_of_expired_rows_is_exact_if_it_is_no_multiple_of_a_portion(tmp_path: Path) -> None:
    declared = {"pieces": Pieces(expired_rows=15_000), "ttl": Ttl("10m"), "update": add_only}
    query = TimedQuery(tmp_path, operator(timers=None, on_timer=None, **declared), partitions=1)
    keys = range(20_000)
    query.batch(pa.table({"key": keys, "value": [1] * len(keys), "at": [at(0)] * len(keys)}, schema=ROWS), now=0)
    query.batch(now=10)
    assert query.counts.expired_rows == 15_000
    query.batch(now=11)
    assert query.counts.expired_rows == 5_000
