"""Repairs: planned, carried out, and undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from statestore.format.sparks import Spark
from statestore.maintenance import repair, runs
from statestore.maintenance.bad_snapshots import DeepRead
from statestore.maintenance.config import Policies
from statestore.maintenance.passes import guards
from statestore.maintenance.passes.guards import Refusals
from statestore.maintenance.passes.maintainer import Maintainer
from statestore.maintenance.quiet import require_stopped
from statestore.maintenance.repair import RepairAction, RepairPlan
from statestore.storage import Storage


@dataclass(frozen=True)
class PreparedRepair:
    """The plan and the guards that block it. `spark`, `location` and `deep`: as `prepare`."""

    plan: RepairPlan
    policies: Policies
    spark: Spark | None
    location: str | None
    refusals: Refusals
    deep: DeepRead | None = None


def prepare(
    storage: Storage,
    policies: Policies,
    spark: Spark | None,
    location: str | None = None,
    *,
    deep: DeepRead | None = None,
) -> PreparedRepair:
    """Plan which files a repair rewrites or moves into quarantine. Read-only. `spark`: the version that continues;
    `location`: the checkpoint's URL as Spark writes it, None to conclude it. `deep`: read every snapshot in full, on
    local disk. Raises as `repair.gather`."""
    plan = repair.plan(repair.gather(storage, deep=deep), spark, location)
    found = guards.refusals(guards.rewrites(storage, policies), guards.half_switched(storage))
    return PreparedRepair(plan, policies, spark, location, found, deep)


def execute(
    storage: Storage,
    prepared: PreparedRepair,
    by: Maintainer,
    *,
    run: str,
    stopped: bool,
    starting: Callable[[], None] = lambda: None,
    told: Callable[[RepairAction], None] = lambda action: None,
) -> PreparedRepair:
    """Carry out what a repair plans. `stopped`: a person confirms that the query is stopped. `starting` is called once
    nothing blocks it, `told` after each file. Returns the plan that was carried out: it is made anew. `undo` with the id
    `run` takes it back.

    Raises the first refusal; `RefusedAsUnsafe` while the query runs; as `runs.repair`.
    """
    if not prepared.plan.actions:
        return prepared
    guards.require_none(prepared.refusals)
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    # The first plan may be of a query that was at work.
    again = prepare(storage, prepared.policies, prepared.spark, prepared.location, deep=prepared.deep)
    guards.require_none(again.refusals)
    starting()
    for action in runs.repair(storage, again.plan, run=run, holder=by.holder, clock=by.clock):
        told(action)
    return again


def undo(storage: Storage, policies: Policies, undone: str, by: Maintainer, *, run: str, stopped: bool) -> list[str]:
    """Put back all files that the run `undone` has moved into quarantine; returns their paths. `stopped`: as `execute`.
    Raises the first refusal; `RefusedAsUnsafe` while the query runs; as `runs.undo_repair`."""
    guards.require_none(guards.refusals(guards.rewrites(storage, policies), guards.half_switched(storage)))
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    return list(runs.undo_repair(storage, undone, run=run, holder=by.holder, clock=by.clock))
