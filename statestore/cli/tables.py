"""How facts, plans and outcomes are shown: as tables for people, as objects for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from statestore.errors import StatekeeperError
from statestore.lineage import BaseKind
from statestore.maintenance.snapshot import Gathered, LeaveAlone, SnapshotPlan, StoreFacts, Taken, TakeSnapshot

_ROWS = 50
"""A person reads no more; the rest is counted."""


def as_json(result: dict[str, Any]) -> str:
    """One object, readable by people too."""
    return json.dumps(result, indent=1)


def facts_object(gathered: Gathered) -> dict[str, Any]:
    """What `inspect` found."""
    batch = gathered.batch
    return {
        "batch": batch,
        "version": None if batch is None else batch + 1,
        "stores": [_fact_object(fact) for fact in gathered.stores],
    }


def _fact_object(fact: StoreFacts) -> dict[str, Any]:
    load = fact.load
    return {
        "store": str(fact.store),
        "head": str(fact.head),
        "base": None if load is None else str(load.base),
        "tail_changelogs": None if load is None else len(load.replay),
        "tail_bytes": None if load is None else fact.tail_bytes,
        "problem": fact.problem,
    }


def facts_table(gathered: Gathered) -> Table:
    """The stores with the longest tails."""
    facts = gathered.stores
    table = _table(f"{_when(gathered.batch)}: {len(facts):,} stores", "store", "base", "tail", "tail bytes", "problem")
    worst = sorted(facts, key=lambda fact: (fact.problem is None, -fact.tail_bytes, fact.store))
    for fact in worst[:_ROWS]:
        if fact.load is None:
            _add(table, fact.store, "-", "-", "-", fact.problem)
        else:
            base = "nothing" if fact.load.base_kind is BaseKind.NOTHING else f"snapshot {fact.load.base.version}"
            _add(table, fact.store, base, f"{len(fact.load.replay):,}", f"{fact.tail_bytes:,}", fact.problem or "")
    if len(facts) > _ROWS:
        table.caption = f"the worst {_ROWS} of {len(facts):,}"
    return table


def plan_object(plan: SnapshotPlan) -> dict[str, Any]:
    """The plan, with the reason for each store."""
    return {
        "batch": plan.batch,
        "take": [_action_object(action) for action in plan.take],
        "leave": [_action_object(action) for action in plan.leave],
    }


def _action_object(action: TakeSnapshot | LeaveAlone) -> dict[str, Any]:
    return {
        "store": str(action.store),
        "version": str(action.version),
        "reason": action.reason.name.lower(),
        "explained": action.explained,
    }


def plan_table(plan: SnapshotPlan) -> Table:
    """The plan for a person."""
    table = _table(
        f"{_when(plan.batch)}: {len(plan.take)} snapshots to take, {len(plan.leave)} stores to leave alone",
        "store",
        "what",
        "why",
    )
    actions: list[TakeSnapshot | LeaveAlone] = [*plan.take, *plan.leave]
    for action in actions[:_ROWS]:
        what = f"snapshot of version {action.version.version}" if isinstance(action, TakeSnapshot) else "nothing"
        _add(table, action.store, what, action.explained)
    if len(actions) > _ROWS:
        table.caption = f"the first {_ROWS}"
    return table


def taken_object(
    plan: SnapshotPlan, taken: Sequence[Taken], failed: Sequence[tuple[TakeSnapshot, StatekeeperError]]
) -> dict[str, Any]:
    """What became of a plan."""
    return {
        **plan_object(plan),
        "taken": [
            {
                "store": str(one.action.store),
                "version": str(one.action.version),
                "outcome": one.published.name.lower(),
                "keys": one.keys,
                "tables": one.tables,
                "new_tables": one.new_tables,
                "uploaded_bytes": one.uploaded_bytes,
                "replayed_keys": one.replayed_keys,
                "skipped_snapshots": list(one.skipped_snapshots),
                "seconds": round(one.seconds, 3),
            }
            for one in taken
        ],
        "failed": [{"store": str(a.store), "code": error.code, "error": str(error)} for a, error in failed],
    }


def print_taken(
    console: Console,
    plan: SnapshotPlan,
    taken: Sequence[Taken],
    failed: Sequence[tuple[TakeSnapshot, StatekeeperError]],
) -> None:
    """What became of a plan, and what to do next."""
    if taken:
        table = _table(
            f"{_when(plan.batch)}: {len(taken)} snapshots", "store", "version", "keys", "tables", "new", "uploaded", "s"
        )
        for one in taken[:_ROWS]:
            _add(
                table,
                one.action.store,
                one.action.version.version,
                f"{one.keys:,}",
                one.tables,
                one.new_tables,
                f"{one.uploaded_bytes:,}",
                f"{one.seconds:.2f}",
            )
        console.print(table)
    console.print(f"{len(taken)} taken, {len(failed)} failed, {len(plan.leave)} left alone")
    if failed:
        console.print("run it again: what is done is not done twice")
    elif not taken:
        console.print("--dry-run says why; --all takes one of every store")


def _when(batch: int | None) -> str:
    return "no batch is committed yet" if batch is None else f"batch {batch}, version {batch + 1}"


def _add(table: Table, *cells: object) -> None:
    # As plain text: names and errors come out of files and may hold what looks like markup.
    table.add_row(*(Text(str(cell)) for cell in cells))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in ("what", "why", "problem") else "right")
    return table
