"""`statekeeper repair`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from statekeeper.statestore.cli.common import (
    FINDINGS,
    Opened,
    Output,
    executor_option,
    output_option,
    root_argument,
    run_of,
    scratch_option,
    stopped_option,
)
from statekeeper.statestore.cli.reports import APPLY, show, tell_way_back
from statekeeper.statestore.cli.verb_options import undo_option, verb_options
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.repair import Repair
from statekeeper.statestore.maintenance.verbs.rewind import Revert


@click.command()
@root_argument
@click.option(
    "--apply",
    is_flag=True,
    help="Execute the plan. First, each file that repair changes or removes is copied to quarantine.",
)
@undo_option(Repair)
@verb_options(Repair)
@scratch_option
@executor_option
@stopped_option("Required for --apply and --undo.")
@output_option
def repair(
    root: Opened, apply: bool, undo: str | None, scratch: Path, stopped: bool, output: Output, **given: Any
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
        show(output, perform(prepare(Revert(of="repair", undone=undo), run)))
        return
    prepared = prepare(Repair(**given), run)
    if apply:
        prepared = perform(prepared, starting=lambda: tell_way_back(prepared))
    show(output, prepared, *APPLY)
    planned = prepared.plan
    sys.exit(FINDINGS if planned.asks or (planned.actions and not prepared.is_done) else 0)
