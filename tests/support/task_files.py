"""Batches whose data files a task writes and a driver commits, without Spark."""

from __future__ import annotations

import pyarrow as pa

from statekeeper.pipelines.sinks.data_files import TableFiles
from statekeeper.pipelines.sinks.sink import Attempt, DeltaSink
from statekeeper.statestore.base.clock import RandomIds

SIMPLE = pa.schema([("key", pa.int64()), ("region", pa.string())])


def attempt(batch: int, name: str = "a") -> Attempt:
    return Attempt("query", "root", batch, name)


def written(sink: DeltaSink, rows: pa.Table, batch: int, name: str = "a", pieces: int = 1) -> TableFiles:
    """One batch of one task, in pieces."""
    plan = sink.plan_files(rows.schema)
    assert plan is not None
    with plan.open(0, RandomIds()) as files:
        size = max(rows.num_rows // pieces, 1)
        for start in range(0, rows.num_rows, size):
            files.write(rows.slice(start, size))
        sink.commit_files(plan, files.complete(), attempt(batch, name))
    return plan


def simple(*regions: str | None) -> pa.Table:
    return pa.table({"key": list(range(len(regions))), "region": list(regions)}, schema=SIMPLE)
