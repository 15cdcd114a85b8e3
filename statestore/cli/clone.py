"""`statekeeper clone`."""

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
from statekeeper.statestore.maintenance.verbs.clone import Clone


@click.command()
@root_argument
@click.argument("destination", shell_complete=complete_root)
@verb_options(Clone)
@stopped_for_copy_option
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@scratch_option
@executor_option
@output_option
def clone(root: Opened, stopped: bool, dry_run: bool, scratch: Path, output: Output, **given: Any) -> None:
    """Copy a checkpoint at one batch to another location. A Spark query can start from the copy.

    The query of the source may be running. clone does not change its files. The clone contains all files that Spark
    needs to start after this batch.

    DESTINATION must be empty, or contain only files of an interrupted run of the same command. clone only adds files,
    so it runs immediately, without --apply. If it is interrupted, run the same command again. If it then fails because
    the query has committed more batches, add the --batch that the error names.

    In structure V1, a running native query can overwrite the changelogs of its two newest
    batches. To copy one of these batches, stop the query and add --confirm-stopped.
    """
    copy(Clone(**given), run_of(root, stopped=stopped, scratch=scratch), output, dry_run=dry_run)
