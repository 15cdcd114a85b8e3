"""Plans, executes and reverses the rewrites of all stores: a rescale, a conversion, a load, and a schema evolution.
Reverses a half-done edit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, RewriteKind
from statekeeper.statestore.contents.quiet import require_stopped
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.rewrites import engine
from statekeeper.statestore.maintenance.rewrites.engine import FileSinkPlan, Goal, RewritePlan
from statekeeper.statestore.maintenance.rewrites.engine import file_sink as file_sinks
from statekeeper.statestore.maintenance.rewrites.switchover import ProgressCallback
from statekeeper.statestore.maintenance.upkeep.snapshot import MEMORY_BYTES
from statekeeper.statestore.maintenance.verbs import guards, runs
from statekeeper.statestore.maintenance.verbs import stopped as stopped_query
from statekeeper.statestore.maintenance.verbs.audit import policy_of
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.storage import Storage, open_storage

OpenSink = Callable[[str], Storage]
"""Opens the output folder of a file sink by its URL."""


_WAYS_BACK = {
    RewriteKind.SWITCH: "to reverse a completed switch, run: statekeeper switch ROOT --to",
    RewriteKind.RESCALE: "to return to the state before a completed rescale, run: statekeeper rewind ROOT --to-batch N",
    RewriteKind.CONVERT: "to reverse a completed conversion to RocksDB, run: statekeeper convert ROOT --to hdfs",
    RewriteKind.EDIT: "to reverse a completed edit, run: statekeeper edit ROOT --undo RUN --confirm-stopped",
    RewriteKind.LOAD: "to reverse a completed load, run: statekeeper load ROOT --undo RUN --confirm-stopped",
    RewriteKind.EVOLVE: "to reverse a completed schema evolution, run: statekeeper evolve ROOT --undo RUN "
    "--confirm-stopped",
}


@dataclass(frozen=True, kw_only=True)
class PreparedRewrite:
    """A plan of a rewrite, and what blocks it: the guards and the refusals of the plan. The other fields: see `plan`."""

    plan: RewritePlan
    policies: Policies
    goal: Goal
    spark: Spark | None
    file_sink: str | None
    open_sink: OpenSink
    refusals: Refusals

    @property
    def may_start(self) -> bool:
        """Return whether the plan has work and nothing blocks it."""
        return stopped_query.may_start(self)


def plan(
    storage: Storage,
    policies: Policies,
    goal: Goal,
    spark: Spark | None = None,
    *,
    scratch: Path,
    file_sink: str | None = None,
    open_sink: OpenSink = open_storage,
    clock: Clock | None = None,
) -> PreparedRewrite:
    """Plan a rewrite. Reads only. `clock`: of the process that executes it; None for that of the machine.

    `spark`: the release that continues, if the checkpoint does not show it. `file_sink`: the output folder, if the query
    writes files with Spark's file sink; not needed to complete an interrupted rewrite. Raises as `rewrites.gather` and
    `rewrites.file_sink.plan`; `RefusedAsUnsafe` if the interrupted rewrite has another file sink.
    """
    facts = engine.gather(storage, scratch=scratch, policy=policy_of(policies), of_load=isinstance(goal, engine.Load))
    planned = engine.plan(facts, goal, spark)
    return PreparedRewrite(
        plan=replace(planned, file_sink=_plan_sink(planned, file_sink, open_sink)),
        policies=policies,
        goal=goal,
        spark=spark,
        file_sink=file_sink,
        open_sink=open_sink,
        refusals=stopped_query.refusals(storage, policies, planned, clock),
    )


def _plan_sink(planned: RewritePlan, url: str | None, open_sink: OpenSink) -> FileSinkPlan | None:
    """Plan the entry in the log of the file sink; None without a sink, and for a plan that must not start."""
    if planned.half_done is not None:
        begun = planned.half_done.begun
        expected = None if begun.file_sink is None else begun.file_sink.url
        if url is not None and open_sink(url).url != expected:
            option = "without --file-sink" if expected is None else f"with --file-sink {expected}"
            raise RefusedAsUnsafe(
                f"the interrupted {begun.described} was started {option}; nothing was changed",
                path=url,
                hint=f"to finish it, run: {begun.finishing}; to reverse it, run: {begun.reversing}",
            )
        url = expected
    if url is None or planned.batch is None or planned.is_there or planned.refusals:
        return None
    return file_sinks.plan(open_sink(url), planned.batch + 1, is_begun=planned.half_done is not None)


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

    def run_plan(ready: PreparedRewrite) -> None:
        sink = ready.plan.file_sink
        runs.rewrite(
            storage,
            ready.plan,
            progress,
            run=run,
            holder=by.holder,
            machine=by.machine(scratch=scratch, workers=workers, memory_bytes=memory_bytes),
            policy=policy_of(ready.policies),
            sink=None if sink is None else ready.open_sink(sink.entry.url),
        )

    return stopped_query.execute(
        storage,
        prepared,
        by,
        stopped=stopped,
        plan_again=lambda: plan(
            storage,
            prepared.policies,
            prepared.goal,
            prepared.spark,
            scratch=scratch,
            file_sink=prepared.file_sink,
            open_sink=prepared.open_sink,
            clock=by.clock,
        ),
        run=run_plan,
    )


def abort(
    storage: Storage,
    policies: Policies,
    rewrite: RewriteKind,
    by: Maintainer,
    progress: ProgressCallback,
    *,
    run: str,
    stopped: bool,
    open_sink: OpenSink = open_storage,
) -> Begun:
    """Reverse a half-done rewrite of this kind, and return it. `open_sink`: as in `plan`.

    Raises as `execute` and `runs.abort_rewrite`; `RefusedAsUnsafe` if no rewrite is half done.
    """
    journal = rewrite_journal.open_journal(storage)
    if journal is None:
        raise RefusedAsUnsafe(
            f"no {rewrite.value} is interrupted",
            path=storage.url,
            hint=_WAYS_BACK[rewrite],
        )
    if journal.begun.rewrite is not rewrite:
        rewrite_journal.require_none(storage)
    guards.require_none(guards.refusals(guards.rewrites(storage, policies)))
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    entry = journal.begun.file_sink
    sink = None if entry is None else open_sink(entry.url)
    runs.abort_rewrite(storage, journal, progress, run=run, holder=by.holder, clock=by.clock, sink=sink)
    return journal.begun


def undo(
    storage: Storage,
    policies: Policies,
    rewrite: RewriteKind,
    undone: str,
    by: Maintainer,
    progress: ProgressCallback,
    *,
    run: str,
    stopped: bool,
    open_sink: OpenSink = open_storage,
) -> Begun:
    """Reverse the completed edit, load or schema evolution of the run `undone`. `stopped`: as in `execute`.

    Raises the first refusal; `RefusedAsUnsafe` while the query runs; as `runs.undo_rewrite`.
    """
    guards.require_none(guards.refusals(guards.rewrites(storage, policies), guards.half_switched(storage)))
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    return runs.undo_rewrite(
        storage, undone, progress, rewrite, run=run, holder=by.holder, clock=by.clock, open_sink=open_sink
    )
