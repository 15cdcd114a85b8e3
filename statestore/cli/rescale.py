"""`statekeeper rescale`."""

from __future__ import annotations

import click

from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli.common import Opened, Output, root_argument
from statekeeper.statestore.cli.execution import Execution
from statekeeper.statestore.cli.rewrites import Wording, rewrite_options, run_rewrite
from statekeeper.statestore.format.names import MOST_PARTITIONS
from statekeeper.statestore.maintenance.rewrites.engine import Rescale, RewritePlan


def _after(planned: RewritePlan) -> list[str]:
    before, back = len(planned.groups[0].sources), "afterwards, to return to"
    lines = [f"{back} {before} partitions and keep later batches, run: statekeeper rescale ROOT --partitions {before}"]
    if planned.origin is Origin.NATIVE:
        lines.append(f"{back} batch {planned.batch}, run: statekeeper rewind ROOT --to-batch {planned.batch}")
    return lines


_WORDING = Wording(
    noun="rescale",
    is_there=lambda planned: f"the checkpoint already has {planned.partitions} partitions",
    done=lambda planned: f"rescaled to {planned.partitions} partitions; start the query as before",
    title=lambda planned: f"{planned.partitions} partitions",
    after=_after,
)


@click.command()
@root_argument
@click.option(
    "--partitions",
    type=click.IntRange(1, MOST_PARTITIONS),
    help="Number of partitions of each stateful operator after the rescale. Exception: the operators of "
    "limit() and of an aggregation without grouping keys keep their single partition.",
)
@rewrite_options("rescale")
@click.pass_context
def rescale(
    ctx: click.Context,
    root: Opened,
    partitions: int | None,
    file_sink: str | None,
    execution: Execution,
    output: Output,
) -> None:
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
    if execution.abort == (partitions is not None) or (execution.abort and (execution.apply or file_sink)):
        raise click.UsageError("give --partitions N (with or without --apply and --file-sink), or --abort")
    goal = None if partitions is None else Rescale(partitions)
    run_rewrite(ctx, root, goal, RewriteKind.RESCALE, _WORDING, file_sink=file_sink, execution=execution, output=output)
