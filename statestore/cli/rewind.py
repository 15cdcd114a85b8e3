"""`statekeeper rewind`."""

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
    progress_bar,
    root_argument,
    run_of,
    scratch_option,
    stopped_option,
)
from statekeeper.statestore.cli.reports import APPLY, show, tell_way_back
from statekeeper.statestore.cli.verb_options import undo_option, verb_options
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.rewind import Revert, Rewind


@click.command()
@root_argument
@verb_options(Rewind)
@click.option(
    "--apply", is_flag=True, help="Execute the plan. Each file that rewind removes or changes is kept in quarantine."
)
@undo_option(Rewind)
@scratch_option
@executor_option
@stopped_option("Required for --apply and --undo.")
@output_option
def rewind(
    root: Opened, apply: bool, undo: str | None, scratch: Path, stopped: bool, output: Output, **given: Any
) -> None:
    """Show the plan to roll a stopped query back to an earlier batch; with --apply, roll it back.

    First, rewind restores the state of that batch into the directory --scratch. This proves that the state can be loaded.

    After a rewind, the query reads the input of the later batches again. The plan lists the data that the sources must
    still have, for example offsets of Kafka topics. To look up whether it still exists, add --source or --kafka-config.
    Files on this machine are always looked up.

    With --apply, rewind moves the state, offsets and commits of later batches to quarantine. The query gets a new id unless
    you add --keep-query-id.

    A job on pipelines has two folders: the checkpoint of Spark and the state root. Rewind both folders to the same
    batch. The first command prints the new query id: give it to the second with --query-id.
    """
    run = run_of(root, scratch=scratch, stopped=stopped)
    if undo is not None:
        if apply or any(value is not None and value is not False and value != () for value in given.values()):
            raise click.UsageError("with --undo, give no other option than --confirm-stopped")
        show(output, perform(prepare(Revert(of="rewind", undone=undo), run)))
        return
    if (given["batch"] is None) == (given["time"] is None):
        raise click.UsageError("give one of --to-batch, --to or --undo")
    if given["query_id"] is not None and given["keep_query_id"]:
        raise click.UsageError("--query-id and --keep-query-id exclude each other")
    if given["file_sink"] is not None and given["has_no_file_sink"]:
        raise click.UsageError("--file-sink and --no-file-sink exclude each other")
    with progress_bar() as progress:
        bar = progress.add_task("restored stores", total=None)
        prepared = prepare(Rewind(**given, restored=lambda store: progress.advance(bar)), run)
    if apply:
        prepared = perform(prepared, starting=lambda: tell_way_back(prepared))
    show(output, prepared, *APPLY)
    sys.exit(FINDINGS if prepared.refusals else 0)
