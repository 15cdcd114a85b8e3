"""`statekeeper switch`."""

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
    output_option,
    progress_bar,
    root_argument,
    say_skipped,
    scratch_option,
    stopped_option,
    this_process,
    workers_option,
)
from statestore.counts import counted
from statestore.format.sparks import Spark
from statestore.format.structure import Structure
from statestore.maintenance import passes, records
from statestore.maintenance.switchover import Progress, SwitchPhase, SwitchPlan


@click.command(short_help="Move between structures V1 and V2.")
@root_argument
@click.option(
    "--to",
    type=click.Choice([structure.value for structure in Structure]),
    callback=lambda _, __, value: None if value is None else Structure(value),
    help="Target structure of the checkpoint. Required without --abort.",
)
@click.option("--apply", is_flag=True, help="Execute the plan, or finish an interrupted switchover. Requires --to.")
@click.option(
    "--abort",
    is_flag=True,
    help="Roll back an interrupted switchover. Runs immediately, without --apply and --to.",
)
@for_spark_of_checkpoint_option
@stopped_option(
    "Required for --apply and --abort. Exception: for a job on pipelines, you can omit this option if its newest batch "
    "is committed. You must still stop the job."
)
@scratch_option
@workers_option
@memory_option
@output_option
def switch(
    root: Opened,
    to: Structure | None,
    apply: bool,
    abort: bool,
    spark: Spark | None,
    stopped: bool,
    scratch: Path,
    workers: int,
    memory_bytes: int,
    output: Output,
) -> None:
    """Show the plan to move a checkpoint from structure V1 to V2, or back; with --apply, execute it.

    Stop the query before --apply. For each store, switch writes a snapshot of the head in the target structure. It reads
    the snapshot back and compares its rows with the state of the store. Then it rewrites the newest commit. The query
    continues with the next batch.

    If a run is interrupted, --apply finishes it and --abort rolls it back. To reverse a completed switch, run switch again
    with --to and the former structure.
    """
    storage, policies, by = root.storage, root.policies, this_process()
    run = by.ids.fresh()
    if abort == (to is not None) or (abort and apply):
        raise click.UsageError("give --to v1 or --to v2 (with or without --apply), or --abort")
    if to is None:
        begun = passes.switch.abort(storage, policies, by, _tell, run=run, stopped=stopped)
        was = f"rolled back: the checkpoint has structure {begun.to.other.value} again"
        output.show({"aborted": begun.number}, lambda console: console.print(was))
        return
    prepared = passes.switch.plan(storage, policies, to, spark, scratch=scratch, workers=workers)
    if not apply:
        _show(output, prepared.plan)
    with progress_bar() as bar:
        task = bar.add_task("stores", total=None)

        def show(progress: Progress) -> None:
            if progress.phase is SwitchPhase.SNAPSHOTS:
                bar.update(task, completed=progress.done, total=progress.of)
                if progress.store is not None:
                    say_skipped(progress.store, progress.skipped_snapshots)
            elif progress.done == progress.of:
                _tell(progress)

        prepared = passes.switch.execute(
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
    done = tables.plain(f"switched to {to.value}; start the query with {planned.start_with}")
    output.show(
        {**records.of_switch_plan(planned), "switched": True}, lambda console: console.print(done, soft_wrap=True)
    )


def _tell(progress: Progress) -> None:
    TALK.print(progress.phase.value)


def _show(output: Output, planned: SwitchPlan) -> NoReturn:
    output.show(records.of_switch_plan(planned), lambda console: _print_plan(console, planned))
    sys.exit(FINDINGS if planned.refusals else 0)


def _print_plan(console: Console, planned: SwitchPlan) -> None:
    if planned.is_there:
        console.print(f"the checkpoint already has structure {planned.to.value}: nothing to do")
        return
    if planned.stores:
        title = f"{tables.when(planned.batch)}, to {planned.to.value}: {counted(len(planned.stores), 'store')}"
        table = tables.table(title, "store", "version", "source", "bytes read", "bytes written")
        for step in planned.stores[: tables.ROWS]:
            tables.add(
                table, step.store, step.head.version, step.explained, f"{step.read_bytes:,}", f"{step.write_bytes:,}"
            )
        if len(planned.stores) > tables.ROWS:
            table.caption = f"the first {tables.ROWS}"
        tables.show(console, table)
    lines = [
        f"reads {planned.read_bytes:,} bytes, writes about {planned.write_bytes:,} bytes; the replays need about "
        f"{planned.seconds:,.0f} s and at most {planned.local_bytes:,} bytes of local disk",
        f"{len(planned.first) + len(planned.last):,} files are quarantined; {planned.stays_files:,} files of the old "
        f"structure, {planned.stays_bytes:,} bytes, are kept so that the switch can be reversed",
        f"start the query afterwards with {planned.start_with}",
    ]
    if planned.half_done is not None:
        lines.insert(0, "a switchover is incomplete: --apply finishes it, --abort rolls it back")
    for line in lines:
        console.print(tables.plain(line), soft_wrap=True)
    for refusal in planned.refusals:
        console.print(Text.assemble(("blocked: ", "red"), refusal), soft_wrap=True)
    if not planned.refusals:
        console.print("to execute: --apply --confirm-stopped")
