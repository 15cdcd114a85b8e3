"""`statekeeper load`."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console

from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    Opened,
    Output,
    open_destination,
    open_root,
    output_option,
    storage_options,
    this_process,
)
from statekeeper.statestore.cli.execution import (
    Execution,
    blockers,
    execution_options,
    print_next_step,
    show_plan,
    tell,
)
from statekeeper.statestore.cli.file_sink import file_sink_lines, file_sink_option
from statekeeper.statestore.cli.rewrites import prepared_for
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.copies.savepoints.saved import read_saved
from statekeeper.statestore.maintenance.rewrites.engine import Load, RewritePlan
from statekeeper.statestore.maintenance.verbs import as_json
from statekeeper.statestore.storage import Storage

Places = tuple[str | None, Opened]
"""The name of the savepoint, and the opened ROOT."""


def _places(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> Places:
    if len(given) not in (1, 2):
        raise click.UsageError("give SAVEPOINT and ROOT; with --abort or --undo only ROOT")
    return given[0] if len(given) > 1 else None, open_root(ctx, given[-1])


@click.command()
@click.argument("places", metavar="[SAVEPOINT] ROOT", nargs=-1, callback=_places)
@storage_options
@click.option(
    "--replace-state",
    "replaces_state",
    is_flag=True,
    help="Also load into a checkpoint whose stores have rows. All its rows are replaced.",
)
@click.option(
    "--undo",
    metavar="RUN",
    help="Reverse a completed load. RUN is the id that load --apply printed. Rejected if the query has begun a batch "
    "since. Runs immediately, without --apply.",
)
@file_sink_option
@execution_options(
    apply="Execute the plan, or finish an interrupted load.",
    abort="Reverse an interrupted load. Runs immediately, without --apply.",
    stopped="Required for --apply, --abort and --undo.",
)
@output_option
@click.pass_context
def load(
    ctx: click.Context,
    places: Places,
    replaces_state: bool,
    undo: str | None,
    file_sink: str | None,
    execution: Execution,
    output: Output,
) -> None:
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
    actions = execution.abort + (undo is not None) + (savepoint is not None)
    if actions != 1 or (savepoint is None and (execution.apply or replaces_state or file_sink)):
        raise click.UsageError("give SAVEPOINT and ROOT (with or without --apply); or ROOT with --abort or --undo RUN")

    def open_other(url: str) -> Storage:
        return open_destination(ctx, url).storage

    by = this_process()
    run = by.ids.fresh()
    storage, policies = root.storage, root.policies
    if savepoint is None:
        stopped = execution.stopped
        if undo is None:
            begun = verbs.rewrite.abort(
                storage, policies, RewriteKind.LOAD, by, tell, run=run, stopped=stopped, open_sink=open_other
            )
        else:
            begun = verbs.rewrite.undo(
                storage, policies, RewriteKind.LOAD, undo, by, tell, run=run, stopped=stopped, open_sink=open_other
            )
        was = f"reversed: the state is as it was after batch {begun.batch}"
        output.show({"aborted" if undo is None else "undone": begun.number}, lambda console: console.print(was))
        return
    source = open_other(savepoint)
    goal = Load(read_saved(source), source, replaces_state)
    prepared = prepared_for(root, goal, by, run=run, execution=execution, file_sink=file_sink, open_sink=open_other)
    planned = prepared.plan
    record = as_json.of_rewrite_plan(planned)
    if not execution.apply or not prepared.may_start:
        blocked = blockers(prepared)
        show_plan(output, record, lambda console: _print_plan(console, planned, goal, blocked), blocked)
    run = run if planned.half_done is None else planned.half_done.begun.run
    output.show(
        {**record, "loaded": True, "run": run}, lambda console: _print_done(console, planned, root.storage.url, run)
    )


def _print_plan(console: Console, planned: RewritePlan, goal: Load, blocked: Sequence[str]) -> None:
    if planned.groups and planned.batch is not None:
        title = f"{tables.when(planned.batch)}, from batch {goal.saved.batch:,} of the savepoint"
        table = tables.table(title, "operator", "store", "partitions saved", "here", "rows", "bytes read")
        for group in planned.groups[: tables.ROWS]:
            saved = group.incoming[0].table.partitions if group.incoming else "-"
            counts = len(group.targets), f"{group.incoming_rows:,}", f"{group.read_bytes:,}"
            tables.add(table, group.operator, group.name, saved, *counts)
        tables.show(console, table)
    if not planned.refusals:
        for line in _lines(planned, goal):
            console.print(tables.plain(line), soft_wrap=True)
    print_next_step(console, blocked)


def _lines(planned: RewritePlan, goal: Load) -> list[str]:
    assert planned.batch is not None
    is_own = planned.origin is Origin.OWN
    lines = [
        f"loads {planned.rows:,} rows from {planned.read_bytes:,} bytes; it needs about {planned.seconds:,.1f} s and "
        f"at most {planned.local_bytes:,} bytes of local disk",
        f"rewrites the newest commit, of batch {planned.batch}: it appends no batch"
        if is_own
        else f"appends batch {planned.batch + 1}, which has no rows: a sink never receives this batch",
        *([] if is_own else [f"sets the watermark to that of the savepoint: {goal.saved.watermark_ms} ms"]),
        *file_sink_lines(planned),
    ]
    if planned.half_done is not None:
        lines.insert(0, "a load is incomplete: --apply finishes it, --abort reverses it")
    return lines


def _print_done(console: Console, planned: RewritePlan, url: str, run: str) -> None:
    console.print(f"loaded {planned.rows:,} rows after batch {planned.batch}; start the query as before")
    console.print(f"to undo this run: statekeeper load {url} --undo {run} --confirm-stopped", soft_wrap=True)
