"""A changed query keeps its state: a new checkpoint with the operators of a blueprint and the rows of an old checkpoint.

    gather(old, blueprint, destination)  ->  MigrationFacts  ->  match(facts, goal)  ->  Match
    plan(facts, goal, match)  ->  MigrationPlan, whose steps `MigrationSteps` has

The blueprint is a checkpoint that the changed query wrote without data. Its operators, schemas, encodings and settings say
what the changed query wants; its rows are ignored. Both checkpoints are only read.
"""

from statekeeper.statestore.maintenance.rewrites.migration.gather import counted, gather
from statekeeper.statestore.maintenance.rewrites.migration.match import Match, match
from statekeeper.statestore.maintenance.rewrites.migration.model import (
    DroppedOperator,
    Matched,
    Migrate,
    MigrationFacts,
    MigrationPlan,
    shown,
)
from statekeeper.statestore.maintenance.rewrites.migration.plan import names_provider, of_blueprint, plan
from statekeeper.statestore.maintenance.rewrites.migration.steps import MigrationSteps

__all__ = [
    "DroppedOperator",
    "Match",
    "Matched",
    "Migrate",
    "MigrationFacts",
    "MigrationPlan",
    "MigrationSteps",
    "counted",
    "gather",
    "match",
    "names_provider",
    "of_blueprint",
    "plan",
    "shown",
]
