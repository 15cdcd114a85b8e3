"""`statekeeper repair`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FINDINGS,
    TALK,
    Opened,
    Output,
    error_object,
    for_spark_option,
    output_option,
    pasteable,
    root_argument,
    run_of,
    scratch_option,
    stopped_option,
)
from statekeeper.statestore.cli.reports import TO_EXECUTE, print_blockers
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.rollback.repair import Rebuild, Relocate, RepairAction, RepairPlan, Rewrite
from statekeeper.statestore.maintenance.verbs import as_json
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.repair import Repair
from statekeeper.statestore.maintenance.verbs.rewind import Undo


@click.command()
@root_argument
@click.option(
    "--apply",
    is_flag=True,
    help="Execute the plan. First, each file that repair changes or removes is copied to quarantine.",
)
@click.option(
    "--undo",
    metavar="RUN",
    help="Undo an earlier repair: put back all files that it quarantined. RUN is the id that repair --apply printed. "
    "Rejected if the query has committed a batch since. Runs immediately, without --apply.",
)
@click.option(
    "--deep", is_flag=True, help="Also read every snapshot in full. This finds SST files whose contents are corrupt."
)
@click.option(
    "--location",
    metavar="URL",
    help="URL that Spark uses for the checkpoint after a move or copy, for example s3a://bucket/folder. Default: "
    "derived from ROOT. Required if repair cannot derive it, for example after a copy from S3 to HDFS.",
)
@for_spark_option(
    "Repair then also rewrites the headers of the snapshots that this release cannot read. If the checkpoint has "
    "snapshots of Spark 4.0 in structure V2, the option is required: give 4.0 to stay on Spark 4.0, or the release "
    "of the upgrade."
)
@scratch_option
@stopped_option("Required for --apply and --undo.")
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
    """Show the files that prevent Spark from starting or make it read wrong state; with --apply, repair them.

    If the batch before the newest one has lost its offsets and the newest batch is complete, repair writes them again.

    Repair moves these files to quarantine:

    \b
      - files of rolled-back batches: the logs no longer contain these batches
      - checksum files (.crc) that remain without their file
      - checksum files (.crc) that do not match their snapshot, if the snapshot is intact
      - corrupt snapshots that the newest version does not need
      - commits that cannot be read, except the newest one
      - other files that Spark reads as a snapshot or a log by mistake

    If a snapshot has a corrupt SST file, use --deep: without it, repair does not read SST files.

    After a checkpoint was moved or copied, repair corrects the URLs in its operator metadata. Only transformWithState and
    stream-stream joins in state format 3 or 4 have such URLs.

    In structure V2, Spark 4.0 cannot read the snapshots of later releases, and later releases cannot read those of Spark
    4.0. With --for-spark RELEASE, repair rewrites the headers of the snapshots that RELEASE
    cannot read.

    In structure V2, each changelog lists the versions before it: its lineage. If Spark rejects a lineage as too long,
    or if a snapshot is lost, repair cannot help. If the newest version can still be loaded, take a new snapshot of each
    store. In structure V1, first stop the query, and add --confirm-stopped:

    \b
        statekeeper snapshot ROOT --at-head --mode snapshots

    If the newest version cannot be loaded, restore the file from a backup, or run rewind.
    """
    run = run_of(root, scratch=scratch, stopped=stopped)
    if undo is not None:
        back = perform(prepare(Undo(of="repair", undone=undo), run)).made or []
        output.show({"put_back": back}, lambda console: console.print(f"put back {counted(len(back), 'file')}"))
        return
    prepared = prepare(Repair(for_spark=spark, location=location, deep=deep), run)
    done: list[RepairAction] = []
    if apply:
        way_back = f"to undo this run: statekeeper repair {root.storage.url} --undo {run.id} --confirm-stopped"
        prepared = perform(prepared, done.append, starting=lambda: TALK.print(way_back, soft_wrap=True))
    planned = prepared.plan
    refusals = () if done else prepared.refusals
    output.show(
        {**_object(planned, run.id, done), "refusals": [error_object(error) for error in refusals]},
        lambda console: _print(console, planned, done, [pasteable(str(error)) for error in refusals]),
    )
    sys.exit(FINDINGS if planned.asks or len(done) < len(planned.actions) else 0)


def _object(planned: RepairPlan, run: str, done: Sequence[RepairAction]) -> dict[str, Any]:
    return {
        "actions": [as_json.of_repair(action) for action in planned.actions],
        "asks": planned.asks,
        "run": run if done else None,
        "done": len(done),
    }


def _print(console: Console, planned: RepairPlan, done: Sequence[RepairAction], blocked: Sequence[str]) -> None:
    if planned.actions:
        table = tables.table(f"{counted(len(planned.actions), 'file')} to repair", "action", "file", "reason")
        for action in planned.actions[: tables.ROWS]:
            what = "quarantine"
            if isinstance(action, Rewrite):
                what = f"write header {action.header}"
            elif isinstance(action, Relocate):
                what = f"set schema location {action.location}"
            elif isinstance(action, Rebuild):
                what = "write again"
            tables.add(table, what, action.path, action.reason.value)
        if len(planned.actions) > tables.ROWS:
            table.caption = f"the first {tables.ROWS}"
        tables.show(console, table)
    if planned.asks:
        console.print(tables.plain(planned.asks), soft_wrap=True)
    if done:
        console.print(f"repaired {counted(len(done), 'file')}")
    elif planned.actions:
        print_blockers(console, blocked)
        if not blocked:
            console.print(TO_EXECUTE)
    elif not planned.asks:
        text = "nothing to repair: repair does not restore missing files or logs; statekeeper audit lists them"
        console.print(text, soft_wrap=True)
