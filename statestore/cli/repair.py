"""`statekeeper repair`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console

from statestore.cli import tables
from statestore.cli.common import (
    FINDINGS,
    TALK,
    Opened,
    Output,
    for_spark_option,
    holder,
    output_option,
    root_argument,
    stopped_option,
)
from statestore.clock import RandomIds, SystemClock
from statestore.errors import RefusedAsUnsafe
from statestore.format.sparks import Spark
from statestore.maintenance import records, runs
from statestore.maintenance import repair as rescues
from statestore.maintenance.config import Mode
from statestore.maintenance.quiet import require_stopped
from statestore.maintenance.repair import PutAside, RepairPlan, Rewrite


@click.command()
@root_argument
@click.option("--apply", is_flag=True, help="Do what the plan says. What is changed or taken away is put aside first.")
@click.option("--undo", metavar="RUN", help="Put back what that run has put aside, all or nothing.")
@for_spark_option
@stopped_option
@output_option
def repair(root: Opened, apply: bool, undo: str | None, spark: Spark | None, stopped: bool, output: Output) -> None:
    """Show what keeps Spark from starting, or would lead it astray; with --apply, take it out of the way.

    Snapshots that Spark 4.0 wrote in structure V2 get the header that later ones read. Files of batches that were taken
    back, by deleting the newest commits, are put aside. A query that died at the lineage ceiling, or whose snapshot is
    gone, needs neither: statekeeper snapshot ROOT --at-head.
    """
    clock, storage, run = SystemClock(), root.storage, RandomIds().fresh()
    if undo is not None:
        _require_allowed(root)
        require_stopped(storage, said=stopped, clock=clock)
        back = list(runs.undo_repair(storage, undo, run=run, holder=holder(), clock=clock))
        output.show({"put_back": back}, lambda console: console.print(f"put back {len(back):,} files"))
        return
    planned = rescues.plan(rescues.gather(storage), spark)
    done: list[Rewrite | PutAside] = []
    if apply and planned.actions:
        _require_allowed(root)
        require_stopped(storage, said=stopped, clock=clock)
        # What was planned before may have been of a query that was at work.
        planned = rescues.plan(rescues.gather(storage), spark)
        try:
            done.extend(runs.repair(storage, planned, run=run, holder=holder(), clock=clock))
        finally:
            TALK.print(f"to take it back: statekeeper repair ROOT --undo {run} --i-stopped-it", soft_wrap=True)
    output.show(_object(planned, run, done), lambda console: _print(console, planned, done))
    sys.exit(FINDINGS if planned.asks or len(done) < len(planned.actions) else 0)


def _require_allowed(root: Opened) -> None:
    mode = root.policies.mode
    if mode not in (None, Mode.FULL):
        raise RefusedAsUnsafe(
            f"mode {mode.value} is configured: nothing may be changed",
            path=root.storage.url,
            hint='set mode = "full" for it in statekeeper.toml',
        )


def _object(planned: RepairPlan, run: str, done: Sequence[Rewrite | PutAside]) -> dict[str, Any]:
    return {
        "actions": [records.of_repair(action) for action in planned.actions],
        "asks": planned.asks,
        "run": run if done else None,
        "done": len(done),
    }


def _print(console: Console, planned: RepairPlan, done: Sequence[Rewrite | PutAside]) -> None:
    if planned.actions:
        table = tables.table(f"{len(planned.actions):,} files are in the way", "what", "file", "why")
        for action in planned.actions[: tables.ROWS]:
            what = f"header {action.header}" if isinstance(action, Rewrite) else "put aside"
            tables.add(table, what, action.path, action.why.value)
        if len(planned.actions) > tables.ROWS:
            table.caption = f"the first {tables.ROWS}"
        console.print(table)
    if planned.asks:
        console.print(tables.plain(planned.asks), soft_wrap=True)
    if done:
        console.print(f"{len(done):,} files done")
    elif planned.actions:
        console.print("--apply --i-stopped-it does it")
    elif not planned.asks:
        console.print("nothing is in the way")
