"""Rewrites of native state: new snapshots of every store, made from the rows of all, and one batch that names them.

    gather(storage)  ->  RewriteFacts  ->  plan(facts, goal)  ->  RewritePlan  ->  execute(storage, plan)
    open_journal(storage)  ->  OpenJournal  ->  roll_back(storage, open_journal)

A rescale moves each row to the partition of its key. A conversion encodes each row for the other state store provider.
A load replaces all rows by those of a savepoint. A schema evolution encodes the values of a state root with other columns.
Source: SPARK-54346, which repartitions with Spark's own reader and writer; FLIP-428.
"""

from statekeeper.statestore.maintenance.rewrites.engine.execute import execute
from statekeeper.statestore.maintenance.rewrites.engine.file_sink import FileSinkPlan
from statekeeper.statestore.maintenance.rewrites.engine.gather import gather
from statekeeper.statestore.maintenance.rewrites.engine.model import (
    Convert,
    Goal,
    Incoming,
    Load,
    OperatorFacts,
    Rescale,
    RewriteFacts,
    RewritePlan,
    StoreGroup,
)
from statekeeper.statestore.maintenance.rewrites.engine.plan import EvolutionPreview, plan, preview
from statekeeper.statestore.maintenance.rewrites.engine.revert import require_reversible, roll_back

__all__ = [
    "Convert",
    "EvolutionPreview",
    "FileSinkPlan",
    "Goal",
    "Incoming",
    "Load",
    "OperatorFacts",
    "Rescale",
    "RewriteFacts",
    "RewritePlan",
    "StoreGroup",
    "execute",
    "gather",
    "plan",
    "preview",
    "require_reversible",
    "roll_back",
]
