"""`statekeeper rescale`."""

from __future__ import annotations

from typing import Any

import click

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli.common import Opened, root_argument
from statekeeper.statestore.cli.rewrites import Execution, rewrite_options, run_rewrite
from statekeeper.statestore.maintenance.verbs.rewrite import Rescale


@click.command()
@root_argument
@rewrite_options(Rescale, "rescale", abort="Roll back an interrupted rescale. Runs immediately, without --apply.")
def rescale(root: Opened, execution: Execution, **given: Any) -> None:
    """Show the plan for another number of partitions; with --apply, execute it.

    Stop the query first. rescale moves each row of the state to the partition of its key. It writes one snapshot for each
    partition that exists afterwards, reads it back and compares all rows. Then it appends one batch without rows to the
    offset log and the commit log. The query continues after this batch with the new number of partitions.

    For the state root of a job on pipelines, rescale appends no batch. It rewrites the newest commit and the record of
    the number of partitions. The job continues with the new number, whatever `partitions` it passes to `start`.

    If the query writes files with Spark's file sink, add --file-sink: the output needs an entry for the appended batch.

    The files of the old partitions remain until gc deletes them. To return to the old number and keep the later batches,
    rescale again. To return a query to the batch before the rescale, run statekeeper rewind.
    """
    is_given = given["partitions"] is not None
    usage = "give --partitions N (with or without --apply and --file-sink), or --abort"
    execution.require(given=is_given, usage=usage, alone=given["file_sink"] is None)
    run_rewrite(root, Rescale(**given) if is_given else None, RewriteKind.RESCALE, execution)
