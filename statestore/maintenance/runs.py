"""One run of a verb that writes: the lease held, the plan written down before, the outcome after, however it ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from statestore.clock import Clock, Ids
from statestore.errors import StatekeeperError
from statestore.maintenance import lease
from statestore.maintenance.history import History
from statestore.maintenance.lease import HeldLease
from statestore.storage import Storage


@dataclass(frozen=True)
class Run:
    """A run that is under way. What is added to `done` is its outcome, a line each."""

    id: str
    lease: HeldLease
    done: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def run(
    storage: Storage, verb: str, plan: Iterable[dict[str, Any]], *, holder: str, clock: Clock, ids: Ids
) -> Iterator[Run]:
    """Hold the lease and keep the record of a run. Raises `RootHeld`, `StorageError`."""
    name = ids.fresh()
    with lease.held(storage, verb, run=name, holder=holder, clock=clock) as held:
        history = History.begin(storage, verb, name, clock)
        history.plan(plan)
        under_way = Run(name, held)
        try:
            yield under_way
        except BaseException as error:
            failed = {
                "failed": str(error) or type(error).__name__,
                "code": error.code if isinstance(error, StatekeeperError) else "failed",
            }
            # What went wrong is told by the error itself, not by a record that could not be written.
            with suppress(StatekeeperError):
                history.outcome([*under_way.done, failed])
            raise
        history.outcome(under_way.done)
