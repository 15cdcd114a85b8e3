"""The console of all verbs. It shows names and values of a checkpoint, which may be forged.

A forged name could change the title of a terminal, write to its clipboard, or look like a line of a report. So each
argument of `Terminal.print` is one line: its line breaks and control characters become escapes, as in `printable`. Only the
console itself writes line breaks and colors.

A file or a pipe gets a long line whole. At a terminal, a long line is broken between words, and each further line is
indented. A command is never broken, so that it can be pasted.
"""

from __future__ import annotations

import re
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.base.redaction import printable

_COMMAND = r"(?:statekeeper |pip install |RESTORE TABLE ).+?(?=[.;,)](?:\s|$)|$)"
_UNBROKEN = re.compile(rf"{_COMMAND}[.;,)]?|\S+")
_HANG = 2
"""Spaces before the further lines of a broken line, in addition to its own indentation."""


class Terminal(Console):
    """Prints tables, and texts of one line each. `[red]` and `:smile:` are no markup."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, file=file, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print a table, or texts as one line."""
        shown = [self._one_line(one) for one in objects]
        if self.is_terminal and len(shown) == 1 and isinstance(shown[0], str | Text):
            shown = [self._broken(Text(shown[0]) if isinstance(shown[0], str) else shown[0])]
            options["soft_wrap"] = True
        super().print(*shown, **options)

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

    def _broken(self, line: Text) -> Text:
        """Return the line with line breaks between words where it is wider than the terminal."""
        text, width = line.plain, self.width
        if cell_len(text) <= width:
            return line
        hang = len(text) - len(text.lstrip()) + _HANG
        pieces: list[tuple[int, int]] = []
        for found in _UNBROKEN.finditer(text):
            begin, end = found.span()
            if pieces and cell_len(text[pieces[-1][0] : end]) + (hang if len(pieces) > 1 else 0) <= width:
                pieces[-1] = (pieces[-1][0], end)
            else:
                pieces.append((begin, end) if pieces else (0, end))
        return Text(f"\n{' ' * hang}").join(line[begin:end] for begin, end in pieces)
