"""Plans an edit. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteJournal, RewriteKind
from statekeeper.statestore.format import names
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.edits.goal import Edit
from statekeeper.statestore.maintenance.rewrites.edits.model import EditFacts, EditPlan, StoreEdit
from statekeeper.statestore.maintenance.rewrites.edits.place import strays
from statekeeper.statestore.maintenance.rewrites.engine.model import StoppedQuery, StoreStep
from statekeeper.statestore.maintenance.rewrites.engine.plan import (
    local_bytes,
    of_audit,
    of_begun,
    of_disk,
    of_other,
    of_release,
    of_stores,
    step_of,
)


def refusals(stopped: StoppedQuery, edit: Edit, spark: Spark | None, workers: int) -> Iterator[str]:
    """Yield the reasons why the state of this checkpoint cannot be edited."""
    if stopped.batch is None:
        yield "no batch is committed yet: there is no state to edit"
        return
    if not stopped.stores:
        yield "the checkpoint has no state: there is nothing to edit"
        return
    if stopped.origin is Origin.OWN and stopped.structure is Structure.V1:
        # In structure V1 the commit names the digest of a changelog, which the new snapshot does not have.
        yield (
            "the checkpoint is the state root of a job on `pipelines` in structure V1, which this release does not edit: "
            "first run: statekeeper switch ROOT --to v2"
        )
        return
    half_done = stopped.half_done
    if half_done is not None:
        yield from _of_half_done(half_done, stopped.batch, edit)
    yield from _of_logs(stopped, stopped.batch)
    if half_done is None or not half_done.is_cleared:
        yield from of_stores(stopped)
    yield from of_audit(stopped)
    yield from of_release(stopped, stopped.structure, spark)
    yield from of_disk(stopped, local_bytes(steps_of(stopped, edit), workers), grows_with_workers=True)


def steps_of(stopped: StoppedQuery, edit: Edit) -> list[StoreStep]:
    """Return the steps for all stores of the operator whose head can be loaded."""
    return [step_of(one) for one in stopped.stores if one.load is not None and one.store.operator == edit.operator]


def _of_half_done(half_done: RewriteJournal, batch: int, edit: Edit) -> Iterator[str]:
    begun = half_done.begun
    if begun.rewrite is not RewriteKind.EDIT or begun.rows != edit.digest:
        yield of_other(begun)
    elif begun.batch != batch and not half_done.is_cleared:
        yield (
            f"the query continued from batch {begun.batch} to {batch} after the edit was interrupted: reverse it with "
            f"--abort, then edit again"
        )


def _of_logs(stopped: StoppedQuery, batch: int) -> Iterator[str]:
    if stopped.structure is Structure.V2 and not stopped.is_plain_commit:
        yield f"{names.commits(batch)} has unknown fields, which the edit would lose: upgrade Statekeeper"
    yield from of_begun(stopped, batch)
    if attempted := (*stopped.pending, *stopped.others):
        yield (
            f"{attempted[0]} is the record of an attempt at batch {batch + 1}, so the sink may already contain its rows: "
            f"start the job until it commits batch {batch + 1}, then stop it"
        )
    if stopped.repartitions:
        yield (
            f"{names.offsets(stopped.begun)} has another number of partitions than the newest commit: Spark's offline "
            f"repartitioning is not complete; run it again first"
        )


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
        is_there=not refusals and half_done is None and not stores,
        commit=stopped.commit,
        begun=stopped.begun,
        half_done=half_done,
        contents=facts.contents,
        selection=facts.selection,
        local_bytes=local_bytes(steps, workers),
        seconds=sum(step.tail_bytes for step in steps) / stopped.replay_bytes_per_second,
    )


def _strays(stopped: StoppedQuery) -> tuple[str, ...]:
    if stopped.files is None or stopped.batch is None:
        return ()
    return strays(stopped.files, {one.store for one in stopped.stores}, stopped.batch + 1)
