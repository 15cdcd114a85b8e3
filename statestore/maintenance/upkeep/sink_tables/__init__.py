"""Sink tables: merges the small files of the Delta table that a query writes, and deletes files that no version needs.

    gather  ->  SinkFacts  ->  plan  ->  SinkPlan  ->  execute  ->  commits that change no row, then deletions

*Guarantee*: each version of the table that a rewind of the root may restore stays readable. A rewind may go to each batch
in the commit log. Each version that a reader may still read stays, too, and each file that is not known to be of the table.

A merge of files is one commit of the table. It removes and adds files without a change of data, so that streaming readers
skip it. Another commit that is first wins: the merge is committed after it, or dropped if that commit removed its files.
"""

from statekeeper.statestore.maintenance.upkeep.sink_tables.execute import Merged, Optimized, Outcome, Removed, execute
from statekeeper.statestore.maintenance.upkeep.sink_tables.gather import gather
from statekeeper.statestore.maintenance.upkeep.sink_tables.model import (
    FileRule,
    FileVerdict,
    MergeBin,
    SinkFacts,
    SinkPlan,
    SinkPolicy,
)
from statekeeper.statestore.maintenance.upkeep.sink_tables.plan import plan

__all__ = [
    "FileRule",
    "FileVerdict",
    "MergeBin",
    "Merged",
    "Optimized",
    "Outcome",
    "Removed",
    "SinkFacts",
    "SinkPlan",
    "SinkPolicy",
    "execute",
    "gather",
    "plan",
]
