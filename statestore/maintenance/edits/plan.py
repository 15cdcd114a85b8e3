"""Plans an edit. Pure."""

from __future__ import annotations

from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.edits.goal import Edit
from statekeeper.statestore.maintenance.edits.place import strays
from statekeeper.statestore.maintenance.edits.plans import EditFacts, EditPlan, StoreEdit
from statekeeper.statestore.maintenance.edits.refusals import steps_of
from statekeeper.statestore.maintenance.pool import WORKERS
from statekeeper.statestore.maintenance.switchover import SwitchoverFacts, local_bytes
from statekeeper.statestore.origin import Origin


def plan(facts: EditFacts, edit: Edit, spark: Spark | None = None, *, workers: int = WORKERS) -> EditPlan:
    """Plan an edit. `spark`: the release that continues, if known. Pure."""
    stopped, half_done = facts.stopped, facts.stopped.half_done
    structure = stopped.structure or Structure.V1
    changed = {one.store: one for one in facts.changes if one.total}
    stores = [StoreEdit(step, changed[step.store]) for step in steps_of(stopped, edit) if step.store in changed]
    refusals = list(facts.refusals)
    if half_done is not None and not half_done.is_cleared and not refusals:
        if changed.keys() != half_done.begun.built.keys():
            refusals.append("the interrupted edit changes other stores: reverse it with --abort, then edit again")
        stores = [one for one in stores if one.step.store not in half_done.made]
    is_native_v2 = structure is Structure.V2 and stopped.origin is Origin.NATIVE
    header = spark.header if spark is not None and is_native_v2 else ""
    steps = [one.step for one in stores]
    return EditPlan(
        edit=edit,
        batch=stopped.batch if half_done is None else half_done.begun.batch,
        structure=structure,
        origin=stopped.origin,
        header=header,
        heads={one.store: one.head for one in stopped.stores},
        stores=tuple(stores),
        strays=_strays(stopped) if structure is Structure.V1 else (),
        refusals=tuple(refusals),
        commit=stopped.commit,
        begun=stopped.begun,
        half_done=half_done,
        contents=facts.contents,
        selection=facts.selection,
        local_bytes=local_bytes(steps, workers),
        seconds=sum(step.tail_bytes for step in steps) / stopped.replay_bytes_per_second,
    )


def _strays(stopped: SwitchoverFacts) -> tuple[str, ...]:
    if stopped.files is None or stopped.batch is None:
        return ()
    return strays(stopped.files, {one.store for one in stopped.stores}, stopped.batch + 1)
