"""`statekeeper load`."""

from __future__ import annotations

from typing import Any

import click

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli.common import Opened, open_root, storage_options
from statekeeper.statestore.cli.rewrites import Execution, rewrite_options, run_rewrite
from statekeeper.statestore.maintenance.verbs.rewrite import Load

Places = tuple[str | None, Opened]
"""The name of the savepoint, and the opened ROOT."""


def _places(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> Places:
    if len(given) not in (1, 2):
        raise click.UsageError("give SAVEPOINT and ROOT; with --abort or --undo only ROOT")
    return given[0] if len(given) > 1 else None, open_root(ctx, given[-1])


@click.command()
@click.argument("places", metavar="[SAVEPOINT] ROOT", nargs=-1, callback=_places)
@storage_options
@rewrite_options(Load, "load", undo="the query has begun a batch")
def load(places: Places, execution: Execution, **given: Any) -> None:
    """Show the plan to load a savepoint with rows as the state of a checkpoint; with --apply, execute it.

    SAVEPOINT is the folder that statekeeper savepoint --rows wrote. ROOT is the checkpoint of a query with the same
    stateful operators. Another Spark release may have written the savepoint, and ROOT may have another number of
    partitions. Start the query of ROOT for one batch and stop it, so that ROOT has the schemas of its operators.

    load writes the rows of the savepoint into the stores of ROOT, and replaces its watermark. If a store has rows, for
    example those of that first batch, load is rejected without --replace-state. It writes one snapshot for each store,
    reads it back and compares all rows. Then it appends one batch without rows to the offset log and the commit log.
    For the state root of a job on pipelines, it appends no batch and rewrites the newest commit.

    If the query writes files with Spark's file sink, add --file-sink: the output needs an entry for the appended batch.
    """
    savepoint, root = places
    usage = "give SAVEPOINT and ROOT (with or without --apply); or ROOT with --abort or --undo RUN"
    is_alone = not given["replace_state"] and given["file_sink"] is None
    execution.require(given=savepoint is not None, usage=usage, alone=is_alone)
    verb = None if savepoint is None else Load(savepoint=savepoint, **given)
    run_rewrite(root, verb, RewriteKind.LOAD, execution)
