"""Decides when a query is due for a maintenance run, from figures and a cursor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.maintenance.rounds.due import (
    Ask,
    Asked,
    Cursor,
    Last,
    Wait,
    batches,
    closed_because,
    decide,
    latest_seconds,
    parse,
    pause_seconds,
    versions_in,
)
from statekeeper.statestore.maintenance.verbs.config import Schedule

NOW = 1_000_000.0
"""13:46:40Z"""


def decided(version: int, asked: Asked | None, last: Last = Last.SUCCEEDED, now: float = NOW) -> Ask | Wait:
    return decide(version, asked, last, long_tail=10, now_seconds=now)


def test_a_new_query_is_due_and_its_run_key_is_its_version() -> None:
    ask = decided(3, None, Last.NONE)
    assert isinstance(ask, Ask)
    assert ask.run_key("flights") == "maintain:flights@3#1"


@pytest.mark.parametrize(
    ("window", "is_open"),
    [
        (None, True),
        ((0, 24 * 60), True),
        ((13 * 60, 14 * 60), True),
        ((13 * 60 + 47, 14 * 60), False),
        ((13 * 60, 13 * 60 + 46), False),
        ((22 * 60, 6 * 60), False),
        ((22 * 60, 14 * 60), True),
        ((13 * 60 + 46, 13 * 60 + 45), True),
    ],
)
def test_maintenance_starts_only_in_the_window_of_the_schedule(window: tuple[int, int] | None, is_open: bool) -> None:
    assert (closed_because(Schedule(window), 0.0, NOW) is None) is is_open


@pytest.mark.parametrize(
    ("asked", "last", "version"),
    [
        (None, Last.NONE, 3),
        (Asked(20, 0, NOW - 100), Last.SUCCEEDED, 90),
        (Asked(20, 1, NOW - 5_000), Last.FAILED, 20),
        (Asked(20, 0, NOW - 100), Last.SUCCEEDED, 10),
    ],
)
def test_a_schedule_delays_each_kind_of_run_and_the_run_follows_when_it_opens(
    asked: Asked | None, last: Last, version: int
) -> None:
    schedule = Schedule((14 * 60, 15 * 60))
    wait = decide(version, asked, last, long_tail=10, now_seconds=NOW, schedule=schedule, sweep=(1e6, 1.0))
    assert isinstance(wait, Wait)
    assert wait.reason == "outside of schedule.window 14:00-15:00 UTC, which opens in 13 minutes"
    remembered = parse(Cursor({"flights": wait.asked}).encoded())
    assert remembered is not None
    later = decide(version, remembered.asked["flights"], last, long_tail=10, now_seconds=NOW + 900, schedule=schedule)
    assert isinstance(later, Ask)


def test_runs_have_the_least_interval_of_the_schedule() -> None:
    schedule = Schedule(min_interval_seconds=900.0)
    for at, last in ((NOW - 899, Last.SUCCEEDED), (NOW - 899, Last.FAILED)):
        wait = decide(90, Asked(20, 1, at), last, long_tail=10, now_seconds=NOW, schedule=schedule)
        assert isinstance(wait, Wait)
        assert wait.reason == "schedule.min_interval allows the next run in 1 s"
    for at in (NOW - 900, NOW + 5_000):
        due = decide(90, Asked(20, 0, at), Last.SUCCEEDED, long_tail=10, now_seconds=NOW, schedule=schedule)
        assert isinstance(due, Ask), "also if the clock was set back"


@pytest.mark.parametrize(
    ("window", "least", "visited_hour", "due_hour"),
    [
        (None, 0, 5, 6),
        (None, 6, 5, 11),
        ((22 * 60, 6 * 60), 0, 4, 5),
        ((22 * 60, 6 * 60), 0, 5.5, 22),
        ((22 * 60, 6 * 60), 0, 4.9, 22),  # a look could miss the last minutes of the window
        ((22 * 60, 6 * 60), 20, 3, 23),
        ((22 * 60, 22 * 60 + 5), 0, 22, 46),
    ],
)
def test_the_latest_time_of_the_next_visit_follows_from_its_age_and_the_schedule(
    window: tuple[int, int] | None, least: float, visited_hour: float, due_hour: float
) -> None:
    schedule, visited = Schedule(window, least * 3_600.0), visited_hour * 3_600.0
    latest = latest_seconds(schedule, newest_seconds=visited, visited_seconds=visited, sweep_seconds=3_600.0)
    assert latest == due_hour * 3_600.0
    age = (latest - visited, 3_600.0)
    asked = Asked(20, 0, visited)
    one = decide(20, asked, Last.SUCCEEDED, long_tail=10, now_seconds=latest, schedule=schedule, sweep=age)
    assert isinstance(one, Ask)


def test_a_run_that_is_too_old_is_followed_by_another_one() -> None:
    asked = Asked(20, 0, NOW - 3_600)
    for age, is_due in ((3_599.0, False), (3_600.0, True), (-1.0, True)):
        one = decide(20, asked, Last.SUCCEEDED, long_tail=10, now_seconds=NOW, sweep=(age, 3_600.0))
        assert isinstance(one, Ask) is is_due


def test_it_is_due_again_after_the_number_of_versions_that_makes_a_long_tail() -> None:
    asked = Asked(20, 0, NOW)
    assert isinstance(decided(29, asked), Wait)
    ask = decided(30, asked)
    assert isinstance(ask, Ask)
    assert ask.asked == Asked(30, 1, NOW)
    assert "10 new batches" in ask.reason


def test_it_is_due_when_the_replay_of_its_new_versions_reaches_the_restore_target() -> None:
    asked = Asked(20, 0, NOW, versions=4)
    wait = decided(23, asked)
    assert (wait.asked, wait.reason) == (asked, "3 new batches of 4")
    ask = decided(24, asked)
    assert isinstance(ask, Ask)
    assert "exceeds the restore target" in ask.reason
    assert isinstance(decided(30, Asked(20, 0, NOW, versions=400)), Ask), "never later than by the count"


def test_the_replay_of_a_version_is_that_of_a_changelog_in_each_store() -> None:
    figures = {"changelogs_before": 40, "restore_seconds_before": 20.0, "restore_seconds_after": 2.0, "stores": 4}
    assert versions_in(30.0, figures, long_tail=50) == 14  # (30 s - 2 s) / (0.5 s * 4)
    assert versions_in(30.0, {**figures, "changelogs_before": 0}, long_tail=50) is None
    assert versions_in(30.0, {}, long_tail=50) is None


def test_runs_for_the_restore_target_do_not_follow_each_other_at_once() -> None:
    figures = {"changelogs_before": 40, "restore_seconds_before": 20.0, "restore_seconds_after": 29.5, "stores": 4}
    assert versions_in(30.0, figures, long_tail=50) == 5
    assert versions_in(30.0, figures, long_tail=4) == 1
    assert versions_in(29.0, figures, long_tail=50) is None, "the run could not reach the target"


def test_while_a_run_is_active_no_run_is_requested() -> None:
    assert isinstance(decided(10_000, Asked(20, 1, 0.0), Last.ACTIVE), Wait)


def test_a_successful_run_fulfills_the_request() -> None:
    assert decided(25, Asked(20, 3, NOW)) == Wait(Asked(20, 0, NOW), 5, "5 new batches of 10")


def test_a_failed_run_is_requested_again_after_a_growing_pause_even_without_commits() -> None:
    asked = Asked(20, 1, NOW)
    waits = []
    for _ in range(6):
        pause = pause_seconds(asked.attempts)
        assert isinstance(decided(20, asked, Last.FAILED, asked.at_seconds + pause - 1), Wait)
        again = decided(20, asked, Last.FAILED, asked.at_seconds + pause)
        assert isinstance(again, Ask)
        assert again.run_key("q") == f"maintain:q@20#{asked.attempts + 1}", "its own key, else Dagster would not run it"
        waits.append(pause)
        asked = again.asked
    assert waits == [60, 240, 960, 3600, 3600, 3600]


def test_a_query_whose_runs_die_is_retried_each_four_minutes_before_the_pauses_grow() -> None:
    pauses = [pause_seconds(attempts, has_died=True) for attempts in range(1, 8)]
    assert pauses == [60, 240, 240, 240, 240, 240, 3600]
    asked = Asked(9, 3, NOW - 240)
    assert isinstance(decide(9, asked, Last.FAILED, long_tail=50, now_seconds=NOW, has_died=True), Ask)
    assert isinstance(decide(9, asked, Last.FAILED, long_tail=50, now_seconds=NOW), Wait)


def test_new_versions_do_not_shorten_the_pause_after_a_failure() -> None:
    assert isinstance(decided(10_000, Asked(20, 2, NOW), Last.FAILED, NOW + 100), Wait)


def test_a_failed_nightly_run_is_retried_before_the_next_night() -> None:
    assert isinstance(decided(20, Asked(20, 0, NOW - 5000), Last.FAILED), Ask)


def test_a_clock_that_was_set_back_does_not_block_runs() -> None:
    assert isinstance(decided(20, Asked(20, 1, NOW + 1e6), Last.FAILED), Ask)


def test_a_query_that_was_rolled_back_is_due() -> None:
    ask = decided(5, Asked(20, 0, NOW))
    assert isinstance(ask, Ask)
    assert "rolled back" in ask.reason


def asks(**new: int) -> dict[str, Ask]:
    return {name: Ask(Asked(count, 1, NOW), count, "due") for name, count in new.items()}


def test_a_run_has_the_queries_with_the_most_new_versions_first_and_the_others_wait() -> None:
    found = batches(asks(a=1, b=3, c=2), {}, most=2)
    assert [list(one) for one in found] == [["b", "c"]]


def test_the_queries_of_a_run_that_died_share_no_run_with_others_and_each_time_with_fewer() -> None:
    due_now = asks(**{f"q{number:02d}": 100 - number for number in range(20)})
    suspects = [name for name in due_now if name < "q16"]
    sizes = [
        [len(one) for one in batches(due_now, dict.fromkeys(suspects, attempts), most=25)] for attempts in (1, 2, 3, 99)
    ]
    assert sizes == [[4, 6, 6], [4, 1, 1], [4, 1, 1], [4, 1, 1]]
    healthy, isolated, _ = batches(due_now, dict.fromkeys(suspects, 1), most=25)
    assert set(healthy).isdisjoint(suspects)
    assert list(isolated) == suspects[:6]


def test_queries_with_which_several_runs_died_do_not_delay_the_others() -> None:
    due_now = asks(**{f"q{number:02d}": 100 - number for number in range(12)})
    died = {name: 3 if name < "q04" else 1 for name in due_now}
    assert [list(one) for one in batches(due_now, died, most=25)] == [
        [f"q{number:02d}" for number in range(4, 10)],
        ["q10", "q11"],
        ["q00"],
        ["q01"],
    ]


def test_without_a_due_query_there_is_no_run() -> None:
    assert batches({}, {"a": 1}, most=25) == []


@given(st.dictionaries(st.text(min_size=1), st.builds(Asked, st.integers(0), st.integers(0), st.floats(0, 1e12))))
def test_a_cursor_survives_a_round_trip(asked: dict[str, Asked]) -> None:
    cursor = Cursor(asked, {"gone": 3.0}, died={"a": 2}, looked_seconds=NOW)
    assert parse(cursor.encoded()) == cursor
    again = parse(cursor.encoded())
    assert again is not None
    assert again.encoded() == cursor.encoded()


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2, "asked": {}, "gone_since": {}}', '{"format": 1}', "17"])
def test_an_unreadable_cursor_is_ignored(text: str) -> None:
    assert parse(text) is None


def test_without_a_cursor_there_are_no_earlier_requests() -> None:
    assert parse(None) == parse("") == Cursor()
