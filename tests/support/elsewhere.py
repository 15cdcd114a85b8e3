"""An executor whose tasks run as on other hosts, but in this process: without Spark, and with stalled tries."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance.executors import MEMORY_BYTES, Place, Task

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class Elsewhere:
    """Sends each task and each item as bytes, as Spark does, and runs each twice: the outcome of the second try counts,
    which finds what the first one has written. `run_late` is a third try that stalled until then; its outcome is lost.

    tasks   the number of tasks that ran
    """

    scratch: Path
    tasks: int = 0
    _late: list[Callable[[], object]] = field(default_factory=list)

    @property
    def is_here(self) -> bool:
        return False

    def require_ready(self) -> None:
        """It is."""

    def map(
        self, task: Task[Item, Result], items: Sequence[Item], ended: Callable[[Item, Result | StatekeeperError], None]
    ) -> None:
        for item in items:
            sent = pickle.dumps((task, item))
            self._outcome(sent)
            outcome = pickle.loads(pickle.dumps(self._outcome(sent)))
            self._late.append(lambda sent=sent: self._outcome(sent))  # type: ignore[misc]
            self.tasks += 1
            ended(item, outcome)

    def run_late(self) -> None:
        """Run the tries that stalled."""
        for one in self._late:
            one()

    def _outcome(self, sent: bytes) -> object:
        task, item = pickle.loads(sent)
        place = Place(
            scratch=self.scratch, clock=SystemClock(), ids=RandomIds(), at_a_time=1, memory_bytes=MEMORY_BYTES
        )
        try:
            return task(item, place)
        except StatekeeperError as error:
            return error
