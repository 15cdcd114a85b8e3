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
    holder,
    output_option,
    root_argument,
    stopped_option,
)
from statestore.clock import RandomIds, SystemClock
from statestore.maintenance import records, runs
from statestore.maintenance import repair as rescues
from statestore.maintenance.quiet import require_stopped
from statestore.maintenance.repair import PutAside, RepairPlan, Rewrite, Spark


@click.command()
@root_argument
@click.option("--apply", is_flag=True, help="Do what the plan says. What is changed or taken away is put aside first.")
@click.option("--undo", metavar="RUN", help="Put back what that run has put aside.")
@click.option(
    "--for-spark",
    type=click.Choice([spark.value for spark in Spark]),
    help="The Spark that goes on from here: 4.0 and later ones do not read each other's snapshots in structure V2.",
)
@stopped_option
@output_option
def repair(root: Opened, apply: bool, undo: str | None, for_spark: str | None, stopped: bool, output: Output) -> None:
    """Show what keeps Spark from starting, or would lead it astray; with --apply, take it out of the way.

    Snapshots that Spark 4.0 wrote in structure V2 get the header that later ones read. Files of batches that were taken
    back, by deleting the newest commits, are put aside. A query that died at the lineage ceiling, or whose snapshot is
    gone, needs neither: statekeeper snapshot ROOT --at-head.
    """
    clock, storage, run = SystemClock(), root.storage, RandomIds().fresh()
    if undo is not None:
        require_stopped(storage, said=stopped, clock=clock)
        back = list(runs.undo_repair(storage, undo, run=run, holder=holder(), clock=clock))
        output.show({"put_back": back}, lambda console: console.print(f"put back {len(back):,} files"))
        return
    planned = rescues.plan(rescues.gather(storage), Spark(for_spark) if for_spark else None)
    done: list[Rewrite | PutAside] = []
    if apply and planned.actions:
        require_stopped(storage, said=stopped, clock=clock)
        try:
            done.extend(runs.repair(storage, planned, run=run, holder=holder(), clock=clock))
        finally:
            TALK.print(f"to take it back: statekeeper repair ROOT --undo {run} --i-stopped-it")
    output.show(_object(planned, run, done), lambda console: _print(console, planned, done))
    sys.exit(FINDINGS if planned.asks or len(done) < len(planned.actions) else 0)


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
