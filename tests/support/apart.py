"""Executors that run tasks in this process as a cluster does: a task has nothing of this process but its arguments.

The tasks and the storage are real. What only a cluster can do is in `on_a_cluster`.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance.executors import LocalExecutor, Place, Task

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Apart(LocalExecutor):
    """Runs each task elsewhere.

    sends  the task, its items and its results are pickled, so that a task opens its storages again
    twice  runs each item twice at a time, as speculation does, and keeps the outcome of the second attempt
    again  the second attempt begins after the first one has ended, and finds what that has written
    before called with the name of a task before its items run
    ran    the name of the task of each item that ran
    late   a further attempt at each item, which has stalled until it is called, see `run_late`
    """

    sends: bool = True
    twice: bool = False
    again: bool = False
    before: Callable[[str], None] = lambda _: None
    ran: list[str] = field(default_factory=list)
    late: list[Callable[[], object]] = field(default_factory=list)

    @property
    def is_here(self) -> bool:
        return False

    def map(
        self, task: Task[Item, Result], items: Sequence[Item], ended: Callable[[Item, Result | StatekeeperError], None]
    ) -> None:
        self.before(type(task).__name__)
        super().map(_Sent(task, self), items, ended)

    def run_late(self) -> None:
        """Run the stalled attempts, and drop their outcomes."""
        for attempt in self.late:
            with contextlib.suppress(StatekeeperError):
                attempt()


@dataclass(frozen=True)
class _Sent:
    """A task as it arrives."""

    task: Task[Any, Any]
    executor: Apart

    @property
    def storages(self) -> Sequence[Any]:
        return self.task.storages

    def __call__(self, item: Any, place: Place) -> Any:
        self.executor.ran.append(type(self.task).__name__)
        self.executor.late.append(lambda: self._attempt(item, place))
        if not (self.executor.twice or self.executor.again):
            return self._attempt(item, place)
        with ThreadPoolExecutor(1 if self.executor.again else 2) as pool:
            attempts = [pool.submit(self._attempt, item, place) for _ in range(2)]
            return [attempt.result() for attempt in attempts][-1]

    def _attempt(self, item: Any, place: Place) -> Any:
        if not self.executor.sends:
            return self.task(item, place)
        task, there = cast("tuple[Task[Any, Any], Any]", pickle.loads(pickle.dumps((self.task, item))))
        return pickle.loads(pickle.dumps(task(there, place)))


def elsewhere(*, workers: int = 2, **how: Any) -> Apart:
    return Apart(clock=SystemClock(), workers=workers, **how)
