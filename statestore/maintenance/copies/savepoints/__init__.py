"""Savepoints of a checkpoint with typed rows, as Parquet or Delta tables (FLIP-203, FLIP-428).

    gather    the source as for a clone, its schemas, and the records of an earlier run     reads only
    plan      the tables, the stores to read, and the reasons not to                        pure
    execute   the files of each store, then Delta's commits, then the manifest

    removal   the deletion of a labeled savepoint, whose records are `copies.labels`

The destination is no savepoint before its manifest exists. A run after a crash keeps the files of finished stores.
"""

from statekeeper.statestore.maintenance.copies.savepoints.execute import execute
from statekeeper.statestore.maintenance.copies.savepoints.gather import RowsFacts, gather
from statekeeper.statestore.maintenance.copies.savepoints.plan import RowsPlan, Tables, plan
from statekeeper.statestore.maintenance.copies.savepoints.record import Begun, read_begun

__all__ = ["Begun", "RowsFacts", "RowsPlan", "Tables", "execute", "gather", "plan", "read_begun"]
