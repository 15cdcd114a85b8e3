"""Copies of a checkpoint: the files of one batch under another URL, from which Spark starts (FLIP-428).

    gather    listings, chains and small files of the source, and a listing of the destination    reads only
    plan      the files that batch N needs, and how each is copied                                pure
    execute   state, then metadata and sources, then offsets, then commits

Files of state are copied by the storage service if both roots are in one service: on a local disk by a hard link or a
reflink. Else they pass through this process. Files with the id of the query or the URL of the root are rewritten. The
destination is no checkpoint before the commit of batch N, so that a run after a crash completes it.
"""

from statekeeper.statestore.maintenance.copies.clones.execute import (
    AT_ONCE,
    begin,
    copy_stores,
    execute,
    require_unchanged,
)
from statekeeper.statestore.maintenance.copies.clones.gather import chains, chains_of, gather, newest_settled
from statekeeper.statestore.maintenance.copies.clones.model import CloneFacts, CloneRecord, CopyFile, Way, oldest_batch
from statekeeper.statestore.maintenance.copies.clones.plan import ClonePlan, FreshIds, plan

__all__ = [
    "AT_ONCE",
    "CloneFacts",
    "ClonePlan",
    "CloneRecord",
    "CopyFile",
    "FreshIds",
    "Way",
    "begin",
    "chains",
    "chains_of",
    "copy_stores",
    "execute",
    "gather",
    "newest_settled",
    "oldest_batch",
    "plan",
    "require_unchanged",
]
