"""`statekeeper migrate`."""

from __future__ import annotations

from typing import Any

import click

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli.common import Opened, open_root, storage_options
from statekeeper.statestore.cli.rewrites import Execution, rewrite_options, run_rewrite
from statekeeper.statestore.maintenance.verbs.migrate import Migrate

Places = tuple[Opened, str | None, str | None]
"""The opened OLD, BLUEPRINT and DESTINATION; only the opened DESTINATION with --abort."""


def _places(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> Places:
    if len(given) not in (1, 3):
        raise click.UsageError("give OLD, BLUEPRINT and DESTINATION; with --abort only DESTINATION")
    root = open_root(ctx, given[0])
    return (root, given[1], given[2]) if len(given) == 3 else (root, None, None)


@click.command()
@click.argument("places", metavar="[OLD BLUEPRINT] DESTINATION", nargs=-1, callback=_places)
@storage_options
@rewrite_options(
    Migrate,
    "migration",
    abort="Delete what an interrupted migration wrote to DESTINATION. Runs immediately, without --apply.",
)
def migrate(places: Places, execution: Execution, **given: Any) -> None:
    """Show the plan to keep the state of a query whose code has changed; with --apply, execute it.

    OLD is the checkpoint of the stopped query. BLUEPRINT is a checkpoint of the changed query: start the changed query once
    on a few rows, with a new checkpoint location, until it has committed a batch. Spark itself then says which state the
    changed query wants. The rows of BLUEPRINT are ignored.

    migrate writes a new checkpoint to the empty DESTINATION. It has the operators, schemas, encodings and settings of
    BLUEPRINT, and the rows, the position in the sources and the watermark of OLD. An operator takes the state of the old
    operator with the same name and the same key columns. An added value column has what Spark's aggregate holds before its
    first row, or null, or the value of --default. Every row is read back and compared.

    OLD and BLUEPRINT never change: to go back, start the old query again. Spark runs the changed query on DESTINATION.

    For a job on `pipelines`, all three are state roots. A store takes the rows of the old store with the same name and the
    same key columns, and an input continues at the position of the old input with the same name. Afterwards, claim makes
    the checkpoint with which the changed job starts.
    """
    root, blueprint, destination = places
    is_given = blueprint is not None and destination is not None
    usage = "give OLD, BLUEPRINT and DESTINATION (with or without --apply); or DESTINATION with --abort"
    execution.require(given=is_given, usage=usage)
    verb = Migrate(blueprint=blueprint, destination=destination, **given) if blueprint and destination else None
    run_rewrite(root, verb, RewriteKind.MIGRATE, execution)
