"""The engine of all rewrites of a stopped query: one lifecycle, one journal, one way back.

    gather(storage)  ->  StoppedQuery  ->  the plan of a kind of rewrite  ->  execute(steps, storage, plan)
    open_journal(storage)  ->  RewriteJournal  ->  rollback(steps, storage, open_journal)

It knows no kind of rewrite: `RewriteSteps` has what differs, and `kinds` has the steps of each kind.
"""

from statekeeper.statestore.maintenance.rewrites.engine.execute import execute
from statekeeper.statestore.maintenance.rewrites.engine.gather import gather
from statekeeper.statestore.maintenance.rewrites.engine.model import (
    Machine,
    Plan,
    Progress,
    ProgressCallback,
    RewritePhase,
    Source,
    StoppedQuery,
    StoppedStore,
    StoreStep,
)
from statekeeper.statestore.maintenance.rewrites.engine.revert import revert, rollback
from statekeeper.statestore.maintenance.rewrites.engine.steps import RewriteSteps, Rewriting

__all__ = [
    "Machine",
    "Plan",
    "Progress",
    "ProgressCallback",
    "RewritePhase",
    "RewriteSteps",
    "Rewriting",
    "Source",
    "StoppedQuery",
    "StoppedStore",
    "StoreStep",
    "execute",
    "gather",
    "revert",
    "rollback",
]
