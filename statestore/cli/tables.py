"""How results are shown: as tables for people, as objects for programs. Each verb knows its own rows."""

from __future__ import annotations

import json
from typing import Any

from rich.table import Table
from rich.text import Text

ROWS = 50
"""A person reads no more; the rest is counted."""

_TEXTS = ("what", "why", "problem")


def as_json(result: dict[str, Any]) -> str:
    """One object, readable by people too."""
    return json.dumps(result, indent=1)


def when(batch: int | None) -> str:
    """The batch that a result is of."""
    return "no batch is committed yet" if batch is None else f"batch {batch}, version {batch + 1}"


def plain(text: str) -> Text:
    """As plain text: names and errors come out of files and may hold what looks like markup."""
    return Text(text)


def add(table: Table, *cells: object) -> None:
    """One more row."""
    table.add_row(*(plain(str(cell)) for cell in cells))


def table(title: str, *columns: str) -> Table:
    """A table whose first column and whose texts stand left, its numbers right."""
    made = Table(title=title, title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 or column in _TEXTS else "right")
    return made
