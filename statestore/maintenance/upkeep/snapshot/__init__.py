"""Snapshots: plans which stores need one, and makes it. Without Statekeeper, Spark's executors do this work.

    gather(storage)  ->  SnapshotFacts  ->  plan(gathered, policy)  ->  SnapshotPlan  ->  execute(storage, action)

Sources: SPARK-43421 (background snapshots), SPARK-49374 (unique ids), FLIP-158 (materialization separate from commits),
FLIP-428 (incremental by file).
"""

from statekeeper.statestore.maintenance.upkeep.snapshot.execute import (
    KEPT_BYTES,
    Change,
    Published,
    Taken,
    execute,
    execute_all,
    require_same,
    share_of,
)
from statekeeper.statestore.maintenance.upkeep.snapshot.gather import facts_of, gather, gather_readable
from statekeeper.statestore.maintenance.upkeep.snapshot.model import (
    REPLAY_BYTES_PER_SECOND,
    LeaveAlone,
    SkipReason,
    SnapshotFacts,
    SnapshotPlan,
    SnapshotPolicy,
    SnapshotReason,
    StoreSnapshotFacts,
    TakeSnapshot,
)
from statekeeper.statestore.maintenance.upkeep.snapshot.plan import plan

__all__ = [
    "KEPT_BYTES",
    "REPLAY_BYTES_PER_SECOND",
    "Change",
    "LeaveAlone",
    "Published",
    "SkipReason",
    "SnapshotFacts",
    "SnapshotPlan",
    "SnapshotPolicy",
    "SnapshotReason",
    "StoreSnapshotFacts",
    "TakeSnapshot",
    "Taken",
    "execute",
    "execute_all",
    "facts_of",
    "gather",
    "gather_readable",
    "plan",
    "require_same",
    "share_of",
]
