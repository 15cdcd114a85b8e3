"""`statekeeper rescale`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console
from rich.text import Text

from statestore.cli import tables
from statestore.cli.common import (
    FINDINGS,
    TALK,
    Opened,
    Output,
    for_spark_of_checkpoint_option,
    memory_option,
    open_destination,
    output_option,
    progress_bar,
    root_argument,
    scratch_option,
    stopped_option,
    this_process,
    workers_option,
)
from statestore.cli.file_sink import file_sink_lines, file_sink_option
from statestore.format.names import MOST_PARTITIONS
from statestore.format.sparks import Spark
from statestore.maintenance import passes, records
from statestore.maintenance.rewrites import Rescale, RewritePlan
from statestore.maintenance.switchover import Progress, SwitchPhase
from statestore.storage import Storage
from statestore.switch_journal import RewriteKind


@click.command(short_help="Change the number of partitions.")
@root_argument
@click.option(
    "--partitions",
    type=click.IntRange(1, MOST_PARTITIONS),
    help="Number of partitions of each stateful operator after the rescale.",
)
@click.option("--apply", is_flag=True, help="Execute the plan, or finish an interrupted rescale.")
@click.option("--abort", is_flag=True, help="Reverse an interrupted rescale. It needs no --apply.")
@file_sink_option
@for_spark_of_checkpoint_option
@stopped_option("Required for --apply and --abort.")
@scratch_option
@workers_option
@memory_option
@output_option
@click.pass_context
def rescale(
    ctx: click.Context,
    root: Opened,
    partitions: int | None,
    apply: bool,
    abort: bool,
    file_sink: str | None,
    spark: Spark | None,
    stopped: bool,
    scratch: Path,
    workers: int,
    memory_bytes: int,
    output: Output,
) -> None:
    """Show the plan for another number of partitions; with --apply, execute it.

    Stop the query first. rescale moves each row of the state to the partition of its key. It writes one snapshot for each
    new partition, reads it back and compares all rows. Then it appends one batch without rows to the offset log and the
    commit log. The query continues after this batch with the new number of partitions.

    If the query writes files with Spark's file sink, add --file-sink: the output needs an entry for the appended batch.

    The files of the old partitions remain until gc deletes them. To return to the old number, run: statekeeper rewind
    ROOT --to-batch N.
    """
    storage, policies, by = root.storage, root.policies, this_process()
    run = by.ids.fresh()

    def open_sink(url: str) -> Storage:
        return open_destination(ctx, url).storage

    if abort == (partitions is not None) or (abort and (apply or file_sink)):
        raise click.UsageError("give --partitions N (with or without --apply and --file-sink), or --abort")
    if partitions is None:
        begun = passes.rewrite.abort(
            storage, policies, RewriteKind.RESCALE, by, _tell, run=run, stopped=stopped, open_sink=open_sink
        )
        was = f"reversed: the checkpoint is as it was after batch {begun.batch}"
        output.show({"aborted": begun.number}, lambda console: console.print(was))
        return
    prepared = passes.rewrite.plan(
        storage, policies, Rescale(partitions), spark, scratch=scratch, file_sink=file_sink, open_sink=open_sink
    )
    if not apply:
        _show(output, prepared.plan)
    with progress_bar() as bar:
        task = bar.add_task("stores", total=None)

        def show(progress: Progress) -> None:
            if progress.phase is SwitchPhase.SNAPSHOTS:
                bar.update(task, completed=progress.done, total=progress.of)
            elif progress.done == progress.of:
                _tell(progress)

        prepared = passes.rewrite.execute(
            storage,
            prepared,
            by,
            show,
            run=run,
            stopped=stopped,
            scratch=scratch,
            workers=workers,
            memory_bytes=memory_bytes,
        )
    planned = prepared.plan
    if not prepared.may_start:
        _show(output, planned)
    done = f"rescaled to {partitions} partitions; start the query as before"
    output.show({**records.of_rewrite_plan(planned), "rescaled": True}, lambda console: console.print(done))


def _tell(progress: Progress) -> None:
    TALK.print(progress.phase.value)


def _show(output: Output, planned: RewritePlan) -> NoReturn:
    output.show(records.of_rewrite_plan(planned), lambda console: _print_plan(console, planned))
    sys.exit(FINDINGS if planned.refusals else 0)


def _print_plan(console: Console, planned: RewritePlan) -> None:
    if planned.is_there:
        console.print(f"the checkpoint already has {planned.partitions} partitions: nothing to do")
        return
    if planned.groups and planned.batch is not None:
        title = f"{tables.when(planned.batch)}, to {planned.partitions} partitions"
        table = tables.table(title, "operator", "store", "partitions now", "after", "bytes read")
        for group in planned.groups[: tables.ROWS]:
            tables.add(
                table, group.operator, group.name, len(group.sources), len(group.targets), f"{group.read_bytes:,}"
            )
        tables.show(console, table)
        for line in _lines(planned):
            console.print(tables.plain(line), soft_wrap=True)
    for refusal in planned.refusals:
        console.print(Text.assemble(("blocked: ", "red"), refusal), soft_wrap=True)
    if not planned.refusals:
        console.print("to execute: --apply --confirm-stopped")


def _lines(planned: RewritePlan) -> list[str]:
    assert planned.batch is not None
    lines = [
        f"reads {planned.read_bytes:,} bytes and writes about as many; it needs about {planned.seconds:,.0f} s and at most "
        f"{planned.local_bytes:,} bytes of local disk",
        f"appends batch {planned.batch + 1}, which has no rows: a sink never receives this batch",
        *file_sink_lines(planned),
        f"to return to {len(planned.groups[0].sources)} partitions afterwards, run: statekeeper rewind ROOT --to-batch "
        f"{planned.batch}",
    ]
    if planned.half_done is not None:
        lines.insert(0, "a rescale is incomplete: --apply finishes it, --abort reverses it")
    return lines
