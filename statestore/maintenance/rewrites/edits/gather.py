"""Gathers the facts for an edit: those of every rewrite of a stopped query, and the rows that the edit changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.contents.rows import Contents, contents_at, opened
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.executors import Executor, Place
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
    executor: Executor,
    scratch: Path,
    policy: AuditPolicy | None = None,
    workers: int = WORKERS,
) -> EditFacts:
    """Gather the facts, with an audit unless a rewrite is half done. The `executor` restores each store of the operator,
    unless there is a refusal, and unless an interrupted edit has made all its snapshots.

    `workers`: the stores that are below `scratch` at a time. Raises as `engine.gather`, `select` and
    `contents.rows.opened`.
    """
    stopped = engine.gather(storage, scratch=scratch, policy=policy)
    found = tuple(refusals(stopped, edit, spark, workers))
    is_cleared = stopped.half_done is not None and stopped.half_done.is_cleared
    if found or is_cleared:
        return EditFacts(stopped=stopped, refusals=found)
    contents = contents_at(storage, stopped.batch)
    assert contents is not None
    selection = select(contents, edit)
    changes = _changes(contents, selection, _stores_of(stopped, edit, selection), executor)
    return EditFacts(stopped=stopped, contents=contents, selection=selection, changes=changes)


@dataclass(frozen=True)
class SearchedStore:
    """A store that may have changed rows. `upserts`: the new value of each key."""

    store: StorePath
    upserts: Mapping[bytes, bytes]


@dataclass(frozen=True)
class FindEach:
    """The task of a store. `selection`: without the upserts."""

    contents: Contents
    selection: Selection

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.contents.storage,)

    def __call__(self, one: SearchedStore, place: Place) -> StoreChanges:
        of_store = self.selection.layouts[one.store.store]
        selection = self.selection.with_upserts(one.store, one.upserts)
        with opened(self.contents, one.store, of_store, scratch=place.folder, clock=place.clock, ids=place.ids) as rows:
            return find(rows, selection, one.store, most=SHOWN_ROWS)


def _changes(
    contents: Contents, selection: Selection, stores: Sequence[StorePath], executor: Executor
) -> tuple[StoreChanges, ...]:
    """Find the changes of each store, in their order. If one fails, the others are completed, and its error is raised."""
    found: dict[StorePath, StoreChanges] = {}
    failed: list[StatekeeperError] = []

    def ended(one: SearchedStore, outcome: StoreChanges | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
        else:
            found[one.store] = outcome

    items = [SearchedStore(store, selection.upserts.get(store, {})) for store in stores]
    executor.map(FindEach(contents, selection.without_upserts()), items, ended)
    if failed:
        raise failed[0]
    return tuple(found[store] for store in stores)


def _stores_of(stopped: engine.StoppedQuery, edit: Edit, selection: Selection) -> list[StorePath]:
    """Return the stores that may have changed rows. Rows to insert are in the partitions of their keys."""
    of_operator = [one.store for one in stopped.stores if one.store.operator == edit.operator]
    return of_operator if selection.wanted else [store for store in of_operator if store in selection.upserts]
