"""Drills: restore a sample of stores into scratch folders, time it, and compare the rows.

    gather(storage)  ->  DrillFacts  ->  plan(facts, ...)  ->  DrillPlan  ->  drill_all(storage, plan.drill, ...)

An audit proves that files are intact. A drill also finds a wrong row in an intact file: it compares a load with another one
that does not use the newest snapshot, with the rows of the last drill, or with those of Spark's reader. A store whose rows
were not compared is never green.
"""

from statekeeper.statestore.maintenance.upkeep.drill.execute import DrillEach, drill_all
from statekeeper.statestore.maintenance.upkeep.drill.gather import again, gather
from statekeeper.statestore.maintenance.upkeep.drill.model import (
    Against,
    Comparison,
    Differences,
    Drilled,
    DrillFacts,
    DrillPlan,
    DrillStore,
    Found,
    Reason,
    StoreFacts,
    Verdict,
)
from statekeeper.statestore.maintenance.upkeep.drill.plan import plan, sample_size

__all__ = [
    "Against",
    "Comparison",
    "Differences",
    "DrillEach",
    "DrillFacts",
    "DrillPlan",
    "DrillStore",
    "Drilled",
    "Found",
    "Reason",
    "StoreFacts",
    "Verdict",
    "again",
    "drill_all",
    "gather",
    "plan",
    "sample_size",
]
