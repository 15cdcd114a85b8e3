"""Plans, executes and reverses the rewrites of native state: a rescale, and a conversion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from statestore import switch_journal
from statestore.errors import RefusedAsUnsafe
from statestore.format.sparks import Spark
from statestore.maintenance import rewrites, runs
from statestore.maintenance.config import Policies
from statestore.maintenance.passes import guards
from statestore.maintenance.passes.audit import policy_of
from statestore.maintenance.passes.guards import Refusals
from statestore.maintenance.passes.maintainer import Maintainer
from statestore.maintenance.pool import WORKERS
from statestore.maintenance.quiet import require_stopped
from statestore.maintenance.rewrites import Goal, RewritePlan
from statestore.maintenance.snapshot import MEMORY_BYTES
from statestore.maintenance.switchover import Machine, ProgressCallback
from statestore.storage import Storage
from statestore.switch_journal import Begun, RewriteKind


@dataclass(frozen=True)
class PreparedRewrite:
    """A plan of a rewrite, which may have refusals, and the guards that block it. `spark`: as in `plan`."""

    plan: RewritePlan
    policies: Policies
    goal: Goal
    spark: Spark | None
    refusals: Refusals

    @property
    def may_start(self) -> bool:
        """Return whether the plan has work and no refusal."""
        return not (self.plan.refusals or self.plan.is_there)


def plan(
    storage: Storage,
    policies: Policies,
    goal: Goal,
    spark: Spark | None = None,
    *,
    scratch: Path,
) -> PreparedRewrite:
    """Plan a rewrite. Read-only. `spark`: the release that continues, if the checkpoint does not
    show it. Raises as `rewrites.gather`."""
    facts = rewrites.gather(storage, scratch=scratch, policy=policy_of(policies))
    planned = rewrites.plan(facts, goal, spark)
    return PreparedRewrite(planned, policies, goal, spark, guards.refusals(guards.rewrites(storage, policies)))


def execute(
    storage: Storage,
    prepared: PreparedRewrite,
    by: Maintainer,
    progress: ProgressCallback,
    *,
    run: str,
    stopped: bool,
    scratch: Path,
    workers: int = WORKERS,
    memory_bytes: int = MEMORY_BYTES,
) -> PreparedRewrite:
    """Execute a rewrite, or complete an interrupted one. `stopped`: a person confirms that the query is stopped.

    Returns the executed plan, which is made again after the query is verified as stopped. If that plan must not start, no
    file is changed. Raises the first refusal; `RefusedAsUnsafe` while the query runs; as `runs.rewrite`.
    """
    if not prepared.may_start:
        return prepared
    guards.require_none(prepared.refusals)
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    # The query may have been running when the first plan was made.
    again = plan(storage, prepared.policies, prepared.goal, prepared.spark, scratch=scratch)
    if again.may_start:
        runs.rewrite(
            storage,
            again.plan,
            progress,
            run=run,
            holder=by.holder,
            machine=Machine(scratch=scratch, clock=by.clock, ids=by.ids, workers=workers, memory_bytes=memory_bytes),
            policy=policy_of(prepared.policies),
        )
    return again


def abort(
    storage: Storage,
    policies: Policies,
    rewrite: RewriteKind,
    by: Maintainer,
    progress: ProgressCallback,
    *,
    run: str,
    stopped: bool,
) -> Begun:
    """Reverse a half-done rewrite of this kind, and return it. Raises as `execute` and `runs.abort_rewrite`;
    `RefusedAsUnsafe` if no rewrite is half done."""
    journal = switch_journal.open_journal(storage)
    if journal is None:
        raise RefusedAsUnsafe(
            f"no {rewrite.value} is interrupted",
            path=storage.url,
            hint=f"to return to the state before a completed {rewrite.value}, run: statekeeper rewind ROOT --to-batch N",
        )
    if journal.begun.rewrite is not rewrite:
        switch_journal.require_none(storage)
    guards.require_none(guards.refusals(guards.rewrites(storage, policies)))
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    runs.abort_rewrite(storage, journal, progress, run=run, holder=by.holder, clock=by.clock)
    return journal.begun
