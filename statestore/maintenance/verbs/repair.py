"""Plans and executes repairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from statekeeper.statestore.base.errors import CorruptFile, UnsupportedProvider
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.format import names
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rollback import repair
from statekeeper.statestore.maintenance.rollback.repair import (
    Rebuild,
    Relocate,
    RepairAction,
    RepairPlan,
    RepairReason,
    Rewrite,
)
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import Severity
from statekeeper.statestore.maintenance.verbs.as_json import rollback as as_json
from statekeeper.statestore.maintenance.verbs.audit import judged
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Verb, Work
from statekeeper.statestore.maintenance.verbs.options import FOR_SPARK, option
from statekeeper.statestore.maintenance.verbs.report import Report, Table, as_objects


@dataclass(frozen=True, kw_only=True)
class Repair(Verb[RepairPlan, RepairAction, tuple[RepairAction, ...]]):
    """Rewrite files, or move them into quarantine, so that the query can start. `Revert` of the run reverses it.

    `deep` restores the snapshots on local disk.
    """

    name = "repair"
    deep: bool = option(
        "Also read every snapshot in full. This finds SST files whose contents are corrupt.", default=False
    )
    location: str | None = option(
        "URL that Spark uses for the checkpoint after a move or copy, for example s3a://bucket/folder. Default: derived "
        "from ROOT. Required if repair cannot derive it, for example after a copy from S3 to HDFS.",
        default=None,
        metavar="URL",
    )
    for_spark: Spark | None = option(
        **{
            **FOR_SPARK,
            "help": "Spark release that will run the query. Repair then also rewrites the headers of the snapshots that "
            "this release cannot read. If the checkpoint has snapshots of Spark 4.0 in structure V2, the option is "
            "required: give 4.0 to stay on Spark 4.0, or the release of the upgrade.",
        }
    )

    def plan(self, run: Run) -> RepairPlan:
        """If there is nothing to repair, but the query cannot start, the plan asks for the action of the audit. Raises as
        `repair.gather` and `audit.gather`."""
        deep = run.executor if self.deep else None
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

    def execute(self, run: Run, plan: RepairPlan, work: Work[RepairAction]) -> tuple[RepairAction, ...]:
        """Return the executed actions. Raises as `repair.execute`."""
        done: list[RepairAction] = []
        for action in repair.execute(work.storage, plan, run=run.id):
            done.append(action)
            work.tell(action)
            work.lease.require()
        return tuple(done)

    def report(self, prepared: Prepared[RepairPlan, RepairAction, tuple[RepairAction, ...]]) -> Report:
        """Report the action for each file."""
        plan, done = prepared.plan, prepared.made or ()
        asks = () if plan.asks is None else (plan.asks,)
        repaired: tuple[Table, ...] = (
            Table(
                "files",
                f"{counted(len(plan.actions), 'file')} to repair",
                ("action", "file", "reason"),
                [(_does(action), action.path, action.reason.value) for action in plan.actions],
            ),
        )
        end = f"repaired {counted(len(done), 'file')}"
        again = tuple(_written_again(plan))
        if not plan.actions:
            repaired = ()
            end = (
                "nothing to repair: repair does not restore missing or damaged files. To list them with the command that "
                "helps, run: statekeeper audit ROOT --deep"
            )
        return Report(
            record={
                "actions": list(map(as_json.of_repair, plan.actions)),
                "asks": plan.asks,
                "run": prepared.run.id if done else None,
                "done": len(done),
                "refusals": as_objects(prepared.refusals),
            },
            phase=prepared.phase("repaired"),
            facts={"asks": plan.asks or "none", **({"run": prepared.run.id} if done else {})},
            figures={"files": len(plan.actions), "repaired_files": len(done)},
            tables=repaired,
            lines=(*asks, *again),
            made=repaired,
            done=(*asks, *(() if asks and not plan.actions else (end,)), *again),
        )


def _does(action: RepairAction) -> str:
    if isinstance(action, Rewrite):
        return f"write header {action.header}"
    if isinstance(action, Relocate):
        return f"set schema location {action.location}"
    return "write again" if isinstance(action, Rebuild) else "quarantine"


def _written_again(plan: RepairPlan) -> Iterator[str]:
    """Yield the reminder that a query which was rolled back by hand writes the later batches again."""
    paths = [action.path for action in plan.actions if action.reason is RepairReason.ROLLED_BACK_FILES]
    batches = sorted({batch for path in paths if (batch := names.batch_of(path)) is not None})
    if batches:
        first, last = batches[0], batches[-1]
        these = f"batch {first:,}" if first == last else f"batches {first:,} to {last:,}"
        yield (
            f"the query was rolled back, and writes {these} again. Before you start it, remove the rows of {these} from "
            "its sink if they are still there"
        )


def _advised(run: Run) -> str | None:
    """Return the first error of the audit with its action, if the query cannot start as it is and a way out exists."""
    found = judged(audit.gather(run.storage), run.policies)
    first = next((one for one in found.findings if one.severity is Severity.ERROR), None)
    if found.restart.as_is or found.restart.batch is None or first is None:
        return None
    return f"nothing to repair, but {first.place} {first.problem}: {first.meaning}. {first.action}"
