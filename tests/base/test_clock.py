"""The system clock calls an action during a body of code."""

from __future__ import annotations

from threading import Event

import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StorageError


def test_a_defect_of_a_repeated_action_is_raised_at_the_end_of_the_body() -> None:
    called = Event()

    def action() -> None:
        called.set()
        raise TypeError("a defect")

    with pytest.raises(TypeError, match="a defect"), SystemClock().every(0.001, action):
        assert called.wait(60)


def test_the_error_of_a_body_is_not_replaced_by_a_defect_of_its_repeated_action() -> None:
    called = Event()

    def action() -> None:
        called.set()
        raise TypeError("a defect")

    def body() -> None:
        with SystemClock().every(0.001, action):
            assert called.wait(60)
            raise StorageError("the bucket does not answer")

    with pytest.raises(StorageError):
        body()
