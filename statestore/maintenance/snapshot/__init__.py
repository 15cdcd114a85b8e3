"""Which stores deserve a snapshot, and making it: the work that a query without it does in its executors.

    gather(storage)  ->  Gathered  ->  plan(gathered, policy)  ->  SnapshotPlan  ->  execute(storage, action)

Sources: SPARK-43421 (snapshots in the background), SPARK-49374 (each under its own id), FLIP-158 (materialization apart
from commits), FLIP-428 (incremental by file).
"""

from statestore.maintenance.snapshot.decisions import (
    LeaveAlone,
    SnapshotPlan,
    SnapshotPolicy,
    TakeSnapshot,
    Why,
    WhyNot,
)
from statestore.maintenance.snapshot.facts import REPLAY_BYTES_PER_SECOND, Gathered, StoreFacts
from statestore.maintenance.snapshot.judge import plan
from statestore.maintenance.snapshot.look import gather
from statestore.maintenance.snapshot.make import MEMORY_BYTES, Taken, execute, execute_all, share_of
from statestore.maintenance.snapshot.publish import Published, require_same

__all__ = [
    "MEMORY_BYTES",
    "REPLAY_BYTES_PER_SECOND",
    "Gathered",
    "LeaveAlone",
    "Published",
    "SnapshotPlan",
    "SnapshotPolicy",
    "StoreFacts",
    "TakeSnapshot",
    "Taken",
    "Why",
    "WhyNot",
    "execute",
    "execute_all",
    "gather",
    "plan",
    "require_same",
    "share_of",
]
