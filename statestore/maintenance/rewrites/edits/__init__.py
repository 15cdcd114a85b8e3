"""Edits of the state of a stopped query: rows deleted, inserted or replaced at the head.

    gather(storage, edit)  ->  EditFacts  ->  plan(facts, edit)  ->  EditPlan

An edit replaces the newest committed version, so that a batch that has begun runs again on the edited state.
"""

from statekeeper.statestore.maintenance.rewrites.edits.changes import StoreChanges
from statekeeper.statestore.maintenance.rewrites.edits.gather import gather
from statekeeper.statestore.maintenance.rewrites.edits.goal import Edit
from statekeeper.statestore.maintenance.rewrites.edits.model import EditFacts, EditPlan, StoreEdit
from statekeeper.statestore.maintenance.rewrites.edits.plan import plan
from statekeeper.statestore.maintenance.rewrites.edits.steps import EditSteps

__all__ = [
    "Edit",
    "EditFacts",
    "EditPlan",
    "EditSteps",
    "StoreChanges",
    "StoreEdit",
    "gather",
    "plan",
]
