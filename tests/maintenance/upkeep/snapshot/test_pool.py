"""Work on many stores at a time: ordered, bounded, and robust against failures of one store."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.base.workers import in_pool

Ended = list[tuple[int, object]]


def ended_of(work: Callable[[int], object], items: Sequence[int], workers: int, ended: Ended | None = None) -> Ended:
    ended = [] if ended is None else ended
    in_pool(work, items, lambda item, outcome: ended.append((item, outcome)), workers=workers)
    return ended


def test_all_workers_run_and_no_more() -> None:
    meeting = threading.Barrier(3, timeout=30)
    running = most = 0
    lock = threading.Lock()

    def work(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meeting.wait()
        with lock:
            running -= 1
        return item * item

    assert sorted(ended_of(work, range(12), workers=3)) == [(item, item * item) for item in range(12)]
    assert most == 3


def test_work_starts_in_order_and_an_empty_list_ends_at_once() -> None:
    begun: list[int] = []
    ended_of(begun.append, [3, 1, 2, 5], workers=1)
    assert begun == [3, 1, 2, 5]
    assert ended_of(begun.append, [], workers=2) == []


def test_a_failure_is_reported_and_does_not_stop_the_others() -> None:
    damaged = CorruptFile("cut", path="7.changelog")

    def work(item: int) -> str:
        if item == 1:
            raise damaged
        return "done"

    assert dict(ended_of(work, range(4), workers=2)) == {0: "done", 1: damaged, 2: "done", 3: "done"}


def test_each_result_is_reported_while_others_run() -> None:
    first_is_told = threading.Event()

    def work(item: int) -> bool:
        return item == 0 or first_is_told.wait(30)

    in_pool(work, range(2), lambda *_: first_is_told.set(), workers=2)
    assert first_is_told.is_set()


def test_after_an_interruption_running_work_ends_and_none_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    both_run = threading.Barrier(2, timeout=30)
    nothing_begins = threading.Event()
    shutdown = ThreadPoolExecutor.shutdown

    def when_nothing_begins(pool: ThreadPoolExecutor, **how: bool) -> None:
        nothing_begins.set()
        shutdown(pool, **how)

    def work(item: int) -> str:
        begun.append(item)
        both_run.wait()
        # A signal that comes just before the main thread begins to wait is noticed with the next one only.
        while item == 0 and not nothing_begins.wait(1):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert nothing_begins.wait(30)
        return "done"

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", when_nothing_begins)
    ended: Ended = []
    # A shell starts commands in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ended_of(work, range(8), 2, ended)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(begun) == [0, 1]
    assert sorted(ended) == [(0, "done"), (1, "done")]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("first", [0, 1])
def test_a_programming_error_ends_all_work(workers: int, first: int) -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == first:
            raise ValueError("a mistake")
        threading.Event().wait(0.05)

    with pytest.raises(ValueError, match="a mistake"):
        ended_of(work, range(100), workers)
    assert len(begun) < 50
