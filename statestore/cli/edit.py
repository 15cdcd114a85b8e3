"""`statekeeper edit`."""

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
    scratch_option,
    stopped_option,
    this_process,
    workers_option,
)
from statestore.cli.rows import cell
from statestore.differences import Change
from statestore.format.sparks import Spark
from statestore.maintenance import passes, records
from statestore.maintenance.edits import EditPlan
from statestore.maintenance.edits.tables import edit_of
from statestore.maintenance.switchover import Progress, SwitchPhase
from statestore.switch_journal import RewriteKind

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


@click.command(short_help="Delete or correct rows of the state.")
@root_argument
@click.option("--operator", type=click.IntRange(0), help="Number of the stateful operator whose state is edited.")
@click.option(
    "--delete",
    "texts",
    metavar="COLUMN=VALUE",
    multiple=True,
    callback=_equations,
    help="Delete the rows whose key column has this value. Write the value as for dump --key. Repeatable: all columns "
    "must match.",
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
@click.option("--apply", is_flag=True, help="Execute the plan, or finish an interrupted edit.")
@click.option("--abort", is_flag=True, help="Reverse an interrupted edit. Runs immediately, without --apply.")
@click.option(
    "--undo",
    metavar="RUN",
    help="Reverse a completed edit. RUN is the id that edit --apply printed. Rejected if the query has committed a batch "
    "since. Runs immediately, without --apply.",
)
@for_spark_of_checkpoint_option
@stopped_option("Required for --apply, --abort and --undo.")
@scratch_option
@workers_option
@memory_option
@output_option
def edit(
    root: Opened,
    operator: int | None,
    texts: dict[str, str],
    delete_keys: str | None,
    upsert: str | None,
    apply: bool,
    abort: bool,
    undo: str | None,
    spark: Spark | None,
    stopped: bool,
    scratch: Path,
    workers: int,
    memory_bytes: int,
    output: Output,
) -> None:
    """Show the rows of the state that an edit changes; with --apply, change them.

    Stop the query first. edit removes a key on which a query fails, or corrects a value. It replaces the newest version of
    each changed store by a new snapshot, reads it back and compares all rows. The query continues from there. If the
    query was stopped in the middle of a batch, Spark runs this batch again on the edited state.

    With --delete, give all columns of the join key for a stream-stream join, and all columns of the grouping key for
    transformWithState: edit deletes the key from all stores and column families of the operator. For any other operator,
    give one or more columns of the key.
    """
    given = bool(texts or delete_keys or upsert)
    if (abort + (undo is not None) + given != 1) or (apply and not given) or (given and operator is None):
        raise click.UsageError(
            "give --operator N with --delete, --delete-keys or --upsert (with or without --apply); or --abort; or --undo "
            "RUN"
        )
    if operator is None or not given:
        _reverse(root, undo, output, stopped=stopped)
        return
    goal = edit_of(operator, texts, delete_keys, upsert)
    by = this_process()
    run = by.ids.fresh()
    prepared = passes.edit.plan(root.storage, root.policies, goal, by, spark, scratch=scratch, workers=workers)
    if not apply:
        _show(output, prepared.plan)
    with progress_bar() as bar:
        task = bar.add_task("stores", total=None)

        def show(progress: Progress) -> None:
            if progress.phase is SwitchPhase.SNAPSHOTS:
                bar.update(task, completed=progress.done, total=progress.of)
            elif progress.done == progress.of:
                _tell(progress)

        prepared = passes.edit.execute(
            root.storage,
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
    run = run if planned.half_done is None else planned.half_done.begun.run
    output.show(
        {**records.of_edit_plan(planned), "edited": True, "run": run},
        lambda console: _print_done(console, planned, run),
    )


def _reverse(root: Opened, undo: str | None, output: Output, *, stopped: bool) -> None:
    storage, policies, by = root.storage, root.policies, this_process()
    run = by.ids.fresh()
    if undo is None:
        begun = passes.rewrite.abort(storage, policies, RewriteKind.EDIT, by, _tell, run=run, stopped=stopped)
        result = {"aborted": begun.number}
    else:
        begun = passes.edit.undo(storage, policies, undo, by, _tell, run=run, stopped=stopped)
        result = {"undone": begun.number}
    was = f"reversed: the state is as it was after batch {begun.batch}"
    output.show(result, lambda console: console.print(was))


def _tell(progress: Progress) -> None:
    TALK.print(progress.phase.value)


def _show(output: Output, planned: EditPlan) -> NoReturn:
    output.show(records.of_edit_plan(planned), lambda console: _print_plan(console, planned))
    sys.exit(FINDINGS if planned.refusals else 0)


def _print_plan(console: Console, planned: EditPlan) -> None:
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
    for refusal in planned.refusals:
        console.print(Text.assemble(("blocked: ", "red"), refusal), soft_wrap=True)
    if not planned.refusals:
        console.print("to execute: --apply --confirm-stopped")


def _print_rows(console: Console, planned: EditPlan) -> None:
    table = tables.table(f"the first changed rows ({len(planned.first):,})", "store", "family", *_CELLS)
    for store, row in planned.first:
        record = records.of_difference(store, row)
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


def _print_done(console: Console, planned: EditPlan, run: str) -> None:
    totals = ", ".join(f"{planned.totals[change]:,} {change.value}" for change in Change)
    console.print(f"edited the state after batch {planned.batch}: {totals}; start the query as before")
    console.print(f"to undo this run: statekeeper edit ROOT --undo {run} --confirm-stopped", soft_wrap=True)
