"""Prints the report of a verb, and what blocks it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import TALK, Output
from statekeeper.statestore.cli.group import arguments_of
from statekeeper.statestore.cli.tables import cell
from statekeeper.statestore.maintenance.verbs.contract import Prepared
from statekeeper.statestore.maintenance.verbs.report import Report, Table, way_back

APPLY = ("--apply", "--confirm-stopped")
"""The flags that execute a plan for a stopped query."""


def show(output: Output, prepared: Prepared[Any, Any, Any], *flags: str) -> None:
    """Show a plan with what blocks it or the command that executes it, or what was done. `flags`: which this command lacks
    to execute the plan."""
    report = prepared.report()
    output.show(report.record, lambda console: print_report(console, report, prepared, *flags))


def show_plan(output: Output, prepared: Prepared[Any, Any, Any]) -> None:
    """Show a plan as `show`, also one without work."""
    report = prepared.report()
    output.show(report.record, lambda console: _print_plan(console, report, prepared))


def print_report(console: Console, report: Report, prepared: Prepared[Any, Any, Any], *flags: str) -> None:
    """Print a plan with what blocks it or the command that executes it, or what was done."""
    if prepared.is_done or not prepared.verb.has_work(prepared.plan):
        print_tables(console, report.made, report.done)
    else:
        _print_plan(console, report, prepared, *flags)


def to_execute(*flags: str) -> str:
    """The sentence with the whole command that executes the plan of this command."""
    given = [one for one in arguments_of(click.get_current_context()) if one != "--dry-run"]
    # What follows `--` are arguments.
    end = given.index("--") if "--" in given else len(given)
    given[end:end] = [flag for flag in flags if flag not in given]
    first = ", stop the query and run" if "--confirm-stopped" in flags else ""
    return f"to execute{first}: {shlex.join(['statekeeper', *given])}"


def tell_way_back(prepared: Prepared[Any, Any, Any]) -> None:
    """Print the command that reverses a run before the run starts: it may be interrupted."""
    run = prepared.run
    TALK.print(way_back(prepared.verb.name, run.storage.url, run.id), soft_wrap=True)


def _print_plan(console: Console, report: Report, prepared: Prepared[Any, Any, Any], *flags: str) -> None:
    print_tables(console, report.tables, report.lines)
    for refusal in prepared.refusals:
        console.print(Text.assemble(("blocked: ", "red"), str(refusal)), soft_wrap=True)
    if prepared.may_start:
        console.print(tables.plain(to_execute(*flags)), soft_wrap=True)


def print_tables(console: Console, shown: Iterable[Table], lines: Iterable[str]) -> None:
    """Print tables, then lines."""
    for table in shown:
        _print_table(console, table)
    for line in lines:
        console.print(tables.plain(line), soft_wrap=True)


def _print_table(console: Console, shown: Table) -> None:
    table = tables.table(shown.title, *shown.columns)
    most = len(shown.rows) if shown.is_whole else tables.ROWS
    for row in shown.rows[:most]:
        tables.add(table, *(_text(value) for value in row))
    if len(shown.rows) > most:
        table.caption = f"the first {tables.ROWS}"
    tables.show(console, table)


def _text(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return cell(value) if value is None or isinstance(value, dict | list) else str(value)
