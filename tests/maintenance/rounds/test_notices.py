"""Who is told what, and when."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from statekeeper.statestore.maintenance.rounds.notices import (
    REMINDER_SECONDS,
    Notice,
    Told,
    next_notice,
    sent,
    told_again,
)
from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.maintenance.verbs.config import Policies

OK, WARN, ERROR = Status.OK, Status.WARN, Status.ERROR


@dataclass
class People:
    """What the people of one query know, and were told."""

    known: Told | None = None
    notices: list[Notice] = field(default_factory=list)

    def look(self, status: Status, at: float, *, is_certain: bool = True) -> list[str]:
        """A look at the query. Returns the new notices."""
        self.known, notice = next_notice(
            "orders", self.known, status, status.name.lower(), now_seconds=at, is_certain=is_certain
        )
        if self.known is not None and notice is not None:
            self.known = sent(self.known)
        self.notices += [] if notice is None else [notice]
        return [] if notice is None else [str(notice)]


@pytest.mark.parametrize("before", Status)
@pytest.mark.parametrize("now", Status)
def test_each_change_of_the_status_is_told_once(before: Status, now: Status) -> None:
    people = People()
    people.look(before, 100)
    expected = [] if now is before else [f"orders: {before.name} -> {now.name}: {now.name.lower()}"]
    assert people.look(now, 200) == expected
    assert [people.look(now, 200 + seconds) for seconds in (1, 60, REMINDER_SECONDS - 101)] == [[], [], []]


def test_people_are_reminded_each_day_until_it_is_over() -> None:
    people = People()
    people.look(ERROR, 0)
    days = [people.look(ERROR, hour * 3600) for hour in range(1, 73)]
    assert [hour for hour, told in enumerate(days, start=1) if told] == [24, 48, 72]
    assert days[23] == ["orders: still ERROR: error"]
    assert people.notices[-1].is_reminder
    assert people.notices[-1].since_seconds == 0
    assert people.look(OK, 80 * 3600) == ["orders: ERROR -> OK: ok"]
    assert people.notices[-1].since_seconds == 0
    assert people.look(OK, 200 * 3600) == []


def test_an_error_that_may_be_over_soon_is_told_at_the_second_look() -> None:
    people = People()
    assert people.look(ERROR, 0, is_certain=False) == []
    assert people.look(OK, 60) == []
    assert people.known is None
    assert people.look(ERROR, 120, is_certain=False) == []
    assert people.look(ERROR, 180, is_certain=False) == ["orders: OK -> ERROR: error"]
    assert people.look(ERROR, 240, is_certain=False) == []
    assert people.look(OK, 300) == ["orders: ERROR -> OK: ok"]


def test_a_doubt_does_not_hide_a_warning_and_is_not_kept_after_a_certain_look() -> None:
    people = People()
    people.look(WARN, 0)
    assert people.look(ERROR, 60, is_certain=False) == []
    assert people.look(WARN, 120) == []
    assert people.look(ERROR, 180, is_certain=False) == []
    assert people.look(ERROR, 240) == ["orders: WARN -> ERROR: error"]


def test_an_unsent_notice_is_sent_again_with_its_id_until_it_is_accepted() -> None:
    told, notice = next_notice("orders", None, ERROR, "error", now_seconds=100, policies=Policies(team="a"))
    assert told is not None
    assert notice is not None
    assert told.unsent == notice
    received: list[Notice] = []

    def refused(one: Notice) -> Notice:
        received.append(one)
        return one

    known = told_again(told, refused)
    assert known is not None
    assert known.is_waiting
    known = told_again(known, lambda one: received.append(one))
    assert [(one.id, one.is_repeated, one.team) for one in received] == [(notice.id, True, "a")] * 2
    assert known == sent(told)
    assert next_notice("orders", known, ERROR, "error", now_seconds=200) == (known, None)
    over, resolved = next_notice("orders", known, OK, "gone", now_seconds=300)
    assert over is not None
    assert resolved is not None
    assert resolved.team == "a", "the team that knows of the problem, although no configuration names the query"
    assert resolved.id != notice.id
    assert sent(over) is None


def test_a_notice_that_only_pagerduty_lacks_is_kept_for_it_and_does_not_delay_the_next_one() -> None:
    def page_refused(one: Notice) -> Notice:
        return replace(one, only_pagerduty=True)

    told, notice = next_notice("orders", None, ERROR, "error", now_seconds=100)
    assert told is not None
    assert notice is not None
    known = sent(told, page_refused(notice))
    assert known is not None
    assert not known.is_waiting
    assert next_notice("orders", known, ERROR, "error", now_seconds=160) == (known, None)
    known, resolved = next_notice("orders", known, OK, "ok", now_seconds=220)
    assert known is not None
    assert resolved is not None
    assert known.unsent == resolved, "it replaces the one before it"
    known = sent(known, page_refused(resolved))
    assert known is not None
    for now, is_certain in ((280, True), (340, False), (400, True)):
        known, none = next_notice(
            "orders", known, OK if is_certain else ERROR, "", now_seconds=now, is_certain=is_certain
        )
        assert none is None
        assert known is not None
        assert known.unsent == replace(resolved, only_pagerduty=True)
    assert told_again(known, lambda one: None) is None


def test_a_clock_that_is_set_back_causes_no_notice() -> None:
    people = People()
    people.look(ERROR, REMINDER_SECONDS * 10)
    assert people.look(ERROR, 0) == []
