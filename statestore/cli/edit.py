"""`statekeeper edit`."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
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
from statekeeper.statestore.cli.rows import cell
from statekeeper.statestore.contents.differences import Change
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.rewrites.edits import EditPlan
from statekeeper.statestore.maintenance.rewrites.edits.tables import edit_of
from statekeeper.statestore.maintenance.verbs import as_json

_CELLS = ("change", "key", "before", "after")


def _equations(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not COLUMN=VALUE")
        if name in found:
            raise click.BadParameter(f"column {name} is given twice: to delete several keys, use --delete-keys TABLE")
        found[name] = value
    return found


@click.command()
@root_argument
@click.option("--operator", type=click.IntRange(0), help="Number of the stateful operator whose state is edited.")
@click.option(
    "--delete",
    "texts",
    metavar="COLUMN=VALUE",
    multiple=True,
    callback=_equations,
    help="Delete the rows whose key column has this value. Write the value in the same form as for dump --key. "
    "Repeatable: all columns must match.",
)
@click.option(
    "--delete-keys",
    metavar="TABLE",
    help="Delete the rows whose keys are in this table: a Parquet, Arrow or CSV file, or the folder of a Delta table.",
)
@click.option(
    "--upsert",
    metavar="TABLE",
    help="Insert the rows of this table, or replace the rows with the same keys. The table must have all columns of key "
    "and value.",
)
@click.option(
    "--undo",
    metavar="RUN",
    help="Reverse a completed edit. RUN is the id that edit --apply printed. Rejected if the query has committed a batch "
    "since. Runs immediately, without --apply.",
)
@execution_options(
    apply="Execute the plan, or finish an interrupted edit.",
    abort="Reverse an interrupted edit. Runs immediately, without --apply.",
    stopped="Required for --apply, --abort and --undo.",
)
@output_option
def edit(
    root: Opened,
    operator: int | None,
    texts: dict[str, str],
    delete_keys: str | None,
    upsert: str | None,
    undo: str | None,
    execution: Execution,
    output: Output,
) -> None:
    """Show the rows of the state that an edit changes; with --apply, change them.

    Stop the query first. edit removes a key on which a query fails, or corrects a value. It replaces the newest version of
    each changed store by a new snapshot. It reads the snapshot back and compares its rows with the rows of the plan. The
    query continues from there. If the query was stopped in the middle of a batch, Spark runs this batch again on the
    edited state.

    Columns to give with --delete:

    \b
      - for a stream-stream join: all columns of the join key
      - for transformWithState: all columns of the grouping key
      - for any other operator: one or more columns of the key

    For a stream-stream join and for transformWithState, edit deletes the key from all stores of the operator.
    """
    given = bool(texts or delete_keys or upsert)
    actions = execution.abort + (undo is not None) + given
    if actions != 1 or (execution.apply and not given) or (given and operator is None):
        raise click.UsageError(
            "give --operator N with --delete, --delete-keys or --upsert (with or without --apply); or --abort; or --undo "
            "RUN"
        )
    if operator is None or not given:
        _reverse(root, undo, output, stopped=execution.stopped)
        return
    goal = edit_of(operator, texts, delete_keys, upsert)
    by = this_process()
    run = by.ids.fresh()
    prepared = verbs.edit.plan(
        root.storage,
        root.policies,
        goal,
        by,
        execution.spark,
        scratch=execution.scratch,
        workers=execution.workers,
    )
    if execution.apply:
        with store_progress() as progress:
            prepared = verbs.edit.execute(
                root.storage, prepared, by, progress, run=run, stopped=execution.stopped, **execution.limits
            )
    planned = prepared.plan
    record = as_json.of_edit_plan(planned)
    if not execution.apply or not prepared.may_start:
        blocked = blockers(prepared)
        show_plan(output, record, lambda console: _print_plan(console, planned, blocked), blocked)
    run = run if planned.half_done is None else planned.half_done.begun.run
    output.show(
        {**record, "edited": True, "run": run},
        lambda console: _print_done(console, planned, root.storage.url, run),
    )


def _reverse(root: Opened, undo: str | None, output: Output, *, stopped: bool) -> None:
    storage, policies, by = root.storage, root.policies, this_process()
    run = by.ids.fresh()
    if undo is None:
        begun = verbs.rewrite.abort(storage, policies, RewriteKind.EDIT, by, tell, run=run, stopped=stopped)
        result = {"aborted": begun.number}
    else:
        begun = verbs.edit.undo(storage, policies, undo, by, tell, run=run, stopped=stopped)
        result = {"undone": begun.number}
    was = f"reversed: the state is as it was after batch {begun.batch}"
    output.show(result, lambda console: console.print(was))


def _print_plan(console: Console, planned: EditPlan, blocked: Sequence[str]) -> None:
    if planned.is_there:
        console.print("no row of the state has to be changed: nothing to do")
        return
    if planned.stores and planned.batch is not None:
        table = tables.table(
            tables.when(planned.batch), "store", "rows", *(change.value for change in Change), "bytes read"
        )
        for one in planned.stores[: tables.ROWS]:
            counts = [f"{one.changes.counts[change]:,}" for change in Change]
            tables.add(table, str(one.step.store), f"{one.changes.rows:,}", *counts, f"{one.step.read_bytes:,}")
        tables.show(console, table)
        _print_rows(console, planned)
    if not planned.refusals:
        for line in _lines(planned):
            console.print(tables.plain(line), soft_wrap=True)
    print_next_step(console, blocked)


def _print_rows(console: Console, planned: EditPlan) -> None:
    table = tables.table(f"the first changed rows ({len(planned.first):,})", "store", "family", *_CELLS)
    for store, row in planned.first:
        record = as_json.of_difference(store, row)
        tables.add(table, str(store), row.family or "-", *(cell(record[name] or "-") for name in _CELLS))
    tables.show(console, table)


def _lines(planned: EditPlan) -> list[str]:
    lines = [
        f"reads {planned.read_bytes:,} bytes; it needs about {planned.seconds:,.0f} s and at most "
        f"{planned.local_bytes:,} bytes of local disk",
    ]
    if planned.is_in_batch:
        lines.append(f"batch {planned.begun} has begun: Spark runs this batch again on the edited state")
    if planned.half_done is not None:
        lines.insert(0, "an edit is incomplete: --apply finishes it, --abort reverses it")
    return lines


def _print_done(console: Console, planned: EditPlan, url: str, run: str) -> None:
    totals = ", ".join(f"{planned.totals[change]:,} {change.value}" for change in Change)
    console.print(f"edited the state after batch {planned.batch}: {totals}; start the query as before")
    console.print(f"to undo this run: statekeeper edit {url} --undo {run} --confirm-stopped", soft_wrap=True)
