"""Which stores deserve a snapshot, and making it: the work that a query without it does in its executors.

    gather(storage)  ->  SnapshotFacts  ->  plan(gathered, policy)  ->  SnapshotPlan  ->  execute(storage, action)

Sources: SPARK-43421 (snapshots in the background), SPARK-49374 (each under its own id), FLIP-158 (materialization apart
from commits), FLIP-428 (incremental by file).
"""

from statestore.maintenance.snapshot.decisions import (
    LeaveAlone,
    SkipReason,
    SnapshotPlan,
    SnapshotPolicy,
    SnapshotReason,
    TakeSnapshot,
)
from statestore.maintenance.snapshot.execute import MEMORY_BYTES, Taken, execute, execute_all, share_of
from statestore.maintenance.snapshot.facts import REPLAY_BYTES_PER_SECOND, SnapshotFacts, StoreSnapshotFacts
from statestore.maintenance.snapshot.gather import gather
from statestore.maintenance.snapshot.plan import plan
from statestore.maintenance.snapshot.publish import Published, require_same

__all__ = [
    "MEMORY_BYTES",
    "REPLAY_BYTES_PER_SECOND",
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
    "gather",
    "plan",
    "require_same",
    "share_of",
]
