"""`statekeeper savepoint`. Its options --list and --delete are in `savepoint_labels`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich import filesize
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.clone import clone_object, print_clone
from statekeeper.statestore.cli.common import (
    BATCH_DEFAULT,
    FINDINGS,
    Opened,
    Output,
    complete_root,
    copy_location_option,
    error_object,
    mode_option,
    open_destination,
    output_option,
    pasteable,
    progress_bar,
    root_argument,
    scratch_option,
    stopped_for_copy_option,
    this_process,
    workers_option,
)
from statekeeper.statestore.cli.copy_progress import copy_progress
from statekeeper.statestore.cli.savepoint_labels import delete_labeled, list_labels
from statekeeper.statestore.format.savepoint_names import is_label
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.copies.savepoints import Tables
from statekeeper.statestore.maintenance.copies.savepoints.manifest import Summary
from statekeeper.statestore.maintenance.copies.savepoints.record import StoreRows
from statekeeper.statestore.maintenance.verbs import PreparedClone, PreparedFiles, PreparedRows
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.scratch import free_bytes


@click.command()
@root_argument
@click.argument("destination", required=False, shell_complete=complete_root)
@click.option(
    "--rows",
    is_flag=True,
    help="Write the rows of the state as tables with typed columns. pandas, Spark and DuckDB can read them. Default: "
    "copy the files, from which a Spark query can start.",
)
@click.option(
    "--label",
    metavar="LABEL",
    help="Name of the savepoint in the list of ROOT. Required without --rows; optional with --rows.",
)
@click.option("--note", metavar="TEXT", default="", help="A note for the list. Requires --label.")
@click.option(
    "--batch",
    type=click.IntRange(0),
    help=f"The batch whose state to keep. {BATCH_DEFAULT} If a run with --rows into DESTINATION was interrupted, the "
    "default is the batch of that run.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([one.value for one in Tables]),
    default=Tables.PARQUET.value,
    show_default=True,
    help="Format of the tables. Used only with --rows. Delta tables are Parquet files with a Delta transaction log.",
)
@copy_location_option
@click.option("--list", "lists", is_flag=True, help="List the labeled savepoints of ROOT. Only reads.")
@click.option(
    "--delete", "deleted", metavar="LABEL", help="Show the files of this savepoint; with --apply, delete them."
)
@click.option(
    "--forget",
    "forgets",
    is_flag=True,
    help="With --delete: only remove the savepoint from the list of ROOT. Use it if its files no longer exist.",
)
@click.option("--apply", "applies", is_flag=True, help="Execute --delete.")
@stopped_for_copy_option
@mode_option(
    "In every mode, savepoint writes the savepoint to DESTINATION. In mode snapshots or full, it also adds the "
    "savepoint to the list in ROOT. If ROOT lists the savepoint, --delete "
    "changes this list, so it requires snapshots or full. --delete never requires full, although "
    "it also deletes the files of the savepoint."
)
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@workers_option
@scratch_option
@output_option
@click.pass_context
def savepoint(
    ctx: click.Context,
    root: Opened,
    destination: str | None,
    rows: bool,
    label: str | None,
    note: str,
    batch: int | None,
    form: str,
    location: str | None,
    lists: bool,
    deleted: str | None,
    forgets: bool,
    applies: bool,
    stopped: bool,
    mode: str | None,
    dry_run: bool,
    workers: int,
    scratch: Path,
    output: Output,
) -> None:
    """Keep the state of a checkpoint at one batch in another location: as files or, with --rows, as tables.

    Without --rows, the savepoint contains files, and a Spark query can start from it. --label is then required. With
    --rows, the savepoint contains tables with the rows of the state. --label is then optional.

    The query of the source may be running. savepoint does not change its state. A savepoint is an independent copy:
    garbage collection of the source does not delete it. DESTINATION must be empty, or contain only files of an
    interrupted run of the same command. savepoint only adds files, so it runs immediately, without --apply. If it is
    interrupted, run the same command again. If it then fails because the query has committed more batches, add the
    --batch that the error names.

    In structure V1, a running native query can overwrite the changelogs of its two newest
    batches. To copy one of these batches, stop the query and add --confirm-stopped.

    The list of savepoints is stored in ROOT, and --list shows it. In mode observe, Statekeeper writes nothing into ROOT, so
    the list does not contain savepoints that were made in this mode. To list or delete such a savepoint, use its own
    location as ROOT:

    \b
        statekeeper savepoint LOCATION --list
        statekeeper savepoint LOCATION --delete LABEL --apply
    """
    policies = root.policies if mode is None else replace(root.policies, mode=Mode(mode))
    _require_usable(
        destination,
        rows=rows,
        label=label,
        note=note,
        location=location,
        lists=lists,
        deleted=deleted,
        for_deletion=applies or forgets,
    )
    if lists:
        list_labels(root, output)
        return
    if deleted is not None:
        delete_labeled(ctx, root, policies, deleted, forgets, applies, output)
        return
    assert destination is not None
    by = this_process()
    other = open_destination(ctx, destination).storage
    if rows:
        prepared = verbs.savepoint.plan_rows(
            root.storage,
            other,
            by,
            policies=policies,
            batch=batch,
            tables=Tables(form),
            stopped=stopped,
            label=label,
            note=note,
        )
        _save_rows(root.storage, other, prepared, policies, dry_run, workers, scratch, output)
    else:
        assert label is not None
        files = verbs.savepoint.plan_files(
            root.storage,
            other,
            policies,
            by,
            label=label,
            note=note,
            batch=batch,
            stopped=stopped,
            location=location,
        )
        _save_files(root.storage, other, files, dry_run, scratch, output)


def _require_usable(
    destination: str | None,
    *,
    rows: bool,
    label: str | None,
    note: str,
    location: str | None,
    lists: bool,
    deleted: str | None,
    for_deletion: bool,
) -> None:
    """Raise `click.UsageError` for options that exclude each other or are missing."""
    if for_deletion and deleted is None:
        raise click.UsageError("--apply and --forget require --delete LABEL")
    if lists or deleted is not None:
        if (lists and deleted is not None) or destination is not None or rows or label is not None:
            raise click.UsageError("--list and --delete take only ROOT")
        return
    if destination is None:
        raise click.UsageError("Missing argument 'DESTINATION'.")
    if label is None and not rows:
        raise click.UsageError("give --label LABEL to keep the files, or --rows to keep the rows")
    if rows and location is not None:
        raise click.UsageError("--location is only for a savepoint of files")
    if label is None and note:
        raise click.UsageError("--note requires --label")
    if label is not None and not is_label(label):
        raise click.BadParameter(
            f'{label!r} is not a valid label: use at most 100 letters, digits, ".", "_" and "-", and begin with a letter '
            "or digit",
            param_hint="--label",
        )


def _save_rows(
    source: Storage,
    other: Storage,
    prepared: PreparedRows,
    policies: Policies,
    dry_run: bool,
    workers: int,
    scratch: Path,
    output: Output,
) -> None:
    if dry_run:
        needed = prepared.plan.scratch_bytes(workers)
        shown = {
            **_object(prepared),
            "table_bytes": prepared.plan.table_bytes,
            "scratch_bytes": needed,
            "scratch_free_bytes": free_bytes(scratch),
        }
        output.show(shown, lambda console: _print_plan(console, prepared, needed, scratch))
        sys.exit(FINDINGS if prepared.refusals else 0)
    by = this_process()
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

        made = verbs.savepoint.execute_rows(
            source, other, prepared, by, policies, scratch=scratch, workers=workers, wrote=wrote, finished=finished
        )
    seconds = by.clock.monotonic_seconds() - before
    output.show(
        {**_object(prepared), **_made(made), "saved": True, "seconds": round(seconds, 3)},
        lambda console: _print_done(console, prepared, made, other.url, seconds),
    )


def _save_files(
    source: Storage, other: Storage, prepared: PreparedFiles, dry_run: bool, scratch: Path, output: Output
) -> None:
    shown = {
        **clone_object(prepared.clone),
        "label": prepared.label.label,
        "note": prepared.label.note,
        "refusals": [error_object(error) for error in prepared.refusals],
    }
    if dry_run:
        whole = PreparedClone(prepared.clone.mode, prepared.clone.gathered, prepared.clone.plan, prepared.refusals)
        output.show(shown, lambda console: print_clone(console, whole))
        sys.exit(FINDINGS if prepared.refusals else 0)
    by = this_process()
    before = by.clock.monotonic_seconds()
    with copy_progress(prepared.clone.plan.files) as copied:
        is_listed = verbs.savepoint.execute_files(source, other, prepared, by, scratch=scratch, copied=copied)
    seconds = by.clock.monotonic_seconds() - before

    def print_done(console: Console) -> None:
        planned = prepared.clone.plan
        where = "" if is_listed else "; the source does not list it, because its mode is observe"
        console.print(
            tables.plain(
                f"saved {tables.when(planned.record.batch)} as {prepared.label.label} to {other.url}: "
                f"{filesize.decimal(planned.size_bytes())} in {seconds:,.1f} s{where}"
            ),
            soft_wrap=True,
        )

    output.show({**shown, "saved": True, "listed": is_listed, "seconds": round(seconds, 3)}, print_done)


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


def _print_plan(console: Console, prepared: PreparedRows, scratch_bytes: int, scratch: Path) -> None:
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
    free = filesize.decimal(free_bytes(scratch))
    needed = f"needs up to {filesize.decimal(scratch_bytes)} of local disk in {scratch}, which has {free} free"
    console.print(tables.plain(needed), soft_wrap=True)
    written = f"needs about {filesize.decimal(planned.table_bytes)} in the destination, usually less"
    console.print(tables.plain(written), soft_wrap=True)
    if planned.is_complete:
        console.print("the savepoint is complete: nothing to do")
    for refusal in prepared.refusals:
        console.print(Text.assemble(("blocked: ", "red"), pasteable(str(refusal))), soft_wrap=True)


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
