"""`statekeeper savepoint`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FINDINGS,
    Opened,
    Output,
    complete_root,
    error_object,
    executor_option,
    mode_option,
    output_option,
    progress_bar,
    root_argument,
    run_of,
    scratch_option,
    stopped_for_copy_option,
    workers_option,
)
from statekeeper.statestore.cli.copies import copy
from statekeeper.statestore.cli.reports import show
from statekeeper.statestore.cli.verb_options import verb_options
from statekeeper.statestore.format.savepoint_names import is_label
from statekeeper.statestore.maintenance.copies.labels import Labels
from statekeeper.statestore.maintenance.copies.savepoints.manifest import Summary
from statekeeper.statestore.maintenance.verbs.contract import Prepared, perform, prepare
from statekeeper.statestore.maintenance.verbs.report import decimal, when
from statekeeper.statestore.maintenance.verbs.savepoint import (
    PlannedRows,
    Remove,
    SaveFiles,
    SaveRows,
    Wrote,
    listed,
    of_label,
)


@click.command()
@root_argument
@click.argument("destination", required=False, shell_complete=complete_root)
@click.option(
    "--rows",
    is_flag=True,
    help="Write the rows of the state as tables with typed columns. pandas, Spark and DuckDB can read them. Default: "
    "copy the files, from which a Spark query can start.",
)
@verb_options(SaveFiles, SaveRows, Remove)
@click.option("--list", "lists", is_flag=True, help="List the labeled savepoints of ROOT. Only reads.")
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
@executor_option
@output_option
def savepoint(
    root: Opened,
    destination: str | None,
    rows: bool,
    lists: bool,
    applies: bool,
    stopped: bool,
    mode: str | None,
    dry_run: bool,
    workers: int,
    scratch: Path,
    output: Output,
    **given: Any,
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
    label, deleted = given["label"], given.pop("savepoint")
    forget, form, location = given.pop("forget"), given.pop("tables"), given["location"]
    _require_usable(
        destination,
        rows=rows,
        label=label,
        note=given["note"],
        location=location,
        lists=lists,
        deleted=deleted,
        for_deletion=applies or forget,
    )
    if lists:
        _list_labels(root, output)
        return
    run = run_of(root, mode=mode, stopped=stopped, scratch=scratch, workers=workers)
    if deleted is not None:
        removed = prepare(Remove(savepoint=deleted, forget=forget), run)
        _end(output, perform(removed) if applies else removed, "--apply")
    elif rows:
        del given["location"]
        _save_rows(prepare(SaveRows(destination=destination or "", tables=form, **given), run), dry_run, output)
    else:
        copy(SaveFiles(destination=destination or "", **given), run, output, dry_run=dry_run)


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


def _save_rows(prepared: Prepared[PlannedRows, Wrote, Summary], dry_run: bool, output: Output) -> None:
    if dry_run:
        _end(output, prepared)
        return
    planned = prepared.plan.plan
    with progress_bar() as bar:
        stores = bar.add_task("stores", total=len(planned.stores))
        bar.advance(stores, len(planned.finished))
        count = 0

        def told(wrote: Wrote) -> None:
            nonlocal count
            if isinstance(wrote, int):
                count += wrote
                bar.update(stores, description=f"stores ({count:,} rows)")
            else:
                bar.advance(stores)

        show(output, perform(prepared, told))


def _end(output: Output, prepared: Prepared[Any, Any, Any], *flags: str) -> None:
    show(output, prepared, *flags)
    sys.exit(FINDINGS if prepared.refusals else 0)


def _list_labels(root: Opened, output: Output) -> None:
    """Show the savepoints that a root records. Ends with `FINDINGS` if a record cannot be read."""
    found = listed(root.storage)
    shown = {
        "savepoints": [of_label(one) for one in found.labels],
        "problems": [error_object(problem) for problem in found.problems],
    }
    output.show(shown, lambda console: _print_list(console, found))
    if found.problems:
        sys.exit(FINDINGS)


def _print_list(console: Console, found: Labels) -> None:
    console.print(f"savepoints: {len(found.labels):,}")
    for one in found.labels:
        size = decimal(one.size_bytes)
        saved = f"{when(one.batch)} as {one.content.value}, {size}, {utc(one.created_at_ms / 1000)}"
        line = f"{one.label}: {saved}, {one.destination}"
        rest = f"{': ' if one.note else ''}{one.note}{'; its deletion has begun' if one.deleting else ''}"
        console.print(tables.plain(f"{line}{rest}"), soft_wrap=True)
    for problem in found.problems:
        console.print(Text.assemble(("unreadable: ", "red"), str(problem)), soft_wrap=True)
