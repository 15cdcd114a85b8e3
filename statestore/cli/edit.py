"""`statekeeper edit`."""

from __future__ import annotations

from typing import Any

import click

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli.common import Opened, root_argument
from statekeeper.statestore.cli.rewrites import Execution, rewrite_options, run_rewrite
from statekeeper.statestore.maintenance.verbs.edit import Edit


@click.command()
@root_argument
@rewrite_options(Edit, "edit", undo="the query has committed a batch")
def edit(root: Opened, execution: Execution, **given: Any) -> None:
    """Show the rows of the state that an edit changes; with --apply, change them.

    Stop the query first. edit removes a key on which a query fails, or corrects a value. It replaces the newest version of
    each changed store by a new snapshot. It reads the snapshot back and compares its rows with the rows of the plan. The
    query continues from there. If the query was stopped in the middle of a batch, Spark runs this batch again on the
    edited state.

    Columns to give with --delete:

    \b
      - for a stream-stream join: all columns of the join key
      - for transformWithState: all columns of the grouping key
      - for any other operator: one or more columns of the key

    For a stream-stream join and for transformWithState, edit deletes the key from all stores of the operator.
    """
    is_given = bool(given["delete"] or given["delete_keys"] or given["upsert"])
    usage = (
        "give --operator N with --delete, --delete-keys or --upsert (with or without --apply); or --abort; or --undo "
        "RUN"
    )
    execution.require(given=is_given, usage=usage)
    if is_given and given["operator"] is None:
        raise click.UsageError(usage)
    run_rewrite(root, Edit(**given) if is_given else None, RewriteKind.EDIT, execution)
