"""Convert docstrings to Markdown: aligned names and texts become tables, and names of errors become links.

This module determines only the format of a docstring. docs/reference determines which docstrings a page shows.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Object

from statekeeper.statestore.base import errors

_ALIGNED = re.compile(r"(?P<name>\S+(?:,? \S+){0,3}) {2,}(?P<text>\S.*)")
_NAME = re.compile(r"`(?P<name>[A-Z][A-Za-z]+)`")
_INDENT = "    "


class Readable(Extension):
    """Converts each docstring once, when griffe loads its object."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Convert the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring = Docstring(
                readable(obj.docstring.value),
                lineno=obj.docstring.lineno,
                endlineno=obj.docstring.endlineno,
                parent=obj,
            )

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Append a table of members and values to the docstring of an enum."""
        if cls.docstring is not None and any(str(base).endswith("Enum") for base in cls.bases):
            rows = [
                _of_member(one) for one in cls.members.values() if isinstance(one, Attribute) and one.name.isupper()
            ]
            cls.docstring.value = "\n".join([cls.docstring.value, *_table(rows)])


def _of_member(member: Attribute) -> tuple[str, str]:
    said, member.docstring = member.docstring.value if member.docstring else "", None
    return member.name, f"`{member.value}` {said}".strip()


def readable(text: str) -> str:
    """Return a docstring as Markdown: aligned lines as tables, names of errors as links, drawings unchanged."""
    lines: list[str] = []
    rows: list[tuple[str, str]] = []
    for line in text.splitlines():
        aligned = None if line.startswith(_INDENT) and not rows else _ALIGNED.fullmatch(line)
        if aligned is not None:
            rows.append((aligned["name"], aligned["text"]))
        elif rows and line.startswith("  ") and line.strip():
            name, said = rows[-1]
            rows[-1] = (name, f"{said} {line.strip()}")
        else:
            lines += [*_table(rows), line if line.startswith(_INDENT) else _linked(line)]
            rows = []
    return "\n".join([*lines, *_table(rows)])


def _table(rows: list[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    names = (", ".join(f"`{name}`" for name in one.split(", ")) for one, _ in rows)
    said = (_linked(text.replace("|", "\\|")) for _, text in rows)
    return ["", "| | |", "| :-- | :-- |", *(f"| {name} | {text} |" for name, text in zip(names, said, strict=True)), ""]


def _linked(line: str) -> str:
    return _NAME.sub(_link, line)


def _link(match: re.Match[str]) -> str:
    kind = getattr(errors, match["name"], None)
    is_error = isinstance(kind, type) and issubclass(kind, errors.StatekeeperError)
    return f"[`{match['name']}`][statekeeper.statestore.base.errors.{match['name']}]" if is_error else match[0]
