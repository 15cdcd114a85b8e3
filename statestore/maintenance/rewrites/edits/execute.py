"""Executes an edit from its current step. Each step is idempotent, and a crash may follow any step.

In structure V2, the newest commit decides: it names the old versions until it is rewritten, then the new ones. In structure
V1, no query starts from the first new snapshot until all are in place: see `place`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, Made, RewriteKind
from statekeeper.statestore.contents.rows import OpenStore
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.edits import changes
from statekeeper.statestore.maintenance.rewrites.edits.model import EditPlan, StoreEdit
from statekeeper.statestore.maintenance.rewrites.edits.own_rows import require_no_attempt
from statekeeper.statestore.maintenance.rewrites.edits.place import has_gone_on, is_edited, put_in_place, remove_guards
from statekeeper.statestore.maintenance.rewrites.engine.execute import require_as_planned
from statekeeper.statestore.maintenance.rewrites.switchover import (
    Machine,
    Progress,
    ProgressCallback,
    StoreStep,
    SwitchPhase,
)
from statekeeper.statestore.maintenance.rewrites.switchover.commit import (
    require_newest,
    require_snapshots,
    rewrite_commit,
)
from statekeeper.statestore.maintenance.rewrites.switchover.rewrite import build, make_each
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy, FindingKind
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.loading.loaded import Restored


def execute(
    storage: Storage,
    planned: EditPlan,
    progress: ProgressCallback,
    *,
    run: str,
    machine: Machine,
    still_held: Callable[[], None],
    policy: AuditPolicy | None = None,
) -> Begun:
    """Execute an edit, or complete an interrupted one. The caller has verified that the query is stopped.

    `progress` is called after each step, also from other threads, one at a time; `still_held` raises an error if the lease
    is lost.

    *Guarantee*: a crash at any request leaves the old state, the edited state, or a checkpoint on which no query starts. A
    new plan of the same edit and its execution complete it; `roll_back` reverses it. Replaced files are in quarantine.

    Raises `RefusedAsUnsafe` for a plan with refusals, if the query continued, and if the audit afterwards is not clean; the
    errors of `snapshot.execute`: then the state is the old one, and the next run keeps the snapshots that were made.
    """
    if planned.refusals:
        raise RefusedAsUnsafe(planned.refusals[0], path=storage.url, hint="nothing was changed")
    require_as_planned(storage, planned)
    begun = planned.half_done.begun if planned.half_done else _begin(storage, planned, run, machine)
    progress(Progress(phase=SwitchPhase.BEGUN))
    if planned.half_done is None or not planned.half_done.is_cleared:
        _make_snapshots(storage, begun, planned, progress, machine, still_held)
        still_held()
        require_snapshots(storage, begun)
        require_newest(storage, begun, planned.begun)
        journal.note_cleared(storage, begun)
    still_held()
    if begun.to is Structure.V2:
        _rewrite_commit(storage, begun, planned)
    elif not has_gone_on(storage, begun):
        put_in_place(storage, begun, planned.strays, still_held)
    progress(Progress(phase=SwitchPhase.COMMIT))
    if begun.to is Structure.V1:
        remove_guards(storage, begun, still_held)
    _require_clean(storage, policy)
    still_held()
    # The record of the last retention pass names snapshots that the edit replaced.
    storage.delete([names.RETAINED])
    journal.end(storage, begun, Ending.SWITCHED)
    progress(Progress(phase=SwitchPhase.ENDED))
    return begun


def _rewrite_commit(storage: Storage, begun: Begun, planned: EditPlan) -> None:
    """Rewrite the newest commit. Of an own root, require before that no job has attempted the next batch."""
    if planned.origin is Origin.OWN and not has_gone_on(storage, begun) and not is_edited(storage, begun):
        require_no_attempt(storage, begun.batch + 1, "the checkpoint keeps its old state")
    rewrite_commit(storage, begun, planned.begun)


def _require_clean(storage: Storage, policy: AuditPolicy | None) -> None:
    found = audit.judge(audit.gather(storage), policy)
    breaks = [finding for finding in found.breaks if finding.kind is not FindingKind.HALF_SWITCHED]
    if breaks:
        raise RefusedAsUnsafe(
            f"the edit is written but not completed, because the audit reports: {breaks[0].file} {breaks[0].problem}",
            path=storage.url,
            hint="do not start the query. Reverse the edit: statekeeper edit ROOT --abort --confirm-stopped",
        )


def _begin(storage: Storage, planned: EditPlan, run: str, machine: Machine) -> Begun:
    assert planned.batch is not None
    changed = {one.step.store for one in planned.stores}
    begun = Begun(
        number=journal.next_number(storage),
        run=run,
        to=planned.structure,
        batch=planned.batch,
        header=planned.header,
        commit=planned.commit,
        stores={
            store: VersionId(head.version, machine.ids.fresh()) if store in changed else head
            for store, head in planned.heads.items()
        },
        reused=frozenset(planned.heads.keys() - changed),
        rewrite=RewriteKind.EDIT,
        options=planned.edit.options,
        rows=planned.edit.digest,
    )
    journal.begin(storage, begun)
    return begun


def _make_snapshots(
    storage: Storage,
    begun: Begun,
    planned: EditPlan,
    progress: ProgressCallback,
    machine: Machine,
    still_held: Callable[[], None],
) -> None:
    assert planned.contents is not None
    edits = {one.step.store: one for one in planned.stores}
    at_a_time = max(1, min(machine.workers, len(edits)))

    def work(step: StoreStep) -> tuple[Made, tuple[str, ...]]:
        still_held()
        change = partial(_changed, planned, edits[step.store])
        conf = planned.contents.conf if planned.contents else None
        assert conf is not None
        return build(storage, begun, step, machine, conf=conf, at_a_time=at_a_time, change=change)

    make_each(storage, begun, [one.step for one in planned.stores], work, progress, workers=machine.workers)


def _changed(planned: EditPlan, edit: StoreEdit, restored: Restored) -> str:
    """Write the changes into a restored store. Return the digest of the rows that it must have then."""
    assert planned.contents is not None
    assert planned.selection is not None
    store = edit.step.store
    rows = OpenStore(
        contents=planned.contents,
        store=store,
        layout=planned.selection.layouts[store.store],
        database=restored.database,
        ids={} if restored.base is None else restored.base.column_families,
    )
    return changes.write(rows, restored.database, planned.selection, edit.changes)
