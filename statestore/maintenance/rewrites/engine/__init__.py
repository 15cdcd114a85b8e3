"""The engine of all rewrites of a stopped query: one lifecycle, one journal, one way back.

    gather(storage)  ->  SwitchoverFacts  ->  the plan of a kind of rewrite  ->  execute(steps, storage, plan)
    open_journal(storage)  ->  OpenJournal  ->  rollback(steps, storage, open_journal)

It knows no kind of rewrite: `RewriteSteps` has what differs, and `kinds` has the steps of each kind.
"""

from statekeeper.statestore.maintenance.rewrites.engine.execute import execute
from statekeeper.statestore.maintenance.rewrites.engine.gather import gather
from statekeeper.statestore.maintenance.rewrites.engine.model import (
    Machine,
    Plan,
    Progress,
    ProgressCallback,
    Source,
    StoreStep,
    StoreSwitchFacts,
    SwitchoverFacts,
    SwitchPhase,
)
from statekeeper.statestore.maintenance.rewrites.engine.revert import revert, rollback
from statekeeper.statestore.maintenance.rewrites.engine.steps import RewriteSteps, Rewriting

__all__ = [
    "Machine",
    "Plan",
    "Progress",
    "ProgressCallback",
    "RewriteSteps",
    "Rewriting",
    "Source",
    "StoreStep",
    "StoreSwitchFacts",
    "SwitchPhase",
    "SwitchoverFacts",
    "execute",
    "gather",
    "revert",
    "rollback",
]
