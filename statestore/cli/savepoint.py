"""`statekeeper savepoint`. Its options --list and --delete are in `savepoint_labels`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from statekeeper.statestore.cli.common import (
    FINDINGS,
    Opened,
    Output,
    complete_root,
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
from statekeeper.statestore.cli.savepoint_labels import delete_labeled, list_labels
from statekeeper.statestore.cli.verb_options import verb_options
from statekeeper.statestore.format.savepoint_names import is_label
from statekeeper.statestore.maintenance.copies.savepoints import Tables
from statekeeper.statestore.maintenance.copies.savepoints.manifest import Summary
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Prepared, perform, prepare
from statekeeper.statestore.maintenance.verbs.savepoint import PlannedRows, SaveFiles, SaveRows, Wrote


@click.command()
@root_argument
@click.argument("destination", required=False, shell_complete=complete_root)
@click.option(
    "--rows",
    is_flag=True,
    help="Write the rows of the state as tables with typed columns. pandas, Spark and DuckDB can read them. Default: "
    "copy the files, from which a Spark query can start.",
)
@verb_options(SaveFiles)
@click.option(
    "--format",
    "form",
    type=click.Choice([one.value for one in Tables]),
    default=Tables.PARQUET.value,
    show_default=True,
    help="Format of the tables. Used only with --rows. Delta tables are Parquet files with a Delta transaction log.",
)
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
def savepoint(
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
        delete_labeled(root, policies, deleted, forgets, applies, output)
        return
    assert destination is not None
    run = run_of(root, policies=policies, stopped=stopped, scratch=scratch, workers=workers)
    if rows:
        of_rows = SaveRows(destination=destination, batch=batch, tables=Tables(form), label=label, note=note)
        _save_rows(prepare(of_rows, run), dry_run, output)
    else:
        assert label is not None
        of_files = SaveFiles(destination=destination, label=label, note=note, batch=batch, location=location)
        copy(of_files, run, output, dry_run=dry_run)


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
        show(output, prepared)
        sys.exit(FINDINGS if prepared.refusals else 0)
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
