"""Plans, executes and rolls back a switchover between the structures V1 and V2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.contents.quiet import require_stopped
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites import switchover
from statekeeper.statestore.maintenance.rewrites.switchover import Begun, ProgressCallback, SwitchPlan
from statekeeper.statestore.maintenance.upkeep.snapshot import MEMORY_BYTES
from statekeeper.statestore.maintenance.verbs import guards, runs
from statekeeper.statestore.maintenance.verbs import stopped as stopped_query
from statekeeper.statestore.maintenance.verbs.audit import policy_of
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True)
class PreparedSwitch:
    """A switchover plan, and what blocks it: the guards and the refusals of the plan. `spark`: as in `plan`."""

    plan: SwitchPlan
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
    to: Structure,
    spark: Spark | None,
    *,
    scratch: Path,
    workers: int = WORKERS,
    clock: Clock | None = None,
) -> PreparedSwitch:
    """Plan the switchover to the structure `to`. Read-only. `spark`: the release that continues, if the checkpoint does not
    show it. `clock`: of the process that executes it; None for that of the machine. Raises as `switchover.gather`."""
    gathered = switchover.gather(storage, scratch=scratch, policy=policy_of(policies))
    planned = switchover.plan(gathered, to, spark, workers=workers)
    return PreparedSwitch(planned, policies, spark, stopped_query.refusals(storage, policies, planned, clock))


def execute(
    storage: Storage,
    prepared: PreparedSwitch,
    by: Maintainer,
    progress: ProgressCallback,
    *,
    run: str,
    stopped: bool,
    scratch: Path,
    workers: int = WORKERS,
    memory_bytes: int = MEMORY_BYTES,
) -> PreparedSwitch:
    """Execute a switchover, or complete an interrupted one. `stopped`: a person confirms that the query is stopped.

    Returns the executed plan, which is made again after the query is verified as stopped. If that plan must not start, no
    file is changed. Raises the first refusal; `RefusedAsUnsafe` while the query runs; as `runs.switch`.
    """
    first = prepared.plan

    def run_plan(ready: PreparedSwitch) -> None:
        machine = by.machine(scratch=scratch, workers=workers, memory_bytes=memory_bytes)
        policy = policy_of(ready.policies)
        runs.switch(storage, ready.plan, progress, run=run, holder=by.holder, machine=machine, policy=policy)

    return stopped_query.execute(
        storage,
        prepared,
        by,
        # An own job neither starts on a half-done switchover nor starts a batch during one. But a job that runs a batch
        # looks like one that died in the batch, and would commit in the old structure.
        stopped=stopped or (first.origin is Origin.OWN and not first.is_in_batch),
        plan_again=lambda: plan(
            storage,
            prepared.policies,
            first.to,
            prepared.spark,
            scratch=scratch,
            workers=workers,
            clock=by.clock,
        ),
        run=run_plan,
    )


def abort(
    storage: Storage, policies: Policies, by: Maintainer, progress: ProgressCallback, *, run: str, stopped: bool
) -> Begun:
    """Roll back a half-done switchover, and return it. Raises as `execute` and `runs.abort_switch`; `RefusedAsUnsafe` if no
    switchover is half done."""
    journal = switchover.open_journal(storage)
    if journal is None:
        raise RefusedAsUnsafe(
            "there is no interrupted switchover to roll back",
            path=storage.url,
            hint="to reverse a completed switchover, run switch with --to",
        )
    if journal.begun.rewrite is not RewriteKind.SWITCH:
        rewrite_journal.require_none(storage)
    guards.require_none(guards.refusals(guards.rewrites(storage, policies)))
    origin = origin_of(storage)
    require_stopped(storage, confirmed=stopped or origin is Origin.OWN, clock=by.clock, seconds=by.quiet_seconds)
    runs.abort_switch(storage, journal, progress, run=run, holder=by.holder, clock=by.clock)
    return journal.begun
