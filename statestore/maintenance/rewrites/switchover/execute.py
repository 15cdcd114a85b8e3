"""Executes a switchover from its current step. Each step is idempotent, and a crash may follow any step.

The newest commit alone decides the structure of a checkpoint: the old one until the commit is rewritten, then the new one.
In between, Spark refuses to start because of a snapshot with an id in structure V1. So at any time the checkpoint has the
old structure, has the new structure, or no query starts on it; from there, it can be completed or rolled back.
"""

from __future__ import annotations

from collections.abc import Callable

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.switchover.commit import (
    has_gone_on,
    move_to_quarantine,
    rewrite_commit,
)
from statekeeper.statestore.maintenance.rewrites.switchover.model import (
    Machine,
    Progress,
    ProgressCallback,
    Source,
    SwitchPhase,
    SwitchPlan,
)
from statekeeper.statestore.maintenance.rewrites.switchover.rewrite import make_snapshots
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy, FindingKind
from statekeeper.statestore.storage import Storage, read_or_none


def execute(
    storage: Storage,
    planned: SwitchPlan,
    progress: ProgressCallback,
    *,
    run: str,
    machine: Machine,
    still_held: Callable[[], None],
    policy: AuditPolicy | None = None,
) -> Begun:
    """Execute a switchover. The caller has verified that the query is stopped.

    `progress` is called after each step, also from other threads, one at a time; `still_held` raises an error if the lease
    is lost.

    *Guarantee*: a crash at any request leaves a checkpoint with the old structure, with the new structure, or one on which
    no query starts. A new plan and its execution complete the switchover; `roll_back` restores the old state.

    Raises `RefusedAsUnsafe` for a plan with refusals, if the query continued, and if the audit afterwards is not clean.
    Raises the errors of `snapshot.execute`: then nothing is switched, and the next run reuses the snapshots that were made.
    """
    if planned.refusals:
        raise RefusedAsUnsafe(
            f"{planned.refusals[0]}; nothing was changed",
            path=storage.url,
            hint="to see all obstacles, run this command again without --apply",
        )
    _require_as_planned(storage, planned)
    begun = planned.half_done.begun if planned.half_done else _begin(storage, planned, run, machine.ids)
    progress(Progress(phase=SwitchPhase.BEGUN))
    is_cleared = planned.half_done is not None and planned.half_done.is_cleared
    for path in planned.first:
        still_held()
        move_to_quarantine(storage, begun.run, path)
    if not is_cleared:
        journal.note_cleared(storage, begun)
    progress(Progress(phase=SwitchPhase.CLEARED, done=len(planned.first), of=len(planned.first)))
    make_snapshots(storage, begun, planned, progress, machine, still_held)
    still_held()
    rewrite_commit(storage, begun, planned.begun)
    progress(Progress(phase=SwitchPhase.COMMIT))
    for number, path in enumerate(planned.last, 1):
        still_held()
        move_to_quarantine(storage, begun.run, path)
        progress(Progress(phase=SwitchPhase.MOVED, done=number, of=len(planned.last)))
    found = audit.judge(audit.gather(storage), policy)
    breaks = [finding for finding in found.breaks if finding.kind is not FindingKind.HALF_SWITCHED]
    # A query that continued in the new structure cannot be rolled back, so its findings are repaired as usual.
    goes_on = has_gone_on(storage, begun)
    if breaks and not goes_on:
        raise RefusedAsUnsafe(
            f"the checkpoint is switched, but the audit reports: {breaks[0].file} {breaks[0].problem}",
            path=storage.url,
            hint="do not start the query; roll back: statekeeper switch ROOT --abort --confirm-stopped",
        )
    still_held()
    # The record of the last retention pass names snapshots of the old structure.
    storage.delete([names.RETAINED])
    journal.end(storage, begun, Ending.SWITCHED)
    if breaks:
        raise RefusedAsUnsafe(
            f"the switchover is complete and the query has continued, but the checkpoint is damaged: {breaks[0].file} "
            f"{breaks[0].problem}",
            path=storage.url,
            hint=breaks[0].action,
        )
    progress(Progress(phase=SwitchPhase.ENDED))
    return begun


def _require_as_planned(storage: Storage, planned: SwitchPlan) -> None:
    """Require that the checkpoint did not change since the plan was made, which was before the lease was acquired.

    Race: two maintainers plan; the first one completes its switchover; the second one starts from its old plan, fails, and
    is rolled back: the rollback deletes snapshots of structure V1 that the query needs now.
    """
    assert planned.batch is not None
    now, then = journal.open_journal(storage), planned.half_done
    is_same = (now and (now.begun.number, now.is_cleared)) == (then and (then.begun.number, then.is_cleared))
    if is_same and then is None:
        commit = read_or_none(storage, names.commits(planned.batch))
        is_same = commit == planned.commit.encode() and catalog.newest_batch(storage) == planned.batch
    if not is_same:
        raise RefusedAsUnsafe(
            "the checkpoint changed after the plan was made: another maintainer switched it, or the query is running; "
            "this command changed nothing",
            path=storage.url,
            hint="to see the present state, run this command again without --apply",
        )


def _begin(storage: Storage, planned: SwitchPlan, run: str, ids: Ids) -> Begun:
    assert planned.batch is not None
    stores = {step.store: step.name or _renamed(step.head, planned, ids) for step in planned.stores}
    begun = Begun(
        number=journal.next_number(storage),
        run=run,
        to=planned.to,
        batch=planned.batch,
        header=planned.header,
        commit=planned.commit,
        stores=stores,
        reused=frozenset(step.store for step in planned.stores if step.source is Source.REUSED),
    )
    journal.begin(storage, begun)
    return begun


def _renamed(head: VersionId, planned: SwitchPlan, ids: Ids) -> VersionId:
    """Return the name of the head in the other structure. In V1, own jobs use a digest, whose chain starts again here."""
    if planned.to is Structure.V2:
        return VersionId(head.version, ids.fresh())
    return VersionId(head.version, digest=ids.fresh() if planned.origin is Origin.OWN else None)
