"""Which files nobody needs any more, and deleting them.

    gather(storage, policy)  ->  RetentionFacts  ->  plan(gathered, policy)  ->  RetentionPlan  ->  execute(storage, plan)

Every file gets a verdict with its rule; what no rule knows is kept. **Safety is monotone**: what was deletable once never
becomes referenced again, since no store deletes on a condition and a run may sleep between its plan and its deletions.

* Below the base of the floor lies nothing that a retained version needs, and the floor only rises.
* A version up to the head that the commit log does not name is dead for good.
* A table that no kept snapshot names may be named by one that is being made: `announcements` keeps them apart.

Sources: SPARK-38204 (what Spark's own maintenance keeps), FLIP-158 and FLIP-428 (files shared between snapshots).
"""

from statestore.maintenance.retention.execute import Deleted, DeletionOutcome, execute, remember
from statestore.maintenance.retention.facts import RetentionFacts
from statestore.maintenance.retention.forecast import Amount, Forecast, Later, forecast
from statestore.maintenance.retention.gather import gather
from statestore.maintenance.retention.plan import judge_stores, plan
from statestore.maintenance.retention.verdicts import RetentionPlan, RetentionPolicy, Rule, StoreVerdicts, Verdict

__all__ = [
    "Amount",
    "Deleted",
    "DeletionOutcome",
    "Forecast",
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
