"""Plans and runs of retention in tests, and their snapshots."""

from __future__ import annotations

from pathlib import Path

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.upkeep import retention, snapshot
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, RetentionPlan, RetentionPolicy, Rule
from statekeeper.statestore.storage import Storage

AT_ONCE = RetentionPolicy(versions=5, grace_seconds=0)
"""Keeps the five newest versions, however young the others are."""


def planned(storage: Storage, policy: RetentionPolicy = AT_ONCE) -> RetentionPlan:
    return retention.plan(retention.gather(storage, policy, clock=SystemClock()), policy)


def collect(storage: Storage, plan: RetentionPlan) -> list[Deleted]:
    run = RandomIds().fresh()
    with lease.held(storage, "gc", run=run, holder="a test", clock=SystemClock()) as held:
        return list(retention.execute(storage, plan, run=run, lease=held, clock=SystemClock()))


def take_snapshots(storage: Storage, scratch: Path) -> list[snapshot.Taken]:
    plan = snapshot.plan(snapshot.gather(storage), snapshot.SnapshotPolicy(), take_all=True)
    return [
        snapshot.execute(storage, action, scratch=scratch, clock=SystemClock(), ids=RandomIds()) for action in plan.take
    ]


def rules(plan: RetentionPlan) -> dict[str, Rule]:
    return {verdict.path: verdict.rule for verdict in plan.verdicts}


def paths(storage: Storage, folder: str = names.STATE) -> set[str]:
    return {entry.path for entry in storage.list(folder)}
