"""Helpers for tables and JSON output. Each verb defines its own rows."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from statekeeper.statestore.base.redaction import printable

ROWS = 50
"""Maximum number of rows in a table; further rows are counted."""

_TEXTS = ("action", "reason", "rule", "problem", "source", "path", "file")
_PATHS = ("path", "file", "root")
"""Columns whose cells are wrapped, because a shortened path cannot be copied."""
_ENCODED = json.JSONEncoder(ensure_ascii=False).encode


def as_json(result: dict[str, Any]) -> str:
    """The result as indented JSON."""
    return json.dumps(result, indent=1)


def cell(value: Any) -> str:
    """A value in a table."""
    return value if isinstance(value, str) else as_line(value)


def as_line(value: Any) -> str:
    """A value as JSON in one line. Characters that a terminal would interpret are escapes, as in `as_json`."""
    line = _ENCODED(value)
    return line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def plain(text: str) -> Text:
    """The text without markup: names and errors come from files and may look like markup."""
    return Text(text)


def show(console: Console, table: Table) -> None:
    """Print a table. Its headline is a line of its own, because Rich would wrap it to the width of the table."""
    console.print(plain(str(table.title)), soft_wrap=True)
    table.title = None
    console.print(table, soft_wrap=False)


def add(table: Table, *cells: object) -> None:
    """Add a row."""
    table.add_row(*(plain(printable(str(cell))) for cell in cells))


def table(title: str, *columns: str) -> Table:
    """A table with texts aligned left and numbers aligned right."""
    made = Table(title=title, title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        is_first = number == 0
        made.add_column(
            plain(printable(column)),
            justify="left" if is_first or column in _TEXTS else "right",
            no_wrap=column == "store",
            overflow="fold" if column in _PATHS else "ellipsis",
        )
    return made
