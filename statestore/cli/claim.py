"""`statekeeper claim`."""

from __future__ import annotations

import sys
from typing import Any

import click

from statekeeper.statestore.cli.common import (
    FINDINGS,
    Opened,
    Output,
    output_option,
    root_argument,
    run_of,
    stopped_option,
)
from statekeeper.statestore.cli.reports import APPLY, show
from statekeeper.statestore.cli.verb_options import verb_options
from statekeeper.statestore.maintenance.verbs.claim import Claim
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare


@click.command()
@root_argument
@verb_options(Claim)
@click.option("--apply", is_flag=True, help="Execute the plan.")
@stopped_option("Required for --apply.")
@output_option
def claim(root: Opened, apply: bool, stopped: bool, output: Output, **given: Any) -> None:
    """Show which query would become the owner of a state root; with --apply, make it the owner.

    ROOT is the state root of a job on pipelines. The checkpoint of a native query has no owner.

    Use this command if the checkpoint of the job is lost, or if a query with another id must continue with this state. Stop
    the job first. Name the new owner with --checkpoint or with --query-id.

    If the former job still runs after the claim, it stops before its next batch with the error foreign_root.
    """
    if given["checkpoint"] is None and given["query_id"] is None:
        raise click.UsageError("give --checkpoint, --query-id, or both")
    prepared = prepare(Claim(**given), run_of(root, stopped=stopped))
    if apply:
        prepared = perform(prepared)
    show(output, prepared, *APPLY)
    sys.exit(FINDINGS if prepared.refusals else 0)
