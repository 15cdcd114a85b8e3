"""`statekeeper publish`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from statekeeper.statestore.cli.common import (
    FINDINGS,
    Opened,
    Output,
    complete_root,
    memory_option,
    output_option,
    progress_bar,
    root_argument,
    run_of,
    scratch_option,
    stopped_option,
)
from statekeeper.statestore.cli.reports import show, show_plan
from statekeeper.statestore.cli.verb_options import flag_of, verb_options
from statekeeper.statestore.maintenance.copies.state_tables import Progress
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.options import options_of
from statekeeper.statestore.maintenance.verbs.publish import Publish


@click.command()
@root_argument
@click.argument("destination", metavar="[TABLE]", required=False, shell_complete=complete_root)
@verb_options(Publish)
@stopped_option("Required only to publish one of the two newest batches of a native query in structure V1.")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@scratch_option
@memory_option
@output_option
def publish(
    root: Opened, stopped: bool, dry_run: bool, scratch: Path, memory_bytes: int, output: Output, **given: Any
) -> None:
    """Keep a Delta table up to date with the state of an operator.

    The first run loads all rows of the state. Each later run reads only the changelogs of the batches since, and applies
    the last write of each key in one commit of the table. The change data feed of the table is the feed of the changes.
    After a rewind, an edit or a rescale, the next run compares all rows and corrects the table.

    The query may be running. publish does not change its state. It only adds files to TABLE, so it runs immediately,
    without --apply. If it is interrupted, run the same command again. Later runs need no options: the table records them.

    TABLE is a URL, a path, or the name of a table of ROOT in statekeeper.toml. Default: all tables that statekeeper.toml
    gives ROOT.

    Only publish may write to TABLE: it has one writer. In structure V1, a running native query can overwrite the
    changelogs of its two newest batches, so that publish leaves them for a later run.
    """
    run = run_of(root, stopped=stopped, scratch=scratch, memory_bytes=memory_bytes)
    given["rename"] = given["rename"] or {}
    if given["destination"] is not None:
        sys.exit(_published(Publish(**{**given, **_of_name(root, given)}), run, output, dry_run=dry_run))
    if not root.state_tables:
        raise click.UsageError("TABLE is missing, and statekeeper.toml has no tables for this root")
    if unused := [flag_of(one) for one in options_of(Publish) if one.name != "reload" and _is_given(given[one.name])]:
        are = "are options of one table" if len(unused) > 1 else "is an option of one table"
        raise click.UsageError(
            f"{', '.join(unused)} {are}, and TABLE is missing: name the table, or set the options of each table in "
            "statekeeper.toml"
        )
    codes, shown = [], list[dict[str, Any]]()
    for table in root.state_tables:
        if not output.as_json:
            click.echo(f"== {table.name}")
        verb = Publish(destination=table.url, reload=given["reload"], **table.options)
        codes.append(_published(verb, run, Output(output.as_json, shown), dry_run=dry_run))
        run = replace(run, id=run.by.ids.fresh())
    if output.as_json:
        output.show({"tables": shown}, lambda console: None)
    sys.exit(max(codes))


def _of_name(root: Opened, given: Mapping[str, Any]) -> dict[str, Any]:
    """The location and the options of a table that statekeeper.toml names, where the command gives none."""
    table = next((one for one in root.state_tables if one.name == given["destination"]), None)
    if table is None:
        return {}
    return {"destination": table.url} | {
        name: value for name, value in table.options.items() if not _is_given(given[name])
    }


def _is_given(value: object) -> bool:
    """Whether the command gives an option: 0 is a value."""
    return value not in (None, (), {}) and value is not False


def _published(verb: Publish, run: Run, output: Output, *, dry_run: bool) -> int:
    """Publish one table, or show the plan. Return the exit code."""
    prepared = prepare(verb, run)
    if dry_run:
        show_plan(output, prepared)
        return FINDINGS if prepared.refusals else 0
    with progress_bar() as bar:
        stores = bar.add_task("stores", total=len(prepared.plan.plan.stores) or None)
        count = 0

        def told(step: Progress) -> None:
            nonlocal count
            count += step.rows
            bar.update(stores, advance=1, description=f"stores ({count:,} rows)")

        show(output, perform(prepared, told))
    return 0
