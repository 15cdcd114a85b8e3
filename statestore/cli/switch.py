"""`statekeeper switch`."""

from __future__ import annotations

from typing import Any

import click

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli.common import Opened, root_argument
from statekeeper.statestore.cli.rewrites import Execution, rewrite_options, run_rewrite
from statekeeper.statestore.maintenance.verbs.switch import Switch


@click.command()
@root_argument
@rewrite_options(
    Switch,
    "switchover",
    apply="Execute the plan, or finish an interrupted switchover. Requires --to.",
    abort="Roll back an interrupted switchover. Runs immediately, without --apply and --to.",
    stopped="Required for --apply and --abort. Exception: for a job on pipelines, you can omit this option if its newest "
    "batch is committed. You must still stop the job.",
)
def switch(root: Opened, execution: Execution, **given: Any) -> None:
    """Show the plan to move a checkpoint from structure V1 to V2, or back; with --apply, execute it.

    Stop the query before --apply. For each store, switch writes a snapshot of the head in the target structure. It reads
    the snapshot back and compares its rows with the state of the store. Then it rewrites the newest commit. The query
    continues with the next batch.

    If a run is interrupted, --apply finishes it and --abort rolls it back. To reverse a completed switch, run switch again
    with --to and the former structure.
    """
    is_given = given["to"] is not None
    execution.require(given=is_given, usage="give --to v1 or --to v2 (with or without --apply), or --abort")
    run_rewrite(root, Switch(**given) if is_given else None, RewriteKind.SWITCH, execution)
