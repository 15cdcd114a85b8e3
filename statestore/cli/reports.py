"""Prints the report of a verb, and what blocks it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import TALK, Output
from statekeeper.statestore.cli.rows import cell
from statekeeper.statestore.maintenance.verbs.contract import Prepared
from statekeeper.statestore.maintenance.verbs.report import Report, Table, way_back

TO_EXECUTE = "to execute: --apply --confirm-stopped"


def show(output: Output, prepared: Prepared[Any, Any, Any], next_step: str = "") -> None:
    """Show a plan with what blocks it and the `next_step`, or what was done."""
    report = prepared.report()
    output.show(report.record, lambda console: print_report(console, report, prepared, next_step))


def show_plan(output: Output, prepared: Prepared[Any, Any, Any], next_step: str = "") -> None:
    """Show a plan as `show`, also one without work."""
    report = prepared.report()
    output.show(report.record, lambda console: _print_plan(console, report, prepared, next_step))


def print_report(console: Console, report: Report, prepared: Prepared[Any, Any, Any], next_step: str = "") -> None:
    """Print a plan with what blocks it and the `next_step`, or what was done."""
    if prepared.is_done or not prepared.verb.has_work(prepared.plan):
        _print(console, report.made, report.done)
    else:
        _print_plan(console, report, prepared, next_step)


def tell_way_back(prepared: Prepared[Any, Any, Any]) -> None:
    """Print the command that reverses a run before the run starts: it may be interrupted."""
    run = prepared.run
    TALK.print(way_back(prepared.verb.name, run.storage.url, run.id), soft_wrap=True)


def _print_plan(console: Console, report: Report, prepared: Prepared[Any, Any, Any], next_step: str) -> None:
    _print(console, report.tables, report.lines)
    for refusal in prepared.refusals:
        console.print(Text.assemble(("blocked: ", "red"), str(refusal)), soft_wrap=True)
    if next_step and not prepared.refusals:
        console.print(next_step)


def _print(console: Console, shown: Iterable[Table], lines: Iterable[str]) -> None:
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
