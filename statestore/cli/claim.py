"""`statekeeper claim`."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FINDINGS,
    Opened,
    Output,
    complete_root,
    error_object,
    output_option,
    pasteable,
    root_argument,
    run_of,
    stopped_option,
)
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.rollback.claim import ClaimPlan
from statekeeper.statestore.maintenance.verbs.claim import Claim
from statekeeper.statestore.maintenance.verbs.contract import Prepared, perform, prepare


@click.command()
@root_argument
@click.option(
    "--checkpoint",
    metavar="CHECKPOINT",
    shell_complete=complete_root,
    help="The checkpoint of the query that becomes the owner. If the folder is empty, claim writes a new checkpoint there. "
    "The job then continues with the batch after the newest committed batch of ROOT.",
)
@click.option(
    "--query-id",
    metavar="UUID",
    help="The id of the query that becomes the owner. If --checkpoint contains a checkpoint, omit this option: claim reads "
    "the id from the checkpoint. If --checkpoint is an empty folder, the default is the id of the present owner.",
)
@click.option("--apply", is_flag=True, help="Execute the plan.")
@stopped_option("Required for --apply.")
@output_option
def claim(
    root: Opened,
    checkpoint: str | None,
    query_id: str | None,
    apply: bool,
    stopped: bool,
    output: Output,
) -> None:
    """Show which query would become the owner of a state root; with --apply, make it the owner.

    ROOT is the state root of a job on pipelines. The checkpoint of a native query has no owner.

    Use this command if the checkpoint of the job is lost, or if a query with another id must continue with this state. Stop
    the job first. Name the new owner with --checkpoint or with --query-id.

    If the former job still runs after the claim, it stops before its next batch with the error foreign_root.
    """
    if checkpoint is None and query_id is None:
        raise click.UsageError("give --checkpoint, --query-id, or both")
    if query_id is not None and not names.is_checkpoint_id(query_id):
        raise click.BadParameter(f"{query_id!r} is not a UUID", param_hint="--query-id")
    prepared = prepare(Claim(checkpoint=checkpoint, query_id=query_id), run_of(root, stopped=stopped))
    if apply:
        prepared = perform(prepared)
    is_done = apply or prepared.plan.is_done
    output.show(_object(prepared, is_done=is_done), lambda console: _print(console, prepared, is_done=is_done))
    sys.exit(FINDINGS if prepared.refusals else 0)


def _object(prepared: Prepared[ClaimPlan, None, None], *, is_done: bool) -> dict[str, Any]:
    planned = prepared.plan
    return {
        "former_query_id": planned.former,
        "query_id": planned.query,
        "newest_batch": planned.newest,
        "files": [path for path, _ in planned.files],
        "refusals": [error_object(error) for error in prepared.refusals],
        "claimed": is_done,
        "mirror_of": planned.mirror_of,
    }


def _print(console: Console, prepared: Prepared[ClaimPlan, None, None], *, is_done: bool) -> None:
    planned = prepared.plan
    console.print(tables.plain(f"owner: query {planned.former} -> query {planned.query}"), soft_wrap=True)
    if planned.files:
        written = "made" if is_done else "to make"
        paths = ", ".join(path for path, _ in planned.files)
        console.print(tables.plain(f"checkpoint {written} at batch {planned.newest:,}: {paths}"), soft_wrap=True)
    if planned.mirror_of is not None:
        console.print(
            tables.plain(
                f"this root is a mirror of {planned.mirror_of}. Stop the schedule of that mirror: after the claim, its "
                "runs fail with mirror_started"
            ),
            soft_wrap=True,
        )
    for refusal in prepared.refusals:
        console.print(Text.assemble(("blocked: ", "red"), pasteable(str(refusal))), soft_wrap=True)
    if is_done:
        console.print("the query owns the state root")
        if planned.query != planned.former:
            console.print(f"start the job once with DeltaSink(..., continue_at_batch={planned.newest + 1})")
    elif not prepared.refusals:
        console.print("to execute: --apply --confirm-stopped")
