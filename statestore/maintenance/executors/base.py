"""The interface of an executor, and the one that runs tasks on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from statekeeper.statestore.base.clock import Clock, Ids, RandomIds
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.workers import WORKERS, in_pool
from statekeeper.statestore.storage import Storage

MEMORY_BYTES = 512 * 1024 * 1024
"""Default memory of the tasks of a verb that share a process."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a task may use where it runs.

    scratch       local disk for temporary files; None for the temporary folder of the system
    at_a_time     the number of tasks that share the memory
    memory_bytes  of these tasks together, with the process itself
    """

    scratch: Path | None
    clock: Clock
    ids: Ids
    at_a_time: int
    memory_bytes: int

    @property
    def folder(self) -> Path:
        """The folder for temporary files."""
        return self.scratch or Path(tempfile.gettempdir())


Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

Ended: TypeAlias = Callable[[Item, Result | StatekeeperError], None]
"""Called after each item, from one thread at a time."""


class Task(Protocol[Item_contra, Result_co]):
    """What is done with each item. A frozen dataclass of a module: an executor may send it to other hosts.

    A storage is opened again there, by its URL and options, without the lease of this run and without its caches.
    """

    @property
    def storages(self) -> Sequence[Storage]:
        """The storages whose requests count."""

    def __call__(self, item: Item_contra, place: Place, /) -> Result_co:
        """Do the work. Several threads may call it. A `StatekeeperError` is the outcome of this item alone."""


class Executor(Protocol):
    """Runs the tasks of a verb."""

    @property
    def is_here(self) -> bool:
        """Whether tasks run in this process, and may use its objects and its local files."""

    def require_ready(self) -> None:
        """Require that tasks can run: before a verb writes anything. Raises `UnsupportedEnvironment`."""

    def map(
        self, task: Task[Item, Result], items: Sequence[Item], ended: Callable[[Item, Result | StatekeeperError], None]
    ) -> None:
        """Run a task for each item, starting in order. Call `ended` after each item, from one thread at a time.

        An item that fails with a `StatekeeperError` does not stop the others. After `KeyboardInterrupt`, or another
        exception of a task or of `ended`, no new item starts, and the exception is raised again.
        """


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """A pool of threads of this process, `workers` at a time. `scratch`, `memory_bytes`: see `Place`."""

    clock: Clock
    ids: Ids = field(default_factory=RandomIds)
    scratch: Path | None = None
    memory_bytes: int = MEMORY_BYTES
    workers: int = WORKERS

    @property
    def is_here(self) -> bool:
        return True

    @property
    def folder(self) -> Path:
        """The folder for temporary files."""
        return self.scratch or Path(tempfile.gettempdir())

    def require_ready(self) -> None:
        """Do nothing: this process runs the tasks."""

    def map(
        self, task: Task[Item, Result], items: Sequence[Item], ended: Callable[[Item, Result | StatekeeperError], None]
    ) -> None:
        at_a_time = max(1, min(self.workers, len(items)))
        place = Place(
            scratch=self.scratch,
            clock=self.clock,
            ids=self.ids,
            at_a_time=at_a_time,
            memory_bytes=self.memory_bytes,
        )
        in_pool(lambda item: task(item, place), items, ended, workers=at_a_time)


def results_of(
    executor: Executor,
    task: Task[Item, Result],
    items: Sequence[Item],
    told: Callable[[Item, Result], None] = lambda item, result: None,
) -> list[Result]:
    """Run a task for each item as `Executor.map`. Return the results in the order of the items, and call `told` after each.
    If an item fails, the others are completed, and the first error is raised."""
    numbers = {id(item): number for number, item in enumerate(items)}
    results: dict[int, Result] = {}
    failed: list[StatekeeperError] = []

    def ended(item: Item, outcome: Result | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
            return
        results[numbers[id(item)]] = outcome
        told(item, outcome)

    executor.map(task, items, ended)
    if failed:
        raise failed[0]
    return [results[number] for number in range(len(items))]
