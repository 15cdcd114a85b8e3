"""Plans and executes claims of the roots of Python jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rollback import claim
from statekeeper.statestore.maintenance.rollback.claim import ClaimPlan
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Verb, Work
from statekeeper.statestore.maintenance.verbs.options import option
from statekeeper.statestore.maintenance.verbs.report import Report, as_objects
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Claim(Verb[ClaimPlan, None, None]):
    """Make another query the owner of a root."""

    name = "claim"
    checkpoint: str | None = option(
        "The checkpoint of the query that becomes the owner. If the folder is empty, claim writes a new checkpoint there. "
        "The job then continues with the batch after the newest committed batch of ROOT.",
        default=None,
        metavar="CHECKPOINT",
        is_location=True,
    )
    query_id: str | None = option(
        "The id of the query that becomes the owner. If --checkpoint contains a checkpoint, omit this option: claim reads "
        "the id from the checkpoint. If --checkpoint is an empty folder, the default is the id of the present owner.",
        default=None,
        metavar="UUID",
        is_query_id=True,
    )

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

    def report(self, prepared: Prepared[ClaimPlan, None, None]) -> Report:
        """Report the former and the new owner, and the files of a new checkpoint."""
        plan, is_done = prepared.plan, prepared.is_done or prepared.plan.is_done
        paths = [path for path, _ in plan.files]
        lines = [f"owner: query {plan.former} -> query {plan.query}"]
        if paths:
            made = "made" if is_done else "to make"
            lines.append(f"checkpoint {made} at batch {plan.newest:,}: {', '.join(paths)}")
        if plan.mirror_of is not None:
            lines.append(
                f"this root is a mirror of {plan.mirror_of}. Stop the schedule of that mirror: after the claim, its runs "
                "fail with mirror_started"
            )
        done = [*lines, "the query owns the state root"]
        if plan.query != plan.former:
            done.append(f"start the job once with DeltaSink(..., continue_at_batch={plan.newest + 1})")
        return Report(
            record={
                "former_query_id": plan.former,
                "query_id": plan.query,
                "newest_batch": plan.newest,
                "files": paths,
                "refusals": as_objects(prepared.refusals),
                "claimed": is_done,
                "mirror_of": plan.mirror_of,
            },
            phase=prepared.phase("claimed"),
            facts={
                "former_query_id": plan.former,
                "query_id": plan.query,
                "files": ", ".join(paths) or "none",
                "mirror_of": plan.mirror_of or "none",
            },
            figures={"newest_batch": plan.newest},
            lines=tuple(lines),
            done=tuple(done),
        )
