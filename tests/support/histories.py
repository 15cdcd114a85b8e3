"""Brings tables of history to the newest runs of roots, and reads them with `deltalake`, which shares no code with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.maintenance.records.history import Json, recorded
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy
from statekeeper.statestore.maintenance.verbs import history
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.history import RecordedHistory, Source
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.clocks import SleeplessClock

TABLES = ("runs", "steps", "health")
DAY = 86_400.0


def a_pass(
    roots: Mapping[str, Storage],
    to: str,
    scratch: Path,
    *,
    clock: Clock | None = None,
    open_table: Callable[[str], Storage] = open_storage,
    team: str = "payments",
    restore_target_seconds: float | None = None,
    **how: Any,
) -> RecordedHistory:
    """One pass over roots. `how`: as for `history.plan`."""
    at = clock or SystemClock()
    policies = Policies(SnapshotPolicy(restore_target_seconds=restore_target_seconds), team=team)
    sources = [Source(name=name, storage=one, policies=policies) for name, one in roots.items()]
    planned = history.plan(history.gather(to, sources, open_table, clock=at), **how)
    return history.execute(planned, scratch=scratch, clock=at, ids=RandomIds())


def a_run(storage: Storage, verb: str, seconds: float, *, plan: list[Json], outcome: list[Json]) -> str:
    """Record a run that began at a time, as each verb does. Return its id."""
    run = RandomIds().fresh()
    with recorded(storage, verb, run, plan, SleeplessClock(seconds)) as done:
        done += outcome
    return run


def tables_at(to: str) -> dict[str, DeltaTable]:
    return {name: DeltaTable(f"{to}/{name}") for name in TABLES}


def asked(query: str, to: str) -> list[dict[str, Any]]:
    """The rows of a query of the tables."""
    builder = QueryBuilder()
    for name, table in tables_at(to).items():
        builder = builder.register(name, table)
    rows: list[dict[str, Any]] = pa.table(builder.execute(query).read_all()).to_pylist()
    return rows
