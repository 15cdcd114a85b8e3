"""Plans and executes a switchover between the structures V1 and V2."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import Begun
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rewrites import engine, switchover
from statekeeper.statestore.maintenance.rewrites.engine import Progress
from statekeeper.statestore.maintenance.rewrites.switchover import SwitchPlan
from statekeeper.statestore.maintenance.verbs.as_json import rewrites as as_json
from statekeeper.statestore.maintenance.verbs.audit import policy_of
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run
from statekeeper.statestore.maintenance.verbs.options import FOR_SPARK, option
from statekeeper.statestore.maintenance.verbs.report import Report, Table, start_lines, when
from statekeeper.statestore.maintenance.verbs.rewrite import OfStoppedQuery


@dataclass(frozen=True, kw_only=True)
class Switch(OfStoppedQuery[SwitchPlan]):
    """Move a checkpoint to the structure `to`, or complete an interrupted switchover. `for_spark`: the release that
    continues, if the checkpoint does not show it."""

    name = "switch"
    noun, reverses = "a switchover", "rolls it back"
    to: Structure = option(
        "Target structure of the checkpoint. Required without --abort.",
        choices={structure.value: structure for structure in Structure},
        launch=Structure.V2,
    )
    for_spark: Spark | None = option(**FOR_SPARK)

    def plan(self, run: Run) -> SwitchPlan:
        """Raises as `engine.gather`."""
        gathered = engine.gather(run.storage, scratch=run.scratch, policy=policy_of(run.policies))
        return switchover.plan(gathered, self.to, self.for_spark, workers=run.workers_here)

    def is_confirmed(self, run: Run, plan: SwitchPlan) -> bool:
        # An own job neither starts on a half-done switchover nor starts a batch during one. But a job that runs a batch
        # looks like one that died in the batch, and would commit in the old structure.
        return run.stopped or (plan.origin is Origin.OWN and not plan.is_in_batch)

    def record(self, plan: SwitchPlan) -> list[Json]:
        return [as_json.of_switch_plan(plan)]

    def report(self, prepared: Prepared[SwitchPlan, Progress, Begun]) -> Report:
        """Report the step of each store, and how to start the query."""
        plan = prepared.plan
        stores = f"{when(plan.batch)}, to {plan.to.value}: {counted(len(plan.stores), 'store')}"
        lines = (
            f"reads {plan.read_bytes:,} bytes, writes about {plan.write_bytes:,} bytes; the replays need about "
            f"{plan.seconds:,.0f} s and at most {plan.local_bytes:,} bytes of local disk",
            f"{len(plan.first) + len(plan.last):,} files are quarantined; {plan.stays_files:,} files of the old "
            f"structure, {plan.stays_bytes:,} bytes, are kept so that the switch can be reversed",
        )
        start = start_lines(plan.to)
        if plan.origin is Origin.OWN:
            start = (f"start the job with start(..., {plan.start_with})",)
        done = f"switched to {plan.to.value}"
        if plan.is_there:
            done = f"the checkpoint already has structure {plan.to.value}: nothing to do"
        return Report(
            record={**as_json.of_switch_plan(plan), **({"switched": True} if prepared.is_done else {})},
            phase=self.phase(prepared, "switched"),
            facts={"to": plan.to.value, "start_with": plan.start_with},
            figures={
                "version": 0 if plan.batch is None else plan.batch + 1,
                "stores": len(plan.stores),
                "read_bytes": plan.read_bytes,
                "write_bytes": plan.write_bytes,
                "local_bytes": plan.local_bytes,
                "quarantined_files": len(plan.first) + len(plan.last),
                "remaining_files": plan.stays_files,
            },
            tables=(
                Table(
                    "steps",
                    stores,
                    ("store", "batch", "source", "bytes read", "bytes written"),
                    [
                        (step.store, str(step.head.version - 1), step.explained, step.read_bytes, step.write_bytes)
                        for step in plan.stores
                    ],
                ),
            ),
            lines=(*self.unfinished(plan), *lines, f"afterwards, {start[0]}", *start[1:]),
            done=(done, *start),
        )
