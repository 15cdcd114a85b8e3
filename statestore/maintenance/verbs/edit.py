"""Plans, executes and reverses the edits of the state of a query."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.rewrites import edits
from statekeeper.statestore.maintenance.rewrites.edits import Edit, EditPlan
from statekeeper.statestore.maintenance.rewrites.switchover import Begun, ProgressCallback
from statekeeper.statestore.maintenance.upkeep.snapshot import MEMORY_BYTES
from statekeeper.statestore.maintenance.verbs import rewrite, runs
from statekeeper.statestore.maintenance.verbs import stopped as stopped_query
from statekeeper.statestore.maintenance.verbs.audit import policy_of
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True)
class PreparedEdit:
    """A plan of an edit, and what blocks it: the guards and the refusals of the plan. `spark`: as in `plan`."""

    plan: EditPlan
    policies: Policies
    spark: Spark | None
    refusals: Refusals

    @property
    def may_start(self) -> bool:
        """Return whether the plan has work and nothing blocks it."""
        return stopped_query.may_start(self)


def plan(
    storage: Storage,
    policies: Policies,
    edit: Edit,
    by: Maintainer,
    spark: Spark | None = None,
    *,
    scratch: Path,
    workers: int = WORKERS,
) -> PreparedEdit:
    """Plan an edit. Read-only; it restores each store of the operator below `scratch`. `spark`: the release that continues,
    if the checkpoint does not show it. Raises as `edits.gather`."""
    policy = policy_of(policies)
    facts = edits.gather(
        storage, edit, spark, scratch=scratch, clock=by.clock, ids=by.ids, policy=policy, workers=workers
    )
    planned = edits.plan(facts, edit, spark, workers=workers)
    return PreparedEdit(planned, policies, spark, stopped_query.refusals(storage, policies, planned, by.clock))


def execute(
    storage: Storage,
    prepared: PreparedEdit,
    by: Maintainer,
    progress: ProgressCallback,
    *,
    run: str,
    stopped: bool,
    scratch: Path,
    workers: int = WORKERS,
    memory_bytes: int = MEMORY_BYTES,
) -> PreparedEdit:
    """Execute an edit, or complete an interrupted one. `stopped`: a person confirms that the query is stopped.

    Returns the executed plan, which is made again after the query is verified as stopped. If that plan must not start, no
    file is changed. `undo` with the id `run` reverses the edit. Raises the first refusal; `RefusedAsUnsafe` while the query
    runs; as `runs.rewrite`.
    """

    def run_plan(ready: PreparedEdit) -> None:
        machine = by.machine(scratch=scratch, workers=workers, memory_bytes=memory_bytes)
        policy = policy_of(ready.policies)
        runs.rewrite(storage, ready.plan, progress, run=run, holder=by.holder, machine=machine, policy=policy)

    return stopped_query.execute(
        storage,
        prepared,
        by,
        stopped=stopped,
        plan_again=lambda: plan(
            storage, prepared.policies, prepared.plan.edit, by, prepared.spark, scratch=scratch, workers=workers
        ),
        run=run_plan,
    )


def undo(
    storage: Storage,
    policies: Policies,
    undone: str,
    by: Maintainer,
    progress: ProgressCallback,
    *,
    run: str,
    stopped: bool,
) -> Begun:
    """Reverse the completed edit of the run `undone`. Raises as `verbs.rewrite.undo`."""
    return rewrite.undo(storage, policies, RewriteKind.EDIT, undone, by, progress, run=run, stopped=stopped)
