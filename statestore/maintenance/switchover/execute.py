"""Carries a switchover out, from where it stands: each step may be done again, and any may be the last before a crash.

The newest commit is the only file that says what a checkpoint is. Before it is written anew the checkpoint is of the old
structure, afterwards of the new one. What Spark would stumble over in between makes it refuse to start: a snapshot
with an id in structure V1. So it is fully the one, fully the other, or refused before any commit, and done again or taken
back from there.
"""

from __future__ import annotations

from collections.abc import Callable

from statestore import catalog
from statestore import switch_journal as journal
from statestore.clock import Ids
from statestore.errors import RefusedAsUnsafe
from statestore.format import names
from statestore.format.names import VersionId
from statestore.format.structure import Structure
from statestore.maintenance import audit
from statestore.maintenance.audit import AuditPolicy, FindingKind
from statestore.maintenance.switchover.commit import has_gone_on, rewrite_commit
from statestore.maintenance.switchover.moves import quarantined
from statestore.maintenance.switchover.plans import Source, SwitchPlan
from statestore.maintenance.switchover.rewrite import make_snapshots
from statestore.maintenance.switchover.steps import Machine, Progress, ProgressCallback, SwitchPhase
from statestore.storage import Storage, read_or_none
from statestore.switch_journal import Begun, Ending


def execute(
    storage: Storage,
    planned: SwitchPlan,
    told: ProgressCallback,
    *,
    run: str,
    machine: Machine,
    still_held: Callable[[], None],
    policy: AuditPolicy | None = None,
) -> Begun:
    """Do what the plan says; `told` of each step, also from other threads, one at a time. The query is stopped, and who
    calls made sure of that; `still_held` raises when somebody else took over.

    *Guarantee*: a crash at any request leaves a checkpoint that is fully of the old structure, fully of the new one, or
    one that no query starts on; planned anew and carried out it is switched, and `roll_back` makes it what it was.

    Raises `RefusedAsUnsafe` for a plan with refusals, when a query has gone on meanwhile, and when the audit afterwards is
    not clean; what making snapshots raises: nothing is switched then, what was made is kept for the next time.
    """
    if planned.refusals:
        raise RefusedAsUnsafe(planned.refusals[0], path=storage.url, hint="nothing was changed")
    _require_as_planned(storage, planned)
    begun = planned.half_done.begun if planned.half_done else _begin(storage, planned, run, machine.ids)
    told(Progress(SwitchPhase.BEGUN))
    is_cleared = planned.half_done is not None and planned.half_done.is_cleared
    for path in planned.first:
        still_held()
        quarantined(storage, begun.run, path)
    if not is_cleared:
        journal.note_cleared(storage, begun)
    told(Progress(SwitchPhase.CLEARED, len(planned.first), len(planned.first)))
    make_snapshots(storage, begun, planned, told, machine, still_held)
    still_held()
    rewrite_commit(storage, begun, planned.begun)
    told(Progress(SwitchPhase.COMMIT))
    for number, path in enumerate(planned.last, 1):
        still_held()
        quarantined(storage, begun.run, path)
        told(Progress(SwitchPhase.MOVED, number, len(planned.last)))
    found = audit.judge(audit.gather(storage), policy)
    breaks = [finding for finding in found.breaks if finding.what is not FindingKind.HALF_SWITCHED]
    # A query that goes on in the new structure cannot be led back: what the audit finds is mended as at any time.
    goes_on = has_gone_on(storage, begun)
    if breaks and not goes_on:
        raise RefusedAsUnsafe(
            f"the checkpoint is switched, and the audit finds: {breaks[0].file} {breaks[0].problem}",
            path=storage.url,
            hint="--abort makes it what it was; do not start the query before",
        )
    still_held()
    # What the last retention pass remembers is of the other structure's snapshots.
    storage.delete([names.RETAINED])
    journal.end(storage, begun, Ending.SWITCHED)
    if breaks:
        raise RefusedAsUnsafe(
            f"the query has gone on, the switchover is ended, and the audit finds: {breaks[0].file} {breaks[0].problem}",
            path=storage.url,
            hint=breaks[0].action,
        )
    told(Progress(SwitchPhase.ENDED))
    return begun


def _require_as_planned(storage: Storage, planned: SwitchPlan) -> None:
    """The lease is held from here on, and was not when this was planned.

    Losing schedule: two plan; one carries it out and ends; the other begins with what was true before, fails, and is
    taken back: of its snapshots' names those of structure V1 are those that the query lives on now.
    """
    assert planned.batch is not None
    now, then = journal.standing(storage), planned.half_done
    is_same = (now and (now.begun.number, now.is_cleared)) == (then and (then.begun.number, then.is_cleared))
    if is_same and then is None:
        commit = read_or_none(storage, names.commits(planned.batch))
        is_same = commit == planned.commit.encode() and catalog.newest_batch(storage) == planned.batch
    if not is_same:
        raise RefusedAsUnsafe(
            "the checkpoint is not what it was when this was planned: somebody else switched it, or the query runs",
            path=storage.url,
            hint="run this again: it shows where the checkpoint stands",
        )


def _begin(storage: Storage, planned: SwitchPlan, run: str, ids: Ids) -> Begun:
    assert planned.batch is not None
    stores = {step.store: _renamed(step.head, planned, ids) for step in planned.stores}
    begun = Begun(
        journal.next_number(storage),
        run,
        planned.to,
        planned.batch,
        planned.header,
        planned.commit,
        stores,
        frozenset(step.store for step in planned.stores if step.source is Source.REUSED),
    )
    journal.begin(storage, begun)
    return begun


def _renamed(head: VersionId, planned: SwitchPlan, ids: Ids) -> VersionId:
    """What the head is called in the other structure. In V1 our own jobs go by a digest, whose chain begins anew."""
    if planned.to is Structure.V2:
        return VersionId(head.version, ids.fresh())
    return VersionId(head.version, digest=ids.fresh() if planned.is_own else None)
