"""Makes savepoints with rows, and loads them like `statekeeper load`."""

from __future__ import annotations

from pathlib import Path

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.copies.savepoints.saved import read_saved
from statekeeper.statestore.maintenance.executors import Executor
from statekeeper.statestore.maintenance.rewrites import whole_stores
from statekeeper.statestore.maintenance.rewrites.engine import Machine, ProgressCallback
from statekeeper.statestore.maintenance.rewrites.whole_stores import Load, RewritePlan
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import runs
from tests.support.savepoints import saved

FOR_SPARK = Spark.V4_2


def savepoint(source: Storage, folder: Path) -> Storage:
    """Save the rows of a stopped checkpoint, and return the savepoint."""
    destination = open_storage(str(folder))
    saved(source, destination, folder.with_name(f"{folder.name}-scratch"), stopped=True)
    return destination


def goal(of: Storage, *, replaces_state: bool = True) -> Load:
    return Load(read_saved(of), of, replaces_state)


def planned(
    storage: Storage, of: Storage, scratch: Path, *, replaces_state: bool = True, spark: Spark | None = FOR_SPARK
) -> RewritePlan:
    facts = whole_stores.gather(storage, scratch=scratch, of_load=True)
    return whole_stores.plan(facts, goal(of, replaces_state=replaces_state), spark)


def load(
    storage: Storage,
    of: Storage,
    scratch: Path,
    *,
    replaces_state: bool = True,
    clock: Clock | None = None,
    progress: ProgressCallback = lambda _: None,
    cluster: Executor | None = None,
) -> str:
    """Plan and execute, without the wait for a quiet checkpoint. Return the id of the run."""
    plan = planned(storage, of, scratch, replaces_state=replaces_state)
    if plan.refusals:
        raise RefusedAsUnsafe("; ".join(plan.refusals))
    run = RandomIds().fresh() if plan.half_done is None else plan.half_done.begun.run
    machine = Machine(scratch=scratch, clock=clock or SystemClock(), ids=RandomIds(), workers=1, cluster=cluster)
    runs.rewrite(storage, plan, progress, run=run, holder="a test", machine=machine)
    return run


def undo(storage: Storage, run: str, *, clock: Clock | None = None) -> None:
    runs.undo_rewrite(
        storage,
        run,
        lambda _: None,
        RewriteKind.LOAD,
        run=RandomIds().fresh(),
        holder="a test",
        clock=clock or SystemClock(),
    )
