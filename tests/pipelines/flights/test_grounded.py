"""The grounded aircraft of the flights job: reported once, and forgotten after 30 days, as pandas computes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pandas as pd
import pyarrow as pa
import pytest

from statekeeper.pipelines import OperatorHarness
from statekeeper.pipelines.flights import departures as source
from statekeeper.pipelines.flights.job import FACTS, GROUNDED, OPERATOR
from tests.support import flights_in_pandas

DAYS = 34
"""After 30 of them, state expires."""


@pytest.mark.parametrize("days", [DAYS, pytest.param(366, marks=pytest.mark.slow)])
def test_the_outputs_and_the_state_of_daily_batches_equal_pandas(days: int) -> None:
    batches = source.days(source.departures())[:days]
    found: dict[str, list[pa.Table]] = {FACTS: [], GROUNDED: []}
    with OperatorHarness(OPERATOR, columns=source.SCHEMA) as harness:
        for rows in batches:
            result = harness.batch(rows)
            assert result.late.num_rows == 0
            for name, tables in found.items():
                tables.append(result.output[name])
    flights = flights_in_pandas.flights().head(sum(rows.num_rows for rows in batches))
    facts, grounded = (pa.concat_tables(tables).to_pandas() for tables in found.values())
    flights_in_pandas.assert_facts_equal(facts, flights_in_pandas.facts(flights, flights_in_pandas.lives(flights)))
    flights_in_pandas.assert_grounded_equal(grounded, flights_in_pandas.grounded(flights))
    flights_in_pandas.assert_state_equal(result.state.to_pandas(), flights_in_pandas.remembered(flights))
    timers = result.timers.to_pandas().set_index("tailnum")["at"].rename("fires_at")
    pd.testing.assert_series_equal(timers, flights_in_pandas.timers(flights), check_dtype=False)

    # The rule has an effect: aircraft were forgotten, and some of them came back.
    assert len(grounded) > 200 * days
    assert len(result.state) < flights["tailnum"].nunique()
    assert flights_in_pandas.lives(flights).max() > 0


def flight(hours: float, *, is_cancelled: bool = False, tailnum: str = "N1") -> dict[str, object]:
    at = datetime(2013, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
    delay = None if is_cancelled else 0.0
    return {
        "scheduled_at": at,
        "event_at": at,
        "carrier": "UA",
        "flight": 1,
        "origin": "EWR",
        "dest": "IAH",
        "tailnum": tailnum,
        "dep_delay": delay,
        "arr_delay": delay,
    }


def run(*batches: list[dict[str, object]]) -> tuple[list[list[tuple[str, int]]], list[object]]:
    """The aircraft and legs that each batch reports, and the legs of the facts of aircraft N1."""
    reported, legs = [], []
    with OperatorHarness(OPERATOR, columns=source.SCHEMA) as harness:
        for rows in batches:
            output = harness.batch(rows).output
            reported.append([(row["tailnum"], row["legs"]) for row in output[GROUNDED].to_pylist()])
            legs += [row["leg"] for row in output[FACTS].to_pylist() if row["tailnum"] == "N1"]
    return reported, legs


def test_an_aircraft_is_reported_once_for_each_stop_unless_it_departs_in_that_batch() -> None:
    others = [[flight(hours, tailnum="N2")] for hours in (35.9, 36, 37)]
    reported, _ = run([flight(0), flight(0, is_cancelled=True)], *others, [flight(50)], [flight(90, tailnum="N2")], [])
    assert reported == [[], [], [], [("N1", 1)], [], [], [("N1", 2)]]


def test_a_cancelled_flight_does_not_delay_the_report_and_a_departure_does() -> None:
    reported, _ = run([flight(0)], [flight(20, is_cancelled=True)], [flight(40, tailnum="N2")], [])
    assert reported[-1] == [("N1", 1)]
    reported, _ = run([flight(0)], [flight(20)], [flight(40, tailnum="N2")], [])
    assert reported == [[], [], [], []]


def test_the_legs_of_an_aircraft_count_from_1_again_after_30_days() -> None:
    day = 24.0
    others = [[flight(hours, tailnum="N2")] for hours in (29.9 * day, 30 * day)]
    assert run([flight(0)], *others, [flight(31 * day)])[1] == [1, 2], "a batch sees the watermark of the previous one"
    assert run([flight(0)], *others, [], [flight(31 * day)])[1] == [1, 1]
