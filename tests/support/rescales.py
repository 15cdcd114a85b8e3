"""Rewrites checkpoints like `statekeeper rescale` and `convert`, and compares their rows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.executors import Executor
from statekeeper.statestore.maintenance.rewrites import whole_stores
from statekeeper.statestore.maintenance.rewrites.engine import Machine, Progress
from statekeeper.statestore.maintenance.rewrites.whole_stores import Goal, Rescale, RewritePlan, file_sink
from statekeeper.statestore.storage import Storage
from tests.support import runs
from tests.support.dumped import dumped

FOR_SPARK = Spark.V4_2


def planned(
    storage: Storage, goal: int | Goal, scratch: Path, spark: Spark | None = FOR_SPARK, sink: Storage | None = None
) -> RewritePlan:
    """Plan a rewrite. `goal`: a number stands for a rescale to so many partitions."""
    target = Rescale(goal) if isinstance(goal, int) else goal
    plan = whole_stores.plan(whole_stores.gather(storage, scratch=scratch), target, spark)
    if sink is None or plan.batch is None:
        return plan
    begun = None if plan.half_done is None else plan.half_done.begun.file_sink
    return replace(plan, file_sink=file_sink.plan(sink, plan.batch + 1, begun=begun))


def rescale(
    storage: Storage,
    goal: int | Goal,
    scratch: Path,
    *,
    clock: Clock | None = None,
    spark: Spark | None = FOR_SPARK,
    sink: Storage | None = None,
    processes: int = 0,
    cluster: Executor | None = None,
) -> list[Progress]:
    """Plan and execute as `planned`, without the wait for a quiet checkpoint. `processes`: number of those that work on
    local files; `cluster`: runs the work on stores."""
    told: list[Progress] = []
    plan = planned(storage, goal, scratch, spark, sink)
    if plan.refusals:
        raise RefusedAsUnsafe("; ".join(plan.refusals))
    machine = Machine(scratch=scratch, clock=clock or SystemClock(), ids=RandomIds(), workers=1)
    machine = replace(machine, cluster=cluster)
    if processes:
        machine = replace(machine, workers=processes, process_bytes=0)
    run = RandomIds().fresh()
    runs.rewrite(storage, plan, told.append, run=run, holder="a test", machine=machine, sink=sink)
    return told


def abort(storage: Storage, *, clock: Clock | None = None, sink: Storage | None = None) -> None:
    journal = rewrite_journal.open_journal(storage)
    if journal is not None:
        run, now = RandomIds().fresh(), clock or SystemClock()
        runs.abort(storage, journal, lambda _: None, run=run, holder="a test", clock=now, sink=sink)


def all_rows(root: object) -> Counter[str]:
    """Every row at the newest batch as text, with operator, store and family, whatever its partition."""
    found: Counter[str] = Counter()
    for row in dumped(root):
        _, operator, _, *name = row["store"].split("/")
        found[json.dumps([operator, name, row["family"], row["key"], row["value"]], sort_keys=True)] += 1
    return found
