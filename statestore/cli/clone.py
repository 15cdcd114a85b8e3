"""`statekeeper clone`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich import filesize
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    BATCH_DEFAULT,
    FINDINGS,
    Opened,
    Output,
    complete_root,
    copy_location_option,
    error_object,
    open_destination,
    output_option,
    pasteable,
    root_argument,
    scratch_option,
    stopped_for_copy_option,
    this_process,
)
from statekeeper.statestore.cli.copy_progress import copy_progress
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.copies.clones import ClonePlan, Way
from statekeeper.statestore.maintenance.verbs import PreparedClone


@click.command()
@root_argument
@click.argument("destination", shell_complete=complete_root)
@click.option("--batch", type=click.IntRange(0), help=f"The batch to clone. {BATCH_DEFAULT}")
@click.option(
    "--new-query",
    is_flag=True,
    help="Give the clone a new query id. Use it if both queries write to the same Delta table: with the same id, the table "
    "skips a batch if it already has a batch with this number. Default: the clone keeps the query id of the source.",
)
@click.option("--query-id", metavar="UUID", help="The new query id. Implies --new-query. Default: a random id.")
@copy_location_option
@stopped_for_copy_option
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@scratch_option
@output_option
@click.pass_context
def clone(
    ctx: click.Context,
    root: Opened,
    destination: str,
    batch: int | None,
    new_query: bool,
    query_id: str | None,
    location: str | None,
    stopped: bool,
    dry_run: bool,
    scratch: Path,
    output: Output,
) -> None:
    """Copy a checkpoint at one batch to another location. A Spark query can start from the copy.

    The query of the source may be running. clone does not change its files. The clone contains all files that Spark
    needs to start after this batch.

    DESTINATION must be empty, or contain only files of an interrupted run of the same command. clone only adds files,
    so it runs immediately, without --apply. If it is interrupted, run the same command again. If it then fails because
    the query has committed more batches, add the --batch that the error names.

    In structure V1, a running native query can overwrite the changelogs of its two newest
    batches. To copy one of these batches, stop the query and add --confirm-stopped.
    """
    if query_id is not None and not names.is_checkpoint_id(query_id):
        raise click.BadParameter(f"{query_id!r} is not a UUID", param_hint="--query-id")
    by = this_process()
    other = open_destination(ctx, destination).storage
    prepared = verbs.clone.plan(
        root.storage,
        other,
        root.policies,
        by,
        batch=batch,
        new_query=new_query,
        query_id=query_id,
        stopped=stopped,
        location=location,
    )
    planned = prepared.plan
    if dry_run:
        output.show(clone_object(prepared), lambda console: print_clone(console, prepared))
        sys.exit(FINDINGS if prepared.refusals else 0)
    before = by.clock.monotonic_seconds()
    with copy_progress(planned.files) as copied:
        verbs.clone.execute(root.storage, other, prepared, by, scratch=scratch, copied=copied)
    seconds = by.clock.monotonic_seconds() - before
    output.show(
        {**clone_object(prepared), "cloned": True, "seconds": round(seconds, 3)},
        lambda console: _print_done(console, planned, other.url, seconds),
    )


def clone_object(prepared: PreparedClone) -> dict[str, Any]:
    """The plan of a clone as a JSON object."""
    planned = prepared.plan
    return {
        "batch": planned.record.batch,
        "newest_batch": planned.newest,
        "structure": planned.structure.value,
        "query_id": planned.record.query,
        "complete": planned.is_complete,
        "stores": planned.stores,
        "files": len(planned.files),
        "bytes": planned.size_bytes(),
        "bytes_by_service": planned.size_bytes(Way.SERVICE),
        "bytes_through_this_machine": planned.size_bytes(Way.STREAM, Way.REWRITE),
        "bytes_present": planned.size_bytes(Way.PRESENT),
        "refusals": [error_object(error) for error in prepared.refusals],
        "list": [
            {"path": file.path, "bytes": file.size_bytes, "part": file.part.value, "way": file.way.value}
            for file in planned.files
        ],
    }


def print_clone(console: Console, prepared: PreparedClone) -> None:
    """Print the plan of a clone."""
    planned = prepared.plan
    table = tables.table(
        f"{tables.when(planned.record.batch)} (newest batch of the source: {planned.newest:,}): "
        f"{counted(planned.stores, 'store')}, {counted(len(planned.files), 'file')}, "
        f"{filesize.decimal(planned.size_bytes())}",
        "part",
        "copied",
        "files",
        "bytes",
    )
    files, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for file in planned.files:
        files[file.part.value, file.way.value] += 1
        sizes[file.part.value, file.way.value] += file.size_bytes
    for (part, way), number in files.items():
        tables.add(table, part, way, f"{number:,}", f"{sizes[part, way]:,}")
    tables.show(console, table)
    console.print(f"query id of the clone: {planned.record.query}")
    if planned.is_complete:
        console.print("the clone is complete: nothing to do")
    for refusal in prepared.refusals:
        console.print(Text.assemble(("blocked: ", "red"), pasteable(str(refusal))), soft_wrap=True)


def _print_done(console: Console, planned: ClonePlan, url: str, seconds: float) -> None:
    through = planned.size_bytes(Way.STREAM, Way.REWRITE)
    console.print(
        tables.plain(
            f"cloned {tables.when(planned.record.batch)} to {url}: {counted(len(planned.files), 'file')}, "
            f"{filesize.decimal(planned.size_bytes())} in {seconds:,.1f} s, of which {filesize.decimal(through)} "
            "went through this machine"
        ),
        soft_wrap=True,
    )
