"""The reasons that block an edit. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from statekeeper.statestore.format import names
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.edits.goal import Edit
from statekeeper.statestore.maintenance.rewrites.refusals import of_audit, of_disk, of_release, of_stores
from statekeeper.statestore.maintenance.switchover import StoreStep, SwitchoverFacts, local_bytes, step_of
from statekeeper.statestore.origin import Origin
from statekeeper.statestore.switch_journal import OpenJournal, RewriteKind


def refusals(stopped: SwitchoverFacts, edit: Edit, spark: Spark | None, workers: int) -> Iterator[str]:
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
    yield from of_disk(stopped, local_bytes(steps_of(stopped, edit), workers))


def steps_of(stopped: SwitchoverFacts, edit: Edit) -> list[StoreStep]:
    """Return the steps for all stores of the operator whose head can be loaded."""
    return [step_of(one) for one in stopped.stores if one.load is not None and one.store.operator == edit.operator]


def _of_half_done(half_done: OpenJournal, batch: int, edit: Edit) -> Iterator[str]:
    begun = half_done.begun
    if begun.rewrite is not RewriteKind.EDIT or begun.rows != edit.digest:
        yield f"a {begun.described} is half done: to finish it, run: {begun.finishing}; to reverse it: {begun.reversing}"
    elif begun.batch != batch and not half_done.is_cleared:
        yield (
            f"the query continued from batch {begun.batch} to {batch} after the edit was interrupted: reverse it with "
            f"--abort, then edit again"
        )


def _of_logs(stopped: SwitchoverFacts, batch: int) -> Iterator[str]:
    if stopped.structure is Structure.V2 and not stopped.is_plain_commit:
        yield f"{names.commits(batch)} has unknown fields, which the edit would lose: upgrade Statekeeper"
    if stopped.begun > batch + 1:
        yield (
            f"{names.offsets(stopped.begun)} exists, but the newest commit is of batch {batch}: restore the missing "
            f"commits, or delete the offsets after batch {batch}"
        )
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
