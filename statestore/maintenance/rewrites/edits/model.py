"""The types of an edit: facts and plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.contents.differences import Change, Difference
from statekeeper.statestore.contents.rows import Contents
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.edits.changes import StoreChanges
from statekeeper.statestore.maintenance.rewrites.edits.goal import Edit
from statekeeper.statestore.maintenance.rewrites.edits.selection import Selection
from statekeeper.statestore.maintenance.rewrites.engine.model import Plan, StoppedQuery, StoreStep

SHOWN_ROWS = 20
"""The changed rows that a plan shows."""


@dataclass(frozen=True, kw_only=True)
class EditFacts:
    """The facts about a checkpoint whose state is to be edited. Without a selection, a refusal came first."""

    stopped: StoppedQuery
    refusals: tuple[str, ...] = ()
    contents: Contents | None = None
    selection: Selection | None = None
    changes: tuple[StoreChanges, ...] = ()


@dataclass(frozen=True)
class StoreEdit:
    """The snapshot to make of a store, and the changes that it contains."""

    step: StoreStep
    changes: StoreChanges


@dataclass(frozen=True, kw_only=True)
class EditPlan(Plan):
    """The steps of an edit, in order: make the snapshots of `stores`; quarantine `strays`; put the snapshots in place of
    the head.

    heads    the head of every store, in the order of the commit log
    stores   the stores with changed rows that have no snapshot yet
    strays   in structure V1, files of the next version, which a failed attempt at the next batch left
    """

    rewrite: RewriteKind = RewriteKind.EDIT
    edit: Edit
    structure: Structure
    heads: Mapping[StorePath, VersionId]
    stores: tuple[StoreEdit, ...] = ()
    strays: tuple[str, ...] = ()
    contents: Contents | None = None
    selection: Selection | None = None

    @property
    def totals(self) -> Counter[Change]:
        """The numbers of changes of all stores."""
        found: Counter[Change] = Counter()
        for one in self.stores:
            found.update(one.changes.counts)
        return found

    @property
    def first(self) -> tuple[tuple[StorePath, Difference], ...]:
        """The first changed rows, each with its store."""
        rows = [(one.step.store, row) for one in self.stores for row in one.changes.first]
        return tuple(rows[:SHOWN_ROWS])

    @property
    def read_bytes(self) -> int:
        """Bytes to download for the snapshots."""
        return sum(one.step.read_bytes for one in self.stores)
