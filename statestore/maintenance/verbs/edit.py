"""Plans and executes the edits of the state of a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statekeeper.statestore.checkpoint.rewrite_journal import Begun
from statekeeper.statestore.contents.differences import Change
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rewrites import edits
from statekeeper.statestore.maintenance.rewrites.edits import Edit as Goal
from statekeeper.statestore.maintenance.rewrites.edits import EditPlan
from statekeeper.statestore.maintenance.rewrites.edits.tables import edit_of
from statekeeper.statestore.maintenance.rewrites.engine import Progress
from statekeeper.statestore.maintenance.verbs.as_json import rewrites as as_json
from statekeeper.statestore.maintenance.verbs.audit import policy_of
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run
from statekeeper.statestore.maintenance.verbs.options import FOR_SPARK, option
from statekeeper.statestore.maintenance.verbs.report import Report, Table, when
from statekeeper.statestore.maintenance.verbs.rewrite import OfStoppedQuery


@dataclass(frozen=True, kw_only=True)
class Edit(OfStoppedQuery[EditPlan]):
    """Delete or correct rows of the state, or complete an interrupted edit. `for_spark`: the release that continues, if
    the checkpoint does not show it. `Revert` of the run reverses it."""

    name = "edit"
    noun = "an edit"
    operator: int = option("Number of the stateful operator whose state is edited.", least=0, launch=0)
    delete: Mapping[str, str] = option(
        "Delete the rows whose key column has this value. Write the value in the same form as for dump --key. "
        "Repeatable: all columns must match.",
        default=dict,
        metavar="COLUMN=VALUE",
    )
    delete_keys: str | None = option(
        "Delete the rows whose keys are in this table: a Parquet, Arrow or CSV file, or the folder of a Delta table.",
        default=None,
        metavar="TABLE",
    )
    upsert: str | None = option(
        "Insert the rows of this table, or replace the rows with the same keys. The table must have all columns of key "
        "and value.",
        default=None,
        metavar="TABLE",
    )
    for_spark: Spark | None = option(**FOR_SPARK)

    def goal(self) -> Goal:
        """Read the tables of the edit. Raises as `edit_of`."""
        return edit_of(self.operator, self.delete, self.delete_keys, self.upsert)

    def plan(self, run: Run) -> EditPlan:
        """Restores each store of the operator below `run.scratch`. Raises as `edits.gather`."""
        goal = self.goal()
        facts = edits.gather(
            run.storage,
            goal,
            self.for_spark,
            executor=run.executor,
            scratch=run.scratch,
            policy=policy_of(run.policies),
            workers=run.workers_here,
        )
        return edits.plan(facts, goal, self.for_spark, workers=run.workers_here)

    def record(self, plan: EditPlan) -> list[Json]:
        return [as_json.of_edit_plan(plan)]

    def report(self, prepared: Prepared[EditPlan, Progress, Begun]) -> Report:
        """Report the number of changed rows by store, and the first of them before and after."""
        plan, run = prepared.plan, self.run_id(prepared)
        lines = []
        if not plan.refusals:
            lines = [
                f"reads {plan.read_bytes:,} bytes; it needs about {plan.seconds:,.0f} s and at most "
                f"{plan.local_bytes:,} bytes of local disk",
            ]
            if plan.is_in_batch:
                lines.append(f"batch {plan.begun} has begun: Spark runs this batch again on the edited state")
        totals = ", ".join(f"{plan.totals[change]:,} {change.value}" for change in Change)
        done: tuple[str, ...] = ("no row of the state has to be changed: nothing to do",)
        if not plan.is_there:
            done = (
                f"edited the state after batch {plan.batch}: {totals}; start the query as before",
                self.way_back(prepared),
            )
        counts = Table(
            "stores",
            when(plan.batch),
            ("store", "rows", *(change.value for change in Change), "bytes read"),
            [
                (one.step.store, one.changes.rows, *(one.changes.counts[c] for c in Change), one.step.read_bytes)
                for one in plan.stores
            ],
        )
        rows = Table(
            "rows",
            f"the first changed rows ({len(plan.first):,})",
            ("store", "family", "change", "key", "before", "after"),
            [
                (store, row.family or "-", row.change.value, row.key or "-", row.before or "-", row.after or "-")
                for store, row in plan.first
            ],
        )
        return Report(
            record={**as_json.of_edit_plan(plan), **({"edited": True, "run": run} if prepared.is_done else {})},
            phase=self.phase(prepared, "edited"),
            facts={
                "rewrite": plan.rewrite.value,
                "runs_batch_again": str(plan.begun) if plan.is_in_batch else "none",
                **({"run": run} if prepared.is_done else {}),
            },
            figures={
                "version": 0 if plan.batch is None else plan.batch + 1,
                "operator": plan.edit.operator,
                "stores": len(plan.stores),
                **{f"{change.value}_rows": plan.totals[change] for change in Change},
                "read_bytes": plan.read_bytes,
                "local_bytes": plan.local_bytes,
                "estimated_seconds": round(plan.seconds, 1),
            },
            tables=(counts, rows) if plan.stores and plan.batch is not None else (),
            lines=(*self.unfinished(plan), *lines) if lines else (),
            done=done,
        )
