"""`statekeeper convert`."""

from __future__ import annotations

from typing import Any

import click

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli.common import Opened, root_argument
from statekeeper.statestore.cli.rewrites import Execution, rewrite_options, run_rewrite
from statekeeper.statestore.maintenance.verbs.rewrite import Convert


@click.command()
@root_argument
@rewrite_options(Convert, "conversion", abort="Roll back an interrupted conversion. Runs immediately, without --apply.")
def convert(root: Opened, execution: Execution, **given: Any) -> None:
    """Show the plan for another state store provider; with --apply, execute it.

    Stop the query first. convert encodes each row of the state for the other provider. It writes one snapshot for each
    store, reads it back and compares all rows. Then it appends one batch without rows to the offset log and the commit log.
    The query continues after this batch with the other provider. Spark reads the provider from the offset log, so you do
    not set it in the query.

    If the query writes files with Spark's file sink, add --file-sink: the output needs an entry for the appended batch.

    The files of the former provider remain until gc deletes them. The provider hdfs does not support operators with column
    families, such as transformWithState.
    """
    is_given = given["to"] is not None
    usage = "give --to (with or without --apply and --file-sink), or --abort"
    execution.require(given=is_given, usage=usage, alone=given["file_sink"] is None)
    run_rewrite(root, Convert(**given) if is_given else None, RewriteKind.CONVERT, execution)
