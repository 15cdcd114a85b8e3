"""Plans and executes claims of the roots of Python jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rollback import claim
from statekeeper.statestore.maintenance.rollback.claim import ClaimPlan
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.contract import Run, Verb, Work
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Claim(Verb[ClaimPlan, None, None]):
    """Make another query the owner of a root.

    `checkpoint`: that of the owner; an empty folder gets a new checkpoint. `query_id`: the id of the owner, if it has no
    checkpoint yet; None for the present one.
    """

    name = "claim"
    checkpoint: str | None = None
    query_id: str | None = None

    def plan(self, run: Run) -> ClaimPlan:
        """Raises as `claim.gather`."""
        return claim.plan(claim.gather(run.storage, self._other(run)), query_id=self.query_id)

    def plan_again(self, run: Run, first: ClaimPlan) -> ClaimPlan:
        """Raises `RefusedAsUnsafe` if the plan is no longer the confirmed one: the job may have been running."""
        again = claim.plan(claim.gather(run.storage, self._other(run)), query_id=first.query)
        guards.require_none(again.refusals)
        claim.require_same(run.storage, first, again)
        return again

    def _other(self, run: Run) -> Storage | None:
        return None if self.checkpoint is None else run.open_other(self.checkpoint)

    def has_work(self, plan: ClaimPlan) -> bool:
        return not plan.is_done or bool(plan.refusals)

    def refusals(self, run: Run, plan: ClaimPlan) -> Iterable[StatekeeperError]:
        return plan.refusals

    def record(self, plan: ClaimPlan) -> list[Json]:
        return [{"former_query_id": plan.former, "query_id": plan.query, "batch": plan.newest}]

    def execute(self, run: Run, plan: ClaimPlan, work: Work[None]) -> None:
        """Raises as `claim.execute`; `RefusedAsUnsafe` if the plan is not the same under the lease."""
        planned, other = self.plan_again(run, plan), self._other(run)
        guarded = None if other is None else work.lease.guarded(other)
        claim.execute(work.storage, guarded, planned, by=run.by.holder, now_seconds=run.clock.now_seconds())
        work.done.append({"claimed": planned.query})
