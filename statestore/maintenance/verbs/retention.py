"""Plans retention, compares the plan with the audit, and executes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from statekeeper.statestore.base.errors import CorruptFile, StatekeeperError
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.upkeep import audit, retention
from statekeeper.statestore.maintenance.upkeep.audit import Audit
from statekeeper.statestore.maintenance.upkeep.retention import (
    Deleted,
    DeletionOutcome,
    Forecast,
    RetentionFacts,
    RetentionPlan,
)
from statekeeper.statestore.maintenance.verbs import as_json, contract, guards
from statekeeper.statestore.maintenance.verbs.audit import judged
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Verb, Work
from statekeeper.statestore.maintenance.verbs.losses import Losses, losses


@dataclass(frozen=True, kw_only=True)
class PlannedRetention:
    """A retention plan and its facts.

    before          the audit that must report no errors
    losses          lost versions, and versions that the deletions would lose
    forecast        the files that the plan deletes now, and when the other files can be deleted
    needs_stopped   whether the plan deletes files that a running Spark query may still reference
    """

    mode: Mode
    before: Audit
    losses: Losses
    gathered: RetentionFacts
    plan: RetentionPlan
    forecast: Forecast
    needs_stopped: bool


@dataclass(frozen=True, kw_only=True)
class Retention(Verb[PlannedRetention, Deleted, tuple[Deleted, ...]]):
    """Delete the files that no retained version needs.

    `everything`: gather all stores, not only the changed ones. If the query is stopped, the plan then also deletes tables
    that a running Spark query may still reference. `accept_loss`: errors of the audit do not block the plan; see `losses`.

    *Danger*: it deletes without a prompt. *Guarantee*: as `retention.execute`.
    """

    name = "gc"
    everything: bool = False
    accept_loss: bool = False

    def plan(self, run: Run) -> PlannedRetention:
        """Plan, and audit the checkpoint, because an earlier audit may be outdated. Raises as `audit.gather` and
        `retention.gather`."""
        policy, stopped = run.policies.retention, self.everything and run.stopped
        facts = audit.gather(run.storage)
        before = judged(facts, run.policies)
        gathered = retention.gather(run.storage, policy, clock=run.clock, everything=self.everything)
        planned = retention.plan(gathered, policy, stopped=stopped)
        return PlannedRetention(
            mode=run.policies.mode_for(planned.origin),
            before=before,
            losses=losses(facts, before, planned),
            gathered=gathered,
            plan=planned,
            forecast=retention.forecast(gathered, planned, policy),
            needs_stopped=stopped and planned.origin is Origin.NATIVE,
        )

    def refusals(self, run: Run, plan: PlannedRetention) -> Iterable[StatekeeperError]:
        return guards.refusals(None if self.accept_loss else guards.is_whole(plan.before))

    def allowed(self, run: Run, plan: PlannedRetention) -> StatekeeperError | None:
        return guards.deletes(run.storage, plan.mode)

    def needs_stopped(self, plan: PlannedRetention) -> bool:
        return plan.needs_stopped

    def record(self, plan: PlannedRetention) -> list[Json]:
        return as_json.of_retention_plan(plan.plan)

    def record_step(self, step: Deleted) -> Json:
        return as_json.of_deleted(step)

    def execute(self, run: Run, plan: PlannedRetention, work: Work[Deleted]) -> tuple[Deleted, ...]:
        """Read the bases, delete the files, and tell each request. Raises as `retention.execute`."""
        done: list[Deleted] = []
        steps = retention.execute(
            work.storage,
            plan.plan,
            run=run.id,
            lease=work.lease,
            clock=run.clock,
            scratch=run.scratch,
            workers=run.workers,
        )
        for step in steps:
            done.append(step)
            work.tell(step)
        retention.remember(work.storage, plan.gathered, plan.plan, done)
        return tuple(done)


def unattended(run: Run) -> Prepared[PlannedRetention, Deleted, tuple[Deleted, ...]]:
    """As `contract.unattended`; raises `CorruptFile` if a base is damaged, and then nothing is deleted."""
    finished = contract.unattended(Retention(), run)
    for step in finished.made or ():
        if step.outcome is DeletionOutcome.DAMAGED:
            raise CorruptFile(f"{step.outcome.value}: {step.detail}", path=str(step.store))
    return finished
