"""Mirrors of a checkpoint: copies that are kept up to date (FLIP-428).

    gather    listings, chains and small files of the source, and the records of the mirror    reads only
    plan      the files that the mirror lacks                                                 pure
    execute   state, then the logs batch by batch, then the record                            always a checkpoint
    cleanup   the files that the source has deleted                                           pure; the second step

The mirror begins with one batch. It keeps each mirrored batch as long as the source retains it.
"""

from statekeeper.statestore.maintenance.copies.mirrors.cleanup import CleanupPlan, Obsolete, Reason, plan_cleanup
from statekeeper.statestore.maintenance.copies.mirrors.execute import begin, execute, execute_cleanup
from statekeeper.statestore.maintenance.copies.mirrors.gather import gather, gather_cleanup
from statekeeper.statestore.maintenance.copies.mirrors.lag import Lag, measure
from statekeeper.statestore.maintenance.copies.mirrors.model import CleanupFacts, MirrorFacts, MirrorRecord, read
from statekeeper.statestore.maintenance.copies.mirrors.plan import MirrorPlan, plan

__all__ = [
    "CleanupFacts",
    "CleanupPlan",
    "Lag",
    "MirrorFacts",
    "MirrorPlan",
    "MirrorRecord",
    "Obsolete",
    "Reason",
    "begin",
    "execute",
    "execute_cleanup",
    "gather",
    "gather_cleanup",
    "measure",
    "plan",
    "plan_cleanup",
    "read",
]
