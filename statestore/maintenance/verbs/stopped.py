"""The order of steps of each verb that rewrites the state of a stopped query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.contents.quiet import require_stopped
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.storage import Storage


class Plan(Protocol):
    """A plan with the reasons that block it; `is_there`: nothing has to be done."""

    @property
    def refusals(self) -> tuple[str, ...]: ...

    @property
    def is_there(self) -> bool: ...


class Prepared(Protocol):
    """A plan, and what blocks its verb: see `refusals`."""

    @property
    def plan(self) -> Plan: ...

    @property
    def refusals(self) -> Refusals: ...


P = TypeVar("P", bound=Prepared)


def refusals(storage: Storage, policies: Policies, planned: Plan, clock: Clock | None) -> Refusals:
    """Return what blocks the execution of a plan: the guards of its verb, and the refusals of the plan. Nothing blocks a
    plan without work. `clock`: None for that of the machine. Raises `StorageError`."""
    if planned.is_there:
        return ()
    own = map(RefusedAsUnsafe, planned.refusals)
    return guards.refusals(guards.rewrites(storage, policies), *own, guards.unheld(storage, clock))


def may_start(prepared: Prepared) -> bool:
    """Return whether the plan has work and nothing blocks it."""
    return not (prepared.refusals or prepared.plan.is_there)


def execute(
    storage: Storage,
    prepared: P,
    by: Maintainer,
    *,
    stopped: bool,
    plan_again: Callable[[], P],
    run: Callable[[P], object],
) -> P:
    """Verify that the query is stopped, plan again, and run the new plan. Returns the new plan.

    `stopped`: a person confirms that the query is stopped. If the first or the new plan must not start, nothing runs.
    Raises the first refusal; `RefusedAsUnsafe` while the query runs; as the two callbacks.
    """
    if prepared.plan.refusals or prepared.plan.is_there:
        return prepared
    guards.require_none(prepared.refusals)
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    # The query may have been running when the first plan was made.
    again = plan_again()
    if not (again.plan.refusals or again.plan.is_there):
        guards.require_none(again.refusals)
        run(again)
    return again
