"""A run is dead if its beat does not change while the sensor watches it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.liveness import DEAD_SECONDS, STARTING, Seen, look, parse
from statekeeper.resources.worker import BEAT_TAG, HOLDER_TAG, beating, holder

NOW = 1_000_000.0


def dead_after(ticks: Iterable[tuple[float, dict[str, str]]]) -> list[set[str]]:
    """The dead runs that each tick finds. A tick has a time and the beats of the started runs."""
    found, cursor = [], None
    for passed, beats in ticks:
        dead, seen = look(parse(cursor), beats, now_seconds=NOW + passed)
        cursor = seen.encoded()
        found.append(dead)
    return found


def test_a_run_without_a_new_beat_is_dead_after_two_minutes_and_reported_once() -> None:
    beats = {"a": "1"}
    assert dead_after((at, beats) for at in (0, 30, 60, 90, 119, 120)) == [*[set()] * 5, {"a"}]
    assert dead_after([*((at, beats) for at in (0, 60, 120)), (150, {})])[2:] == [{"a"}, set()]


def test_a_run_with_a_new_beat_lives_also_if_the_clock_of_its_machine_is_wrong() -> None:
    assert dead_after((at, {"a": str(-at), "b": "1"}) for at in range(0, 150, 30))[-1] == {"b"}


def test_a_run_that_does_not_start_is_dead_after_ten_minutes() -> None:
    minutes = range(0, 660, 60)
    assert dead_after((at, {"a": STARTING}) for at in minutes) == [*[set()] * 10, {"a"}]
    started = [(at, {"a": STARTING if at < 540 else ""}) for at in minutes]
    assert dead_after(started) == [set()] * 11, "from its start on, its beats count"


@pytest.mark.parametrize("gap", [91, 3_600, -60])
def test_time_in_which_the_sensor_did_not_tick_does_not_count(gap: float) -> None:
    assert dead_after((at, {"a": "1"}) for at in (0, 60, 60 + gap, 60 + gap + 60)) == [set()] * 4
    last = 60 + gap
    assert dead_after((at, {"a": "1"}) for at in (0, 60, last, last + 60, last + DEAD_SECONDS))[-1] == {"a"}


def test_a_run_beats_in_its_tags_until_it_ends(tmp_path: Path) -> None:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        run_id = instance.create_run_for_job(dg.GraphDefinition(name="maintain_queries").to_job()).run_id

        def tags() -> dict[str, str]:
            (run,) = instance.get_runs(dg.RunsFilter(run_ids=[run_id]))
            return dict(run.tags)

        with beating(instance, run_id, seconds=0.01):
            first = tags()
            assert first[HOLDER_TAG] == holder(run_id)
            deadline = time.monotonic() + 30
            while tags()[BEAT_TAG] == first[BEAT_TAG]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert threading.active_count() == len([one for one in threading.enumerate() if one.name != "beat"])


@pytest.mark.parametrize("text", [None, "", "{", "17", '{"format": 2}'])
def test_an_unreadable_cursor_is_empty(text: str | None) -> None:
    assert parse(text) == Seen()
