"""Rescale, convert, load and evolve: new snapshots of every changed store, for which all its rows are read.

    gather(storage)  ->  RewriteFacts  ->  plan(facts, goal)  ->  RewritePlan

A rescale moves each row to the partition of its key. A conversion encodes each row for the other state store provider.
A load replaces all rows by those of a savepoint. A schema evolution encodes the values of a state root with other columns.
Source: SPARK-54346, which repartitions with Spark's own reader and writer; FLIP-428.
"""

from statekeeper.statestore.maintenance.rewrites.whole_stores.file_sink import FileSinkPlan
from statekeeper.statestore.maintenance.rewrites.whole_stores.gather import gather
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import (
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
from statekeeper.statestore.maintenance.rewrites.whole_stores.plan import EvolutionPreview, plan, preview
from statekeeper.statestore.maintenance.rewrites.whole_stores.steps import WholeStoreSteps

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
    "WholeStoreSteps",
    "gather",
    "plan",
    "preview",
]
