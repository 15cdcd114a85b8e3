"""Plans and runs mirrors of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.quiet import require_stopped
from statekeeper.statestore.maintenance.copies import clones, mirrors
from statekeeper.statestore.maintenance.copies.clones import CopyFile
from statekeeper.statestore.maintenance.copies.mirrors import CleanupPlan, MirrorFacts, MirrorPlan
from statekeeper.statestore.maintenance.records import holds, lease
from statekeeper.statestore.maintenance.records.holds import Hold
from statekeeper.statestore.maintenance.verbs import as_json, guards, runs
from statekeeper.statestore.maintenance.verbs.clone import is_settled
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class PreparedMirror:
    """A plan of a mirror, its facts, the deletions as of now, and the reasons that block it.

    is_waiting  the query in structure V1 runs and has too few batches: its files may still change, and nothing is copied
    """

    mode: Mode
    gathered: MirrorFacts
    plan: MirrorPlan
    cleanup: CleanupPlan
    is_waiting: bool
    refusals: Refusals


def plan(
    source: Storage,
    destination: Storage,
    policies: Policies,
    by: Maintainer,
    *,
    batch: int | None = None,
    stopped: bool = False,
    location: str | None = None,
) -> PreparedMirror:
    """Plan a run of the mirror of a source, by default up to its newest batch. Reads only.

    In structure V1, a running Spark query may replace its newest changelogs. Then the default is `LIVE_MARGIN_VERSIONS`
    batches earlier, unless a person confirms that the query is `stopped`. `policies`: of the source. `location`: the URL
    that Spark uses for the destination. Raises as `mirrors.gather`, and `RefusedAsUnsafe` if the query is not stopped.
    """
    if stopped:
        require_stopped(source, confirmed=True, clock=by.clock, seconds=by.quiet_seconds)
    gathered = mirrors.gather(source, destination, batch=batch, stopped=stopped)
    planned = mirrors.plan(gathered, by.ids.fresh(), location=location)
    is_waiting = batch is None and gathered.copy.settled < 0
    if is_waiting:
        planned = replace(planned, record=replace(planned.record, batch=-1, first=0), files=(), left=planned.lag)
    settled = None if is_waiting else is_settled(source, gathered.copy)
    found = guards.refusals(settled, guards.half_switched(source), *planned.refusals)
    is_begun = gathered.record is not None and gathered.record.batch >= 0 and not found
    cleanup = _cleanup(source, destination) if is_begun else CleanupPlan((), {})
    mode = policies.mode_for(Origin.NATIVE if gathered.copy.binding is None else Origin.OWN)
    if not _has_nothing_to_do(planned, cleanup, is_waiting=is_waiting):
        found = (*found, *guards.copies(source, destination, mode, by.clock))
    return PreparedMirror(
        mode=mode,
        gathered=gathered,
        plan=planned,
        cleanup=cleanup,
        is_waiting=is_waiting,
        refusals=found,
    )


def execute(
    source: Storage,
    destination: Storage,
    prepared: PreparedMirror,
    by: Maintainer,
    *,
    scratch: Path,
    copied: Callable[[CopyFile], None] = lambda file: None,
) -> CleanupPlan:
    """Copy the files that the mirror lacks, then delete the files that the source has deleted; return the deletions, which
    the history of the mirror records. Call `copied` after each file.

    While it runs, it holds the batches to copy in the source, so that retention keeps their files and other maintenance
    continues; and the lease of the mirror, so that no other run writes there. Both are renewed by a timer, and expire by
    themselves if the process dies. In mode `observe`, nothing is written into the source: there, no maintenance deletes a
    file. Raises the first refusal; `RootHeld` while another verb deletes files of the source, or works on the mirror;
    `LeaseLost`, `HalfSwitched`; as `copies.require_unchanged`, `mirrors.begin` and `mirrors.execute`.
    """
    guards.require_none(prepared.refusals)
    if _has_nothing_to_do(prepared.plan, prepared.cleanup, is_waiting=prepared.is_waiting):
        return prepared.cleanup
    run = by.ids.fresh()
    with ExitStack() as stack:
        if prepared.mode is not Mode.OBSERVE:
            oldest = clones.oldest_batch(prepared.plan.files, prepared.plan.record.batch)
            hold = Hold(batch=oldest, holder=by.holder, verb="mirror")
            stack.enter_context(holds.held(source, hold, run=run, clock=by.clock, renew_seconds=by.beat_seconds))
        rewrite_journal.require_none(source)
        clones.require_unchanged(source, prepared.plan.files)
        mirrors.begin(destination, prepared.plan)
        of_mirror = stack.enter_context(
            lease.held(destination, "mirror", run=run, holder=by.holder, clock=by.clock, beat_seconds=by.beat_seconds)
        )
        if not prepared.plan.is_current:
            mirrors.execute(source, of_mirror.storage, prepared.plan, scratch=scratch, copied=copied)
        cleanup = _cleanup(source, destination)
        if cleanup.obsolete:
            with runs.recorded(destination, "mirror", run, as_json.of_cleanup(cleanup), by.clock) as done:
                for files in mirrors.execute_cleanup(of_mirror.storage, cleanup, of_mirror.require):
                    done.append(as_json.of_cleaned(files))
    return cleanup


def _has_nothing_to_do(planned: MirrorPlan, cleanup: CleanupPlan, *, is_waiting: bool) -> bool:
    return is_waiting or (planned.is_current and not cleanup.obsolete)


def _cleanup(source: Storage, destination: Storage) -> CleanupPlan:
    return mirrors.plan_cleanup(mirrors.gather_cleanup(source, destination))
