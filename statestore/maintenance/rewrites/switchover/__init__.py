"""The switchover between the structures V1 and V2: offline, planned, journaled and reversible. Spark cannot do it.

    gather(storage)  ->  SwitchoverFacts  ->  plan(gathered, to, spark)  ->  SwitchPlan  ->  execute(storage, plan)
    open_journal(storage)  ->  OpenJournal  ->  roll_back(storage, open_journal)

Every store gets a full snapshot at its head under the name of the other structure. Each snapshot is read back and compared.
Then the newest commit is rewritten. Sources: SPARK-43421 (V1), SPARK-49374 (V2).
"""

from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, OpenJournal, open_journal
from statekeeper.statestore.maintenance.rewrites.switchover.execute import execute
from statekeeper.statestore.maintenance.rewrites.switchover.gather import gather
from statekeeper.statestore.maintenance.rewrites.switchover.model import (
    Machine,
    Progress,
    ProgressCallback,
    Source,
    StoreStep,
    StoreSwitchFacts,
    SwitchoverFacts,
    SwitchPhase,
    SwitchPlan,
)
from statekeeper.statestore.maintenance.rewrites.switchover.plan import local_bytes, plan, step_of
from statekeeper.statestore.maintenance.rewrites.switchover.revert import roll_back

__all__ = [
    "Begun",
    "Ending",
    "Machine",
    "OpenJournal",
    "Progress",
    "ProgressCallback",
    "Source",
    "StoreStep",
    "StoreSwitchFacts",
    "SwitchPhase",
    "SwitchPlan",
    "SwitchoverFacts",
    "execute",
    "gather",
    "local_bytes",
    "open_journal",
    "plan",
    "roll_back",
    "step_of",
]
