"""Executes a rewrite from its current step, for all kinds of rewrites. A crash may follow any step.

    verify -> journal opened -> prepare -> snapshots made and read back -> commit -> clean up -> audit -> release
        -> journal closed

The newest commit decides: the old state until the rewrite replaces or appends a commit, the new state afterwards. In
between, the checkpoint has the old state, has the new state, or no query starts on it: see `RewriteSteps`.
"""

from __future__ import annotations

from collections.abc import Callable

from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, RewriteJournal, RewriteKind
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.rewrites.engine.model import Machine, ProgressCallback, RewritePhase
from statekeeper.statestore.maintenance.rewrites.engine.snapshots import delete_handed
from statekeeper.statestore.maintenance.rewrites.engine.steps import P, RewriteSteps, Rewriting
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy, FindingKind
from statekeeper.statestore.storage import Storage


def execute(
    steps: RewriteSteps[P],
    storage: Storage,
    planned: P,
    progress: ProgressCallback,
    *,
    run: str,
    machine: Machine,
    still_held: Callable[[], None],
    open_sink: Callable[[str], Storage],
    policy: AuditPolicy | None = None,
) -> Begun:
    """Execute a rewrite, or complete an interrupted one. The caller has verified that the query is stopped.

    For `progress`, `still_held` and `open_sink`, see `Rewriting`.

    *Guarantee*: a crash at any request leaves the old state, the new state, or a checkpoint on which no query starts. A new
    plan and its execution complete the rewrite; `rollback` reverses it. Replaced files are in quarantine, or their contents
    are in the journal; no other file of the query is changed or deleted.

    Raises `RefusedAsUnsafe` for a plan with refusals, if the query continued, and if the audit afterwards is not clean; the
    errors of the steps: then nothing is committed, and the next run keeps the snapshots that were made.
    """
    if planned.refusals:
        raise RefusedAsUnsafe(
            f"{planned.refusals[0]}; nothing was changed",
            path=storage.url,
            hint="to see all obstacles, run this command again without --apply",
        )
    _require_as_planned(steps, storage, planned)
    opened = planned.half_done
    if opened is None:
        steps.verify(storage, planned, machine, progress)
        number = journal.next_number(storage)
        opened = RewriteJournal(steps.begin(storage, planned, number=number, run=run, ids=machine.ids), {})
    work = Rewriting.of(storage, opened, progress, still_held, open_sink)
    if planned.half_done is None:
        journal.begin(storage, work.begun)
    work.tell(RewritePhase.BEGUN)
    steps.prepare(work, planned)
    try:
        steps.make_snapshots(work, planned, machine)
    except StatekeeperError as error:
        if work.is_rolled_back:
            raise
        raise _half_done(work, error) from error
    still_held()
    work.tell(steps.commit(work, planned, machine))
    still_held()
    steps.clean_up(work, planned)
    _end(steps, work, planned, policy)
    return work.begun


def _require_as_planned(steps: RewriteSteps[P], storage: Storage, planned: P) -> None:
    """Require a plan with work, and a checkpoint without changes since the plan, which was made before the lease.

    Race: two maintainers plan; the first one completes its switchover; the second one starts from its old plan, fails, and
    is rolled back: the rollback deletes snapshots of structure V1 that the query needs now.
    """
    if planned.is_there:
        raise RefusedAsUnsafe("the plan has nothing to do", path=storage.url, hint="no action is needed")
    now, then = journal.open_journal(storage), planned.half_done
    is_same = (now and (now.begun.number, now.is_cleared)) == (then and (then.begun.number, then.is_cleared))
    if is_same and then is None:
        is_same = steps.is_as_planned(storage, planned)
    if not is_same:
        raise RefusedAsUnsafe(
            "the checkpoint changed after the plan was made: another maintainer rewrote it, or the query is running; "
            "this command changed nothing",
            path=storage.url,
            hint="to see the present state, run this command again without --apply",
        )


def _half_done(work: Rewriting, error: StatekeeperError) -> StatekeeperError:
    """Return the same error with the state of the rewrite and the command to roll back."""
    begun = work.begun
    changed = "structure" if begun.rewrite is RewriteKind.SWITCH else "state"
    return type(error)(
        f"{error.what}; the {begun.described} is half done: {len(work.made):,} of {len(begun.built):,} stores have their "
        f"new snapshot, and the checkpoint still has its old {changed}",
        path=error.path,
        hint=f"{error.hint or 'resolve the problem'}. To finish the {begun.described}, run the same command again. "
        f"To roll it back instead, run: {begun.reversing}",
    )


def _end(steps: RewriteSteps[P], work: Rewriting, planned: P, policy: AuditPolicy | None) -> None:
    """Audit the checkpoint, release it, and close the journal. Raises `RefusedAsUnsafe` if the audit is not clean."""
    storage, begun = work.storage, work.begun
    found = audit.judge(audit.gather(storage), policy)
    breaks = [finding for finding in found.breaks if finding.kind is not FindingKind.HALF_SWITCHED]
    # A rewrite that a query has continued cannot be reversed, so its findings are repaired as usual.
    if breaks and steps.continued_to(work) is None:
        raise RefusedAsUnsafe(
            f"the {begun.described} is written but not completed, because the audit reports: {breaks[0].file} "
            f"{breaks[0].problem}",
            path=storage.url,
            hint=f"do not start the query. Reverse the {begun.rewrite.noun}: {begun.reversing}",
        )
    work.still_held()
    steps.release(work, planned)
    # The record of the last retention pass names old snapshots and partitions.
    storage.delete([names.RETAINED])
    delete_handed(work)
    journal.end(storage, begun, Ending.SWITCHED)
    if breaks:
        raise RefusedAsUnsafe(
            f"the {begun.rewrite.noun} is complete and the query has continued, but the checkpoint is damaged: "
            f"{breaks[0].file} {breaks[0].problem}",
            path=storage.url,
            hint=breaks[0].action,
        )
    work.tell(RewritePhase.ENDED)
