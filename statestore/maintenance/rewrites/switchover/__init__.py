"""The switchover between the structures V1 and V2: offline, planned, journaled and reversible. Spark cannot do it.

    engine.gather(storage)  ->  StoppedQuery  ->  plan(gathered, to, spark)  ->  SwitchPlan

Every store gets a full snapshot at its head under the name of the other structure. Each snapshot is read back and compared.
Then the newest commit is rewritten. Sources: SPARK-43421 (V1), SPARK-49374 (V2).
"""

from statekeeper.statestore.maintenance.rewrites.switchover.model import SwitchPlan
from statekeeper.statestore.maintenance.rewrites.switchover.plan import plan
from statekeeper.statestore.maintenance.rewrites.switchover.steps import SwitchSteps

__all__ = ["SwitchPlan", "SwitchSteps", "plan"]
