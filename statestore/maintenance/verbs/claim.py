"""Plans and executes claims of the roots of Python jobs."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.contents.quiet import require_stopped
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rollback import claim
from statekeeper.statestore.maintenance.rollback.claim import ClaimPlan
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.maintenance.verbs.runs import recorded
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class PreparedClaim:
    """A plan of a claim, and the reasons that block it."""

    plan: ClaimPlan
    refusals: Refusals


def plan(
    root: Storage, checkpoint: Storage | None, policies: Policies, by: Maintainer, *, query_id: str | None = None
) -> PreparedClaim:
    """Plan which query becomes the owner of a root. Reads only.

    `checkpoint`: that of the owner; an empty folder gets a new checkpoint. `query_id`: the id of the owner, if it has no
    checkpoint yet; None for the present one. Raises as `claim.gather`.
    """
    planned = claim.plan(claim.gather(root, checkpoint), query_id=query_id)
    by_guards = (guards.rewrites(root, policies), guards.half_switched(root), guards.unheld(root, by.clock))
    found = guards.refusals(*(() if planned.is_done else by_guards), *planned.refusals)
    return PreparedClaim(plan=planned, refusals=found)


def execute(
    root: Storage, checkpoint: Storage | None, prepared: PreparedClaim, by: Maintainer, *, run: str, stopped: bool
) -> None:
    """Execute a claim. `stopped`: a person confirms that the former query is stopped.

    The plan is made again under the lease. Raises the first refusal; `RefusedAsUnsafe` while the former query runs, and if
    the plan has changed; as `claim.execute`, `RootHeld`, `HalfSwitched`.
    """
    guards.require_none(prepared.refusals)
    if prepared.plan.is_done:
        return
    require_stopped(root, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    with lease.held(root, "claim", run=run, holder=by.holder, clock=by.clock) as held:
        rewrite_journal.require_none(root)
        # The job may have been running when the first plan was made.
        planned = claim.plan(claim.gather(root, checkpoint), query_id=prepared.plan.query)
        guards.require_none(planned.refusals)
        claim.require_same(root, prepared.plan, planned)
        record = {"former_query_id": planned.former, "query_id": planned.query, "batch": planned.newest}
        with recorded(root, "claim", run, [record], by.clock) as done:
            guarded = None if checkpoint is None else held.guarded(checkpoint)
            claim.execute(held.storage, guarded, planned, by=by.holder, now_seconds=by.clock.now_seconds())
            done.append({"claimed": planned.query})
