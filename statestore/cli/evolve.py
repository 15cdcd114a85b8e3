"""`statekeeper evolve`."""

from __future__ import annotations

from typing import Any

import click

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli.common import Opened, root_argument
from statekeeper.statestore.cli.rewrites import Execution, rewrite_options, run_rewrite
from statekeeper.statestore.maintenance.verbs.rewrite import Evolve


@click.command()
@root_argument
@rewrite_options(Evolve, "schema evolution", undo="the job has committed a batch")
def evolve(root: Opened, execution: Execution, **given: Any) -> None:
    """Change the value columns of a state root: show the rows before and after; with --apply, rewrite them.

    ROOT is the state root of a job on pipelines. Stop the job first. evolve replaces the newest version of each changed
    store by a new snapshot. It reads the snapshot back and compares its rows with those of the plan. Then start the job
    with an operator that declares the new columns.

    FILE has one TOML table, [stores.NAME], for each changed store. The only store of an operator has the name default:

    \b
      [stores.default]
      drop = ["note"]
      rename = { total = "amount" }
      widen = { count = "long" }
      [stores.default.add.currency]
      type = "string"
      nullable = false
      default = "EUR"

    Added columns come last, in the order of the file. A column is widened only to a type that holds all its values. Key
    columns cannot change.
    """
    is_given = given["schema_file"] is not None
    usage = "give --schema FILE (with or without --apply); or --abort; or --undo RUN"
    execution.require(given=is_given, usage=usage)
    run_rewrite(root, Evolve(**given) if is_given else None, RewriteKind.EVOLVE, execution)
