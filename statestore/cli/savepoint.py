"""`statekeeper savepoint`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich import filesize
from rich.console import Console
from rich.text import Text

from statestore.cli import tables
from statestore.cli.common import (
    FINDINGS,
    Opened,
    Output,
    complete_root,
    error_object,
    open_destination,
    output_option,
    progress_bar,
    root_argument,
    scratch_option,
    stopped_option,
    this_process,
    workers_option,
)
from statestore.maintenance import passes
from statestore.maintenance.passes import PreparedRows
from statestore.maintenance.savepoints import Tables
from statestore.maintenance.savepoints.manifest import Summary
from statestore.maintenance.savepoints.record import StoreRows


@click.command(short_help="Keep the rows of a checkpoint as Parquet or Delta tables.")
@root_argument
@click.argument("destination", shell_complete=complete_root)
@click.option(
    "--rows",
    is_flag=True,
    required=True,
    help="Write the rows of the state, decoded to typed columns. pandas, Spark and DuckDB read them.",
)
@click.option("--batch", type=click.IntRange(0), help="The batch whose state to keep. Default: the newest.")
@click.option(
    "--format",
    "form",
    type=click.Choice([one.value for one in Tables]),
    default=Tables.PARQUET.value,
    show_default=True,
    help="Format of the tables. Delta tables are Parquet files with a commit.",
)
@stopped_option
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@workers_option
@scratch_option
@output_option
@click.pass_context
def savepoint(
    ctx: click.Context,
    root: Opened,
    destination: str,
    rows: bool,
    batch: int | None,
    form: str,
    stopped: bool,
    dry_run: bool,
    workers: int,
    scratch: Path,
    output: Output,
) -> None:
    """Keep the rows of a checkpoint at one batch as Parquet or Delta tables, one for each store name and column family.

    The source is only read, and may be running. This verb only adds files to an empty destination, so it runs at once.
    savepoint.json, written last, has the counts and digests. If the verb is interrupted, run it again to complete it.

    In structure V1, the default is the batch two before the newest unless --confirm-stopped is given: a running query may
    still replace newer changelogs.
    """
    del rows  # the only kind of savepoint so far
    by = this_process()
    other = open_destination(ctx, destination).storage
    prepared = passes.savepoint.plan_rows(root.storage, other, by, batch=batch, tables=Tables(form), stopped=stopped)
    if dry_run:
        output.show(_object(prepared), lambda console: _print_plan(console, prepared))
        sys.exit(FINDINGS if prepared.refusals else 0)
    before = by.clock.monotonic_seconds()
    with progress_bar() as bar:
        stores = bar.add_task("stores", total=len(prepared.plan.stores))
        bar.advance(stores, len(prepared.plan.finished))
        count = 0

        def wrote(number: int) -> None:
            nonlocal count
            count += number
            bar.update(stores, description=f"stores ({count:,} rows)")

        def finished(_: StoreRows) -> None:
            bar.advance(stores)

        made = passes.savepoint.execute_rows(
            root.storage, other, prepared, by, scratch=scratch, workers=workers, wrote=wrote, finished=finished
        )
    seconds = by.clock.monotonic_seconds() - before
    output.show(
        {**_object(prepared), **_made(made), "saved": True, "seconds": round(seconds, 3)},
        lambda console: _print_done(console, prepared, made, other.url, seconds),
    )


def _object(prepared: PreparedRows) -> dict[str, Any]:
    planned = prepared.plan
    return {
        "batch": planned.begun.batch,
        "newest_batch": planned.newest,
        "structure": planned.structure.value,
        "format": planned.begun.tables,
        "complete": planned.is_complete,
        "stores": len(planned.stores),
        "finished_stores": len(planned.finished),
        "bytes_read": planned.read_bytes,
        "refusals": [error_object(error) for error in prepared.refusals],
        "tables": [
            {"path": table.folder, "operator": table.operator_name, "typed": table.rows is not None}
            for table in planned.all_tables()
        ],
    }


def _made(made: Summary) -> dict[str, Any]:
    return {
        "rows": made.rows,
        "bytes": made.bytes,
        "digest": made.digest,
        "untyped": [{"path": path, "problem": problem} for path, problem in made.untyped.items()],
    }


def _print_plan(console: Console, prepared: PreparedRows) -> None:
    planned = prepared.plan
    table = tables.table(
        f"{tables.when(planned.begun.batch)} of {planned.newest:,}: {len(planned.stores):,} stores, "
        f"{filesize.decimal(planned.read_bytes)} to read",
        "table",
        "operator",
        "rows",
    )
    for one in planned.all_tables():
        tables.add(table, one.folder, one.operator_name, "bytes" if one.rows is None else "typed")
    tables.show(console, table)
    if planned.is_complete:
        console.print("the savepoint is complete: nothing to do")
    for refusal in prepared.refusals:
        console.print(Text.assemble(("blocked: ", "red"), str(refusal)), soft_wrap=True)


def _print_done(console: Console, prepared: PreparedRows, made: Summary, url: str, seconds: float) -> None:
    for path, problem in made.untyped.items():
        console.print(tables.plain(f"{path} has bytes instead of typed columns: {problem}"), soft_wrap=True)
    console.print(
        tables.plain(
            f"saved {tables.when(prepared.plan.begun.batch)} to {url}: {made.rows:,} rows in {made.tables:,} tables, "
            f"{filesize.decimal(made.bytes)} in {seconds:,.1f} s"
        ),
        soft_wrap=True,
    )
