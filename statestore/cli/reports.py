"""Prints the report of a verb, and what blocks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import Output, error_object, pasteable
from statekeeper.statestore.cli.rows import cell
from statekeeper.statestore.maintenance.verbs.contract import Prepared
from statekeeper.statestore.maintenance.verbs.report import Report, Table


def blockers(prepared: Prepared[Any, Any, Any]) -> list[str]:
    """Return what blocks the execution of a plan, for people."""
    return [pasteable(str(error)) for error in prepared.refusals]


def show(output: Output, prepared: Prepared[Any, Any, Any]) -> None:
    """Show a plan or what was done. JSON has the refusals as objects."""
    report = prepared.verb.report(prepared)
    record = {**report.record, "refusals": [error_object(error) for error in prepared.refusals]}
    output.show(record, lambda console: print_report(console, report, prepared))


def print_report(console: Console, report: Report, prepared: Prepared[Any, Any, Any], next_step: str = "") -> None:
    """Print a plan with what blocks it and the `next_step`, or what was done."""
    if prepared.is_done or not prepared.verb.has_work(prepared.plan):
        for line in report.done:
            console.print(tables.plain(line), soft_wrap=True)
        return
    for table in report.tables:
        _print_table(console, table)
    for line in report.lines:
        console.print(tables.plain(pasteable(line)), soft_wrap=True)
    print_blockers(console, blockers(prepared))
    if next_step and not prepared.refusals:
        console.print(next_step)


def _print_table(console: Console, shown: Table) -> None:
    table = tables.table(shown.title, *shown.columns)
    for row in shown.rows[: tables.ROWS]:
        tables.add(table, *(_text(value) for value in row))
    if len(shown.rows) > tables.ROWS:
        table.caption = f"the first {tables.ROWS}"
    tables.show(console, table)


def _text(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return cell(value) if value is None or isinstance(value, dict | list) else str(value)


def print_blockers(console: Console, blocked: Sequence[str]) -> None:
    """Print what blocks a plan."""
    for refusal in blocked:
        console.print(Text.assemble(("blocked: ", "red"), refusal), soft_wrap=True)


TO_EXECUTE = "to execute: --apply --confirm-stopped"
