"""Retention: plans and executes the garbage collection of a checkpoint.

    gather(storage, policy)  ->  RetentionFacts  ->  plan(gathered, policy)  ->  RetentionPlan  ->  execute(storage, plan)

Every file gets a verdict with its rule; a file with an unrecognized name is kept. **Safety is monotone**: a deletable file
never becomes needed again, because a run may stall between its plan and its deletions, and deletions are unconditional.

* No retained version needs a file below the base of the floor, and the floor only rises.
* A version up to the head that is not in the commit log can never be committed.
* A new snapshot may name a table that no kept snapshot names; `announcements` prevents this race.

Sources: SPARK-38204 (the files that Spark's own maintenance keeps), FLIP-158 and FLIP-428 (files shared between snapshots).
"""

from statekeeper.statestore.maintenance.upkeep.retention.execute import Deleted, DeletionOutcome, execute, remember
from statekeeper.statestore.maintenance.upkeep.retention.forecast import Amount, Forecast, Later, forecast
from statekeeper.statestore.maintenance.upkeep.retention.gather import gather
from statekeeper.statestore.maintenance.upkeep.retention.model import (
    KeptBatchLogs,
    RetentionFacts,
    RetentionPlan,
    RetentionPolicy,
    Rule,
    StoreVerdicts,
    Verdict,
)
from statekeeper.statestore.maintenance.upkeep.retention.plan import judge_stores, plan

__all__ = [
    "Amount",
    "Deleted",
    "DeletionOutcome",
    "Forecast",
    "KeptBatchLogs",
    "Later",
    "RetentionFacts",
    "RetentionPlan",
    "RetentionPolicy",
    "Rule",
    "StoreVerdicts",
    "Verdict",
    "execute",
    "forecast",
    "gather",
    "judge_stores",
    "plan",
    "remember",
]
