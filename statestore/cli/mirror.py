"""`statekeeper mirror`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from statekeeper.statestore.cli.common import (
    Opened,
    Output,
    complete_root,
    executor_option,
    output_option,
    root_argument,
    run_of,
    scratch_option,
    stopped_for_copy_option,
)
from statekeeper.statestore.cli.copies import copy
from statekeeper.statestore.cli.verb_options import verb_options
from statekeeper.statestore.maintenance.verbs.mirror import Mirror


@click.command()
@root_argument
@click.argument("destination", required=False, shell_complete=complete_root)
@verb_options(Mirror)
@stopped_for_copy_option
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@scratch_option
@executor_option
@output_option
def mirror(root: Opened, stopped: bool, dry_run: bool, scratch: Path, output: Output, **given: Any) -> None:
    """Copy the new batches of a checkpoint to its mirror. If the source is lost, a query can start from the mirror.

    The first run copies the state of one batch into an empty DESTINATION. Each later run copies only new files. Then it
    deletes old copies from the mirror: files that the source has deleted and that no batch of the mirror needs.

    mirror runs immediately, without --apply. The query of the source may be running. mirror changes no file of the
    source. In the mirror, it deletes only files that it has copied before.

    After each complete run, a query can start from the mirror. If a run is interrupted, run the same command again.

    Default of DESTINATION: the `mirror` of ROOT in statekeeper.toml.

    In structure V1, a running native query can overwrite the changelogs of its two newest
    batches. So its mirror stays two batches behind. To copy these batches, stop the query and add --confirm-stopped.
    """
    if given["destination"] is None:
        if root.mirror is None:
            raise click.UsageError("DESTINATION is missing, and statekeeper.toml has no mirror for this root")
        given |= {"destination": root.mirror.url, "location": given["location"] or root.mirror.location}
    copy(Mirror(**given), run_of(root, stopped=stopped, scratch=scratch), output, dry_run=dry_run)
