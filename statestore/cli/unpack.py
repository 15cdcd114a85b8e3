"""`statekeeper unpack`."""

from __future__ import annotations

from typing import Any

import click

from statekeeper.statestore.cli.common import Opened, Output, mode_option, output_option, root_argument, run_of
from statekeeper.statestore.cli.reports import show
from statekeeper.statestore.cli.verb_options import verb_options
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.unpack import Unpack


@click.command()
@root_argument
@verb_options(Unpack)
@mode_option("unpack requires snapshots or full, except with --dry-run.")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@output_option
def unpack(root: Opened, mode: str | None, dry_run: bool, output: Output, **given: Any) -> None:
    """Write changelogs as separate files, so that Spark's data source `statestore` can read the state after a batch.

    A job with log="batch" writes all changelogs of a batch as one object, a batch log. Spark cannot read batch logs.

    unpack only adds files, so it runs immediately, without --apply. gc deletes the new files later, like other
    changelogs.

    If you need only the newest batch, you can also run:

    \b
        statekeeper snapshot ROOT --at-head
    """
    prepared = prepare(Unpack(**given), run_of(root, mode=mode))
    show(output, prepared if dry_run else perform(prepared))
