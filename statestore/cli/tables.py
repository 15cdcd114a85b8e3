"""How facts, plans and outcomes are shown: as tables for people, as objects for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from statestore.errors import StatekeeperError
from statestore.lineage import BaseKind
from statestore.maintenance.snapshot import LeaveAlone, SnapshotPlan, StoreFacts, Taken, TakeSnapshot

_ROWS = 50
"""A person reads no more; the rest is counted."""


def as_json(result: dict[str, Any]) -> str:
    """One object, readable by people too."""
    return json.dumps(result, indent=1)


def facts_object(batch: int, facts: Sequence[StoreFacts]) -> dict[str, Any]:
    """What `inspect` found."""
    return {"batch": batch, "version": batch + 1, "stores": [_fact_object(fact) for fact in facts]}


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


def facts_table(batch: int, facts: Sequence[StoreFacts]) -> Table:
    """The stores with the longest tails."""
    table = _table(
        f"batch {batch}, version {batch + 1}: {len(facts)} stores", "store", "base", "tail", "tail bytes", "problem"
    )
    worst = sorted(facts, key=lambda fact: (fact.problem is None, -fact.tail_bytes, fact.store))
    for fact in worst[:_ROWS]:
        if fact.load is None:
            table.add_row(str(fact.store), "-", "-", "-", fact.problem)
        else:
            base = "nothing" if fact.load.base_kind is BaseKind.NOTHING else f"snapshot {fact.load.base.version}"
            table.add_row(str(fact.store), base, f"{len(fact.load.replay):,}", f"{fact.tail_bytes:,}", "")
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
        f"batch {plan.batch}: {len(plan.take)} snapshots to take, {len(plan.leave)} stores to leave alone",
        "store",
        "what",
        "why",
    )
    actions: list[TakeSnapshot | LeaveAlone] = [*plan.take, *plan.leave]
    for action in actions[:_ROWS]:
        what = f"snapshot of version {action.version.version}" if isinstance(action, TakeSnapshot) else "nothing"
        table.add_row(str(action.store), what, action.explained)
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
            f"batch {plan.batch}: {len(taken)} snapshots", "store", "version", "keys", "tables", "new", "uploaded", "s"
        )
        for one in taken[:_ROWS]:
            table.add_row(
                str(one.action.store),
                str(one.action.version.version),
                f"{one.keys:,}",
                f"{one.tables}",
                f"{one.new_tables}",
                f"{one.uploaded_bytes:,}",
                f"{one.seconds:.2f}",
            )
        console.print(table)
    console.print(f"{len(taken)} taken, {len(failed)} failed, {len(plan.leave)} left alone")
    if failed:
        console.print("run it again: what is done is not done twice")
    elif not taken:
        console.print("--dry-run says why; --all takes one of every store")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in ("what", "why", "problem") else "right")
    return table
