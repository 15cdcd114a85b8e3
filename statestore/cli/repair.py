"""`statekeeper repair`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
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
    output_option,
    root_argument,
    scratch_option,
    stopped_option,
    this_process,
)
from statestore.format.sparks import Spark
from statestore.maintenance import passes, records
from statestore.maintenance.bad_snapshots import DeepRead
from statestore.maintenance.repair import Relocate, RepairAction, RepairPlan, Rewrite


@click.command()
@root_argument
@click.option(
    "--apply", is_flag=True, help="Do what the plan says. What is changed or taken away is quarantined first."
)
@click.option("--undo", metavar="RUN", help="Put back what that run has quarantined, all or nothing.")
@click.option("--deep", is_flag=True, help="Read every snapshot in full, as audit --deep, to find the damaged ones.")
@click.option(
    "--location",
    metavar="URL",
    help="The checkpoint's location as Spark names it, s3a://bucket/folder; where a moved checkpoint does not tell.",
)
@for_spark_option
@scratch_option
@stopped_option
@output_option
def repair(
    root: Opened,
    apply: bool,
    undo: str | None,
    deep: bool,
    location: str | None,
    spark: Spark | None,
    scratch: Path,
    stopped: bool,
    output: Output,
) -> None:
    """Show what keeps Spark from starting, or would lead it astray; with --apply, take it out of the way.

    Snapshots that Spark 4.0 wrote in structure V2 get the header that later ones read. Files of batches that were taken
    back, by deleting the newest commits, are quarantined. So are sidecars (.crc) that fit no snapshot, and
    damaged snapshots
    with their sidecars where the head loads without them: known from the reads of gc, or found by --deep. After a
    checkpoint was moved or copied, the metadata of operators with column families names the new place of their schemas. A
    query that died at the lineage ceiling, or whose snapshot is gone, needs neither: statekeeper snapshot ROOT --at-head.
    """
    storage, policies, by = root.storage, root.policies, this_process()
    run = by.ids.fresh()
    if undo is not None:
        back = passes.repair.undo(storage, policies, undo, by, run=run, stopped=stopped)
        output.show({"put_back": back}, lambda console: console.print(f"put back {len(back):,} files"))
        return
    reads = DeepRead(scratch, by.clock) if deep else None
    prepared = passes.repair.prepare(storage, policies, spark, location, deep=reads)
    done: list[RepairAction] = []
    if apply:
        way_back = f"to take it back: statekeeper repair ROOT --undo {run} --confirm-stopped"
        prepared = passes.repair.execute(
            storage,
            prepared,
            by,
            run=run,
            stopped=stopped,
            starting=lambda: TALK.print(way_back, soft_wrap=True),
            progress=done.append,
        )
    planned = prepared.plan
    output.show(_object(planned, run, done), lambda console: _print(console, planned, done))
    sys.exit(FINDINGS if planned.asks or len(done) < len(planned.actions) else 0)


def _object(planned: RepairPlan, run: str, done: Sequence[RepairAction]) -> dict[str, Any]:
    return {
        "actions": [records.of_repair(action) for action in planned.actions],
        "asks": planned.asks,
        "run": run if done else None,
        "done": len(done),
    }


def _print(console: Console, planned: RepairPlan, done: Sequence[RepairAction]) -> None:
    if planned.actions:
        table = tables.table(f"{len(planned.actions):,} files are in the way", "what", "file", "why")
        for action in planned.actions[: tables.ROWS]:
            what = "quarantined"
            if isinstance(action, Rewrite):
                what = f"header {action.header}"
            elif isinstance(action, Relocate):
                what = f"schemas in {action.location}"
            tables.add(table, what, action.path, action.why.value)
        if len(planned.actions) > tables.ROWS:
            table.caption = f"the first {tables.ROWS}"
        console.print(table)
    if planned.asks:
        console.print(tables.plain(planned.asks), soft_wrap=True)
    if done:
        console.print(f"{len(done):,} files done")
    elif planned.actions:
        console.print("--apply --confirm-stopped does it")
    elif not planned.asks:
        console.print("nothing is in the way")
