"""The console of all verbs. It shows names and values of a checkpoint, which may be forged.

A forged name could change the title of a terminal, write to its clipboard, or look like a line of a report. So each
argument of `Terminal.print` is one line: its line breaks and control characters become escapes, as in `printable`. Only the
console itself writes line breaks and colors.
"""

from __future__ import annotations

from typing import IO, Any

from rich.console import Console
from rich.text import Text

from statekeeper.statestore.base.redaction import printable


class Terminal(Console):
    """Prints tables, and texts of one line each. `[red]` and `:smile:` are no markup."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, file=file, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print a table, or texts as one line."""
        super().print(*map(self._one_line, objects), **options)

    def _one_line(self, shown: Any) -> Any:
        """Return a text as one line in its colors; a table unchanged, because `tables.add` makes its cells."""
        if isinstance(shown, str):
            return printable(shown)
        if not isinstance(shown, Text) or shown.plain.isprintable():
            return shown
        line = Text()
        for part in shown.render(self):
            line.append(printable(part.text), part.style)
        return line
