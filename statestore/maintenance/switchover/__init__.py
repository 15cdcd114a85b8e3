"""From structure V1 to V2, and back: offline, planned, journaled, and taken back at will. No Spark can do it.

    gather(storage)  ->  SwitchoverFacts  ->  plan(gathered, to, spark)  ->  SwitchPlan  ->  execute(storage, plan)
    standing(storage)  ->  OpenJournal  ->  roll_back(storage, standing)

A full snapshot of every store at the head, under the name that it has in the other structure; each is read back and
compared; then the newest commit is written anew. Sources: SPARK-43421 (V1), SPARK-49374 (V2).
"""

from statestore.maintenance.switchover.execute import execute
from statestore.maintenance.switchover.gather import gather
from statestore.maintenance.switchover.plan import plan
from statestore.maintenance.switchover.plans import Source, StoreStep, SwitchoverFacts, SwitchPlan
from statestore.maintenance.switchover.roll_back import roll_back
from statestore.maintenance.switchover.steps import Machine, Progress, ProgressCallback, SwitchPhase
from statestore.switch_journal import Begun, Ending, OpenJournal, standing

__all__ = [
    "Begun",
    "Ending",
    "Machine",
    "OpenJournal",
    "Progress",
    "ProgressCallback",
    "Source",
    "StoreStep",
    "SwitchPhase",
    "SwitchPlan",
    "SwitchoverFacts",
    "execute",
    "gather",
    "plan",
    "roll_back",
    "standing",
]
