"""`statekeeper config`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from statekeeper.statestore.base.messages import CONFIGURATION_FILE, counted
from statekeeper.statestore.base.redaction import printable, redacted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FAILED,
    FINDINGS,
    Output,
    complete_root,
    output_option,
    storage_options,
    with_options_of_command,
)
from statekeeper.statestore.maintenance.verbs import fleet
from statekeeper.statestore.maintenance.verbs.config import Configuration, files_of, load_all
from statekeeper.statestore.maintenance.verbs.config_check import Checked, ConfigFinding, examine


@click.group()
def config() -> None:
    """Examine the configuration. It only reads."""


@config.command(short_help="Show each policy with its source, and what is wrong.")
@click.argument("roots", metavar="[ROOT]...", nargs=-1, shell_complete=complete_root)
@click.option(
    "--offline",
    is_flag=True,
    help="Read only the files. The folders of [parents] are not listed, and environment variables are not checked.",
)
@storage_options
@output_option
def check(roots: tuple[str, ...], offline: bool, output: Output) -> None:
    """Show the policies of each query with the file and the table of each value, and what is wrong.

    check only reads. Without ROOT, it shows the values that the files set. For a ROOT, it also shows the defaults,
    and leaves out what is wrong with other checkpoints.

    It finds files and tables that cannot be used, unknown keys with the nearest known key, a query that two tables define,
    checkpoints that cannot be listed or have no committed batch, teams without a table in [teams], channels whose
    environment variable is not set, and patterns that match no query. It lists the commit log of each checkpoint, and reads
    no state. It sends no message to the channels of a team, and does not show their secrets.

    Exit code 3: there is a finding. Exit code 1: a file or a checkpoint cannot be read.
    """
    ctx = click.get_current_context()
    path: Path = ctx.find_root().params.get("config") or Path(CONFIGURATION_FILE)
    files = files_of(path)
    configuration = with_options_of_command(ctx, load_all(path))
    if offline:
        checked = examine(configuration, None)
    else:
        checked = examine(configuration, fleet.discover(configuration), environment=os.environ)
    if roots:
        checked = checked.about([configuration.find(root).name for root in roots])
    output.show(
        _object(files, configuration, checked),
        lambda console: _print(console, files, checked, all_values=bool(roots)),
    )
    sys.exit(FAILED if checked.is_unreadable else FINDINGS if checked.findings else 0)


def _object(files: list[Path], configuration: Configuration, checked: Checked) -> dict[str, Any]:
    return {
        "files": [{"file": str(one), "is_used": str(one) in configuration.files} for one in files],
        "findings": list(map(_finding, checked.findings)),
        "teams": {name: dict(channels) for name, channels in checked.teams.items()},
        "roots": [
            {
                "root": one.name,
                "url": redacted(one.url),
                "file": one.file,
                "table": one.table,
                "state": one.state,
                "policies": {
                    setting.key: {"value": setting.value, "file": setting.file or None, "table": setting.table or None}
                    for setting in one.settings
                },
            }
            for one in checked.explained
        ],
    }


def _finding(one: ConfigFinding) -> dict[str, Any]:
    return {"subject": one.subject, "problem": one.problem, "is_unreadable": one.is_unreadable}


def _print(console: Console, files: list[Path], checked: Checked, *, all_values: bool) -> None:
    found = counted(len(checked.findings), "finding") if checked.findings else "no finding"
    console.print(f"{counted(len(files), 'file')}, {counted(len(checked.explained), 'root')}: {found}")
    for one in checked.findings:
        console.print(tables.plain(printable(f"{one.subject}: {one.problem}")), soft_wrap=True)
    for team, channels in checked.teams.items():
        listed = ", ".join(f"{name} {value}" for name, value in channels.items()) or "no channel"
        console.print(tables.plain(printable(f"team {team}: {listed} (not tested)")), soft_wrap=True)
    for root in checked.explained:
        console.print()
        table = tables.table(f"{root.name}: {redacted(root.url)}: {root.state}", "key", "value", "source", "file")
        for setting in root.settings:
            if setting.table or all_values:
                tables.add(table, setting.key, setting.value, setting.table or "default", setting.file)
        if table.row_count:
            tables.show(console, table)
        else:
            console.print(tables.plain(printable(f"{table.title}: all policies are defaults")), soft_wrap=True)
