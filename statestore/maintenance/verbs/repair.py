"""Plans, executes and undoes repairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import CorruptFile, UnsupportedProvider
from statekeeper.statestore.contents.quiet import require_stopped
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.rollback import repair
from statekeeper.statestore.maintenance.rollback.bad_snapshots import DeepRead
from statekeeper.statestore.maintenance.rollback.repair import RepairAction, RepairPlan
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import Severity
from statekeeper.statestore.maintenance.verbs import guards, runs
from statekeeper.statestore.maintenance.verbs.audit import judged
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class PreparedRepair:
    """A repair plan and the guards that block it. For `spark`, `location` and `deep`, see `plan`."""

    plan: RepairPlan
    policies: Policies
    spark: Spark | None
    location: str | None
    refusals: Refusals
    deep: DeepRead | None = None


def plan(
    storage: Storage,
    policies: Policies,
    spark: Spark | None,
    location: str | None = None,
    *,
    deep: DeepRead | None = None,
    clock: Clock | None = None,
) -> PreparedRepair:
    """Plan which files a repair rewrites or moves into quarantine. Read-only. `clock`: of the process that executes it;
    None for that of the machine.

    `spark`: the release that continues; `location`: the URL of the checkpoint as Spark writes it, None to derive it;
    `deep`: read every snapshot in full, on local disk. If there is nothing to repair, but the query cannot start, the plan
    asks for the action of the audit. Raises as `repair.gather` and `audit.gather`.
    """
    try:
        planned = repair.plan(repair.gather(storage, deep=deep), spark, location)
    except (CorruptFile, UnsupportedProvider):
        advised = _advised(storage, policies)
        if advised is None:
            raise
        planned = RepairPlan((), advised)
    if not planned.actions and planned.asks is None:
        planned = RepairPlan((), _advised(storage, policies))
    by_guards = (guards.rewrites(storage, policies), guards.half_switched(storage), guards.unheld(storage, clock))
    found = guards.refusals(*(by_guards if planned.actions else ()))
    return PreparedRepair(plan=planned, policies=policies, spark=spark, location=location, refusals=found, deep=deep)


def _advised(storage: Storage, policies: Policies) -> str | None:
    """Return the first error of the audit with its action, if the query cannot start as it is and a way out exists."""
    found = judged(audit.gather(storage), policies)
    first = next((one for one in found.findings if one.severity is Severity.ERROR), None)
    if found.restart.as_is or found.restart.batch is None or first is None:
        return None
    return f"nothing to repair, but {first.file} {first.problem}: {first.meaning}. {first.action}"


def execute(
    storage: Storage,
    prepared: PreparedRepair,
    by: Maintainer,
    *,
    run: str,
    stopped: bool,
    starting: Callable[[], None] = lambda: None,
    progress: Callable[[RepairAction], None] = lambda action: None,
) -> PreparedRepair:
    """Execute a repair. `stopped`: a person confirms that the query is stopped.

    `starting` is called when no guard blocks the repair, `progress` after each file. Returns the executed plan, which is
    made again after the query is verified as stopped. `undo` with the id `run` reverses the repair.

    Raises the first refusal; `RefusedAsUnsafe` while the query runs; as `runs.repair`.
    """
    if not prepared.plan.actions:
        return prepared
    guards.require_none(prepared.refusals)
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    # The query may have been running when the first plan was made.
    again = plan(storage, prepared.policies, prepared.spark, prepared.location, deep=prepared.deep, clock=by.clock)
    guards.require_none(again.refusals)
    starting()
    for action in runs.repair(storage, again.plan, run=run, holder=by.holder, clock=by.clock):
        progress(action)
    return again


def undo(storage: Storage, policies: Policies, undone: str, by: Maintainer, *, run: str, stopped: bool) -> list[str]:
    """Restore all files that the run `undone` moved into quarantine; returns their paths. `stopped`: as in `execute`.

    Raises the first refusal; `RefusedAsUnsafe` while the query runs; as `runs.undo_repair`."""
    guards.require_none(guards.refusals(guards.rewrites(storage, policies), guards.half_switched(storage)))
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    return list(runs.undo_repair(storage, undone, run=run, holder=by.holder, clock=by.clock))
