"""Rewinds of a query to an earlier batch: a rollback of its state, offsets and sources.

    gather    listings, the commits that go, the chains of each store at the batch    reads only
    prove     restores each store at the batch on local disk                          reads only
    sinks     finds the version of a Delta table that belongs to the batch            reads only
    file_sink finds the entries of later batches in the log of Spark's file sink      reads only
    sources   looks up the data that the query reads again                            reads only
    plan      the files to quarantine, in order, and the files to rewrite             pure
    execute   one file after another, from the newest batch down

A crash at any request leaves a checkpoint that loads: at the newest batch, at the target, or at a batch between them. A
later run completes the rewind, and `undo` reverses it.
"""

from statekeeper.statestore.maintenance.rollback.rewind.execute import execute, prove
from statekeeper.statestore.maintenance.rollback.rewind.facts import RewindFacts
from statekeeper.statestore.maintenance.rollback.rewind.gather import batch_at, gather
from statekeeper.statestore.maintenance.rollback.rewind.plan import (
    MoveAway,
    RewindAction,
    RewindPlan,
    RewindReason,
    Rewrite,
    plan,
)
from statekeeper.statestore.maintenance.rollback.rewind.sinks import DeltaPosition, FileSinkLog, delta_position
from statekeeper.statestore.maintenance.rollback.rewind.sinks import gather as file_sink_log
from statekeeper.statestore.maintenance.rollback.rewind.sinks import require_named as require_file_sink_named
from statekeeper.statestore.maintenance.rollback.rewind.sources import (
    SourceLocations,
    SourceNeed,
    client_properties,
    look_up,
)

__all__ = [
    "DeltaPosition",
    "FileSinkLog",
    "MoveAway",
    "RewindAction",
    "RewindFacts",
    "RewindPlan",
    "RewindReason",
    "Rewrite",
    "SourceLocations",
    "SourceNeed",
    "batch_at",
    "client_properties",
    "delta_position",
    "execute",
    "file_sink_log",
    "gather",
    "look_up",
    "plan",
    "prove",
    "require_file_sink_named",
]
