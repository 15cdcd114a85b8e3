"""From structure V1 to V2, and back: offline, planned, journaled, and taken back at will. No Spark can do it.

    gather(storage)  ->  Gathered  ->  plan(gathered, to, spark)  ->  SwitchPlan  ->  carry_out(storage, plan)
    standing(storage)  ->  Standing  ->  take_back(storage, standing)

A full snapshot of every store at the head, under the name that it has in the other structure; each is read back and
compared; then the newest commit is written anew. Sources: SPARK-43421 (V1), SPARK-49374 (V2).
"""

from statestore.maintenance.switchover.carry_out import carry_out
from statestore.maintenance.switchover.judge import plan
from statestore.maintenance.switchover.look import gather
from statestore.maintenance.switchover.plans import Gathered, Source, StoreStep, SwitchPlan
from statestore.maintenance.switchover.steps import Machine, Phase, Progress, Told
from statestore.maintenance.switchover.take_back import take_back
from statestore.switch_journal import Begun, Ending, Standing, standing

__all__ = [
    "Begun",
    "Ending",
    "Gathered",
    "Machine",
    "Phase",
    "Progress",
    "Source",
    "Standing",
    "StoreStep",
    "SwitchPlan",
    "Told",
    "carry_out",
    "gather",
    "plan",
    "standing",
    "take_back",
]
