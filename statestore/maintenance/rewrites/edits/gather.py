"""Gathers the facts for an edit: those of every rewrite of a stopped query, and the rows that the edit changes."""

from __future__ import annotations

from pathlib import Path

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.workers import WORKERS, results_in_pool
from statekeeper.statestore.contents.rows import contents_at, opened
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.rewrites import engine
from statekeeper.statestore.maintenance.rewrites.edits.changes import StoreChanges, find
from statekeeper.statestore.maintenance.rewrites.edits.goal import Edit
from statekeeper.statestore.maintenance.rewrites.edits.model import SHOWN_ROWS, EditFacts
from statekeeper.statestore.maintenance.rewrites.edits.plan import refusals
from statekeeper.statestore.maintenance.rewrites.edits.selection import Selection, select
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy
from statekeeper.statestore.storage import Storage


def gather(
    storage: Storage,
    edit: Edit,
    spark: Spark | None = None,
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    policy: AuditPolicy | None = None,
    workers: int = WORKERS,
) -> EditFacts:
    """Gather the facts, with an audit unless a rewrite is half done. Restores each store of the operator below `scratch`,
    unless there is a refusal, and unless an interrupted edit has made all its snapshots.

    Raises as `engine.gather`, `select` and `contents.rows.opened`.
    """
    stopped = engine.gather(storage, scratch=scratch, policy=policy)
    found = tuple(refusals(stopped, edit, spark, workers))
    is_cleared = stopped.half_done is not None and stopped.half_done.is_cleared
    if found or is_cleared:
        return EditFacts(stopped=stopped, refusals=found)
    contents = contents_at(storage, stopped.batch)
    assert contents is not None
    selection = select(contents, edit)

    def work(store: StorePath) -> StoreChanges:
        of_store = selection.layouts[store.store]
        with opened(contents, store, of_store, scratch=scratch, clock=clock, ids=ids) as rows:
            return find(rows, selection, store, most=SHOWN_ROWS)

    changes = results_in_pool(work, _stores_of(stopped, edit, selection), workers=workers)
    return EditFacts(stopped=stopped, contents=contents, selection=selection, changes=tuple(changes))


def _stores_of(stopped: engine.StoppedQuery, edit: Edit, selection: Selection) -> list[StorePath]:
    """Return the stores that may have changed rows. Rows to insert are in the partitions of their keys."""
    of_operator = [one.store for one in stopped.stores if one.store.operator == edit.operator]
    return of_operator if selection.wanted else [store for store in of_operator if store in selection.upserts]
