"""Repairs in tests, their undo, and the damage that they repair."""

from __future__ import annotations

from dataclasses import replace

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.format import names
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.rollback import repair, undo
from statekeeper.statestore.maintenance.rollback.repair import RepairPlan
from statekeeper.statestore.maintenance.upkeep import retention
from statekeeper.statestore.storage import Storage
from tests.support import runs
from tests.support.clocks import SleeplessClock

Contents = dict[str, bytes]


def rewind(storage: Storage, to_batch: int) -> None:
    """Roll back as users do: delete the newest logs."""
    storage.delete(f"{folder}/{batch}" for folder in ("commits", "offsets") for batch in range(to_batch + 1, 8))


def as_spark_4_0(storage: Storage) -> list[str]:
    """Give every snapshot the header that Spark 4.0 writes; their paths."""
    paths = [entry.path for entry in storage.list(names.STATE) if entry.path.endswith(".zip")]
    for path in paths:
        found = read_snapshot(storage.read(path), path)
        storage.replace(path, encode_snapshot(replace(found, metadata=replace(found.metadata, header="v2"))))
    return paths


def contents(storage: Storage) -> Contents:
    """Of every file but those about the runs themselves."""
    of_runs = (f"{names.LEASES}/", f"{names.HISTORY}/", f"{names.QUARANTINE}/", names.RETAINED)
    return {e.path: storage.read(e.path) for e in storage.list("") if not e.path.startswith(of_runs)}


def planned(storage: Storage, spark: Spark | None = None) -> RepairPlan:
    return repair.plan(repair.gather(storage), spark)


def apply(storage: Storage, plan: RepairPlan, *, clock: Clock | None = None) -> str:
    """Execute a repair, and return the id of the run."""
    run = RandomIds().fresh()
    for _ in runs.repair(storage, plan, run=run, holder="a test", clock=clock or SystemClock()):
        pass
    return run


def roll_back(storage: Storage, run: str) -> list[str]:
    return list(runs.undo_repair(storage, run, run=RandomIds().fresh(), holder="a test", clock=SystemClock()))


def put_back(storage: Storage, run: str) -> list[str]:
    """As `roll_back`, and no record of it."""
    return list(undo.execute(storage, run, undo.plan(undo.gather(storage, run))))


def aggressively_collected(storage: Storage, *, days: float = 0, stopped: bool = True) -> retention.RetentionPlan:
    """Run retention on all stores with a clock that is this number of days ahead and no grace period. Return its
    plan."""
    clock = SleeplessClock(SystemClock().now_seconds() + days * 86_400)
    policy = retention.RetentionPolicy(versions=1, grace_seconds=0)
    gathered = retention.gather(storage, policy, clock=clock, everything=True)
    plan = retention.plan(gathered, policy, stopped=stopped)
    for _ in runs.delete(storage, gathered, plan, holder="a test", clock=clock, ids=RandomIds()):
        pass
    return plan
