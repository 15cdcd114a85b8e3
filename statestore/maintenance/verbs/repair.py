"""Plans and executes repairs."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.base.errors import CorruptFile, UnsupportedProvider
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rollback import repair
from statekeeper.statestore.maintenance.rollback.bad_snapshots import DeepRead
from statekeeper.statestore.maintenance.rollback.repair import RepairAction, RepairPlan
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import Severity
from statekeeper.statestore.maintenance.verbs import as_json
from statekeeper.statestore.maintenance.verbs.audit import judged
from statekeeper.statestore.maintenance.verbs.contract import Run, Verb, Work


@dataclass(frozen=True, kw_only=True)
class Repair(Verb[RepairPlan, RepairAction, None]):
    """Rewrite files, or move them into quarantine, so that the query can start. `Undo` of the run reverses it.

    `for_spark`: the release that continues; `location`: the URL of the checkpoint as Spark writes it, None to derive it;
    `deep`: read every snapshot in full, on local disk.
    """

    name = "repair"
    for_spark: Spark | None = None
    location: str | None = None
    deep: bool = False

    def plan(self, run: Run) -> RepairPlan:
        """If there is nothing to repair, but the query cannot start, the plan asks for the action of the audit. Raises as
        `repair.gather` and `audit.gather`."""
        deep = DeepRead(run.scratch, run.clock) if self.deep else None
        try:
            planned = repair.plan(repair.gather(run.storage, deep=deep), self.for_spark, self.location)
        except (CorruptFile, UnsupportedProvider):
            advised = _advised(run)
            if advised is None:
                raise
            return RepairPlan((), advised)
        return planned if planned.actions or planned.asks is not None else RepairPlan((), _advised(run))

    def has_work(self, plan: RepairPlan) -> bool:
        return bool(plan.actions)

    def record(self, plan: RepairPlan) -> list[Json]:
        return list(map(as_json.of_repair, plan.actions))

    def record_step(self, step: RepairAction) -> Json:
        return as_json.of_repair(step)

    def execute(self, run: Run, plan: RepairPlan, work: Work[RepairAction]) -> None:
        """Raises as `repair.execute`."""
        for action in repair.execute(work.storage, plan, run=run.id):
            work.tell(action)
            work.lease.require()


def _advised(run: Run) -> str | None:
    """Return the first error of the audit with its action, if the query cannot start as it is and a way out exists."""
    found = judged(audit.gather(run.storage), run.policies)
    first = next((one for one in found.findings if one.severity is Severity.ERROR), None)
    if found.restart.as_is or found.restart.batch is None or first is None:
        return None
    return f"nothing to repair, but {first.file} {first.problem}: {first.meaning}. {first.action}"
