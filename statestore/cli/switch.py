"""`statekeeper switch`."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import Opened, Output, output_option, root_argument, this_process
from statekeeper.statestore.cli.execution import (
    Execution,
    blockers,
    execution_options,
    print_next_step,
    show_plan,
    store_progress,
    tell,
)
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.rewrites.switchover import SwitchPlan
from statekeeper.statestore.maintenance.verbs import as_json


@click.command()
@root_argument
@click.option(
    "--to",
    type=click.Choice([structure.value for structure in Structure]),
    callback=lambda _, __, value: None if value is None else Structure(value),
    help="Target structure of the checkpoint. Required without --abort.",
)
@execution_options(
    apply="Execute the plan, or finish an interrupted switchover. Requires --to.",
    abort="Roll back an interrupted switchover. Runs immediately, without --apply and --to.",
    stopped="Required for --apply and --abort. Exception: for a job on pipelines, you can omit this option if its newest "
    "batch is committed. You must still stop the job.",
)
@output_option
def switch(
    root: Opened,
    to: Structure | None,
    execution: Execution,
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
    if execution.abort == (to is not None) or (execution.abort and execution.apply):
        raise click.UsageError("give --to v1 or --to v2 (with or without --apply), or --abort")
    if to is None:
        begun = verbs.switch.abort(storage, policies, by, tell, run=run, stopped=execution.stopped)
        was = f"rolled back: the checkpoint has structure {begun.to.other.value} again"
        output.show({"aborted": begun.number}, lambda console: console.print(was))
        return
    prepared = verbs.switch.plan(
        storage,
        policies,
        to,
        execution.spark,
        scratch=execution.scratch,
        workers=execution.workers,
        clock=by.clock,
    )
    if execution.apply:
        with store_progress() as progress:
            prepared = verbs.switch.execute(
                storage, prepared, by, progress, run=run, stopped=execution.stopped, **execution.limits
            )
    planned = prepared.plan
    record = as_json.of_switch_plan(planned)
    if not execution.apply or not prepared.may_start:
        blocked = blockers(prepared)
        show_plan(output, record, lambda console: _print_plan(console, planned, blocked), blocked)
    done = tables.plain(f"switched to {to.value}; start the query with {planned.start_with}")
    output.show({**record, "switched": True}, lambda console: console.print(done, soft_wrap=True))


def _print_plan(console: Console, planned: SwitchPlan, blocked: Sequence[str]) -> None:
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
    print_next_step(console, blocked)
