"""Code that `dump` and `diff` share: the choice of stores and families, and streaming output of rows."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import click

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import error_object, progress_bar, result_has_begun, say
from statekeeper.statestore.cli.group import errors_as_json
from statekeeper.statestore.cli.tables import as_line, cell
from statekeeper.statestore.cli.terminal import Terminal
from statekeeper.statestore.contents.rows import Contents, Layout, layout
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath

store_option = click.option(
    "--store",
    "wanted",
    metavar="STORE",
    multiple=True,
    help="Show only these stores: OPERATOR, OPERATOR/PARTITION or OPERATOR/PARTITION/NAME. Examples: 0 (all stores of "
    "operator 0), 0/3 (partition 3 of operator 0), 0/3/left-keyToNumValues (one store of a stream-stream join). "
    "Repeatable. Default: all stores.",
)
family_option = click.option(
    "--family",
    metavar="NAME",
    help="Show only this column family, for example a state variable of transformWithState. Default: all.",
)


def _form(ctx: click.Context, _: click.Parameter, value: str) -> str:
    errors_as_json(ctx, wanted=value != "table")
    return value


rows_option = click.option(
    "--output",
    "form",
    type=click.Choice(["table", "json", "jsonl"]),
    default="table",
    is_eager=True,
    callback=_form,
    help="Output format: tables (table), one JSON object with all rows (json), or one JSON object per row (jsonl). The "
    "JSON formats stream the rows.",
)
limit_option = click.option(
    "--limit",
    type=click.IntRange(0),
    show_default=f"{tables.ROWS} in a table, all in JSON",
    help="Maximum number of rows of each ROOT.",
)


def chosen(contents: Contents, wanted: Sequence[str], family: str | None) -> dict[StorePath, Layout]:
    """The requested stores in order, with the layout of their rows. Raises `click.BadParameter` for an unknown name."""
    stores = sorted(contents.stores)
    if wanted:
        for one in wanted:
            if not any(_is_meant(one, store) for store in stores):
                known = ", ".join(map(str, stores[:5])) + (" ..." if len(stores) > 5 else "") or "none"
                raise click.BadParameter(f"there is no store {one!r}; existing stores: {known}", param_hint="--store")
        stores = [store for store in stores if any(_is_meant(one, store) for one in wanted)]
    of_kind: dict[tuple[int, str], Layout] = {}
    for store in stores:
        kind = (store.operator, store.store)
        if kind not in of_kind:
            of_kind[kind] = layout(contents, store)
    if family is not None:
        known_families = sorted({name for one in of_kind.values() for name in one.families if name is not None})
        if family not in known_families:
            known = ", ".join(known_families) or "none"
            raise click.BadParameter(f"there is no column family {family!r}; existing: {known}", param_hint="--family")
    return {store: of_kind[store.operator, store.store] for store in stores}


def _is_meant(wanted: str, store: StorePath) -> bool:
    full = wanted.rstrip("/") if wanted.startswith(f"{names.STATE}/") else f"{names.STATE}/{wanted.rstrip('/')}"
    return store.folder == full or store.folder.startswith(f"{full}/")


def _write(text: str) -> None:
    # Not by click.echo, which flushes: that costs more than a row does.
    sys.stdout.write(text)


class Sink(Protocol):
    """Writes rows one at a time."""

    def put(self, row: dict[str, Any]) -> None:
        """Write one row."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """Write the summary after the last row."""


@dataclass
class JsonLines:
    """One JSON object per row. `head`: fields of every row."""

    head: Mapping[str, Any]

    def put(self, row: dict[str, Any]) -> None:
        result_has_begun()
        _write(as_line({**self.head, **row}) + "\n")

    def end(self, summary: Mapping[str, Any]) -> None:
        """Write nothing: each line is a row."""


@dataclass(kw_only=True)
class JsonObject:
    """One JSON object with all rows, one per line, written as a stream. If it is cut short, it is not valid JSON.

    `before`: text before the object. `head`, `tail`: fields before and after the rows and their summary.
    """

    name: str
    head: Mapping[str, Any]
    tail: Mapping[str, Any]
    before: str
    is_cut_short: bool = False
    _rows: int = 0

    def put(self, row: dict[str, Any]) -> None:
        if not self._rows:
            self._open()
        _write((",\n  " if self._rows else "\n  ") + as_line(row))
        self._rows += 1

    def end(self, summary: Mapping[str, Any]) -> None:
        if not self._rows:
            self._open()
        fields = "".join(
            f",\n {json.dumps(name)}: {as_line(value)}" for name, value in {**summary, **self.tail}.items()
        )
        _write(f"{']' if not self._rows else chr(10) + ' ]'}{fields}\n}}\n")
        self.is_cut_short = False

    def _open(self) -> None:
        result_has_begun()
        self.is_cut_short = True
        fields = "".join(f" {json.dumps(name)}: {as_line(value)},\n" for name, value in self.head.items())
        _write(f"{self.before}{{\n{fields} {json.dumps(self.name)}: [")


_ROWS_IN_A_TABLE = 1000
"""Rows of one table: the column widths need all of them in memory."""


@dataclass(kw_only=True)
class Tables:
    """Tables: one for consecutive rows with the same `title`, with the columns of `cells`."""

    title: Callable[[dict[str, Any]], str]
    cells: Callable[[dict[str, Any]], dict[str, Any]]
    last_line: Callable[[Mapping[str, Any]], str]
    _title: str = ""
    _rows: list[dict[str, Any]] = field(default_factory=list)

    def put(self, row: dict[str, Any]) -> None:
        title, cells = self.title(row), self.cells(row)
        is_other = self._rows and (title != self._title or cells.keys() != self._rows[0].keys())
        if is_other or len(self._rows) >= _ROWS_IN_A_TABLE:
            self._print()
        self._title = title
        self._rows.append(cells)

    def end(self, summary: Mapping[str, Any]) -> None:
        self._print()
        Terminal().print(tables.plain(self.last_line(summary)), soft_wrap=True)

    def _print(self) -> None:
        if not self._rows:
            return
        # A title of the table itself would be wrapped to its width.
        Terminal().print(tables.plain(self._title), soft_wrap=True)
        table = tables.table("", *self._rows[0])
        for column in table.columns:
            column.justify, column.overflow = "left", "fold"
        for row in self._rows:
            tables.add(table, *map(cell, row.values()))
        Terminal().print(table)
        self._rows = []


@dataclass
class RowOutput:
    """The rows of one root in the chosen format. `root`: its name, if it is one of several."""

    form: str
    root: str | None = None
    before: str = ""
    _object: JsonObject | None = None

    def sink(self, name: str, head: Mapping[str, Any], tables: Tables) -> Sink:
        """The sink of the chosen format. `name`, `head`: the list of rows in the JSON object, and its other fields."""
        root = {} if self.root is None else {"root": self.root}
        if self.form == "jsonl":
            return JsonLines(root)
        if self.form == "json":
            tail = {} if self.root is None else {"exit_code": 0}
            self._object = JsonObject(name=name, head={**root, **head}, tail=tail, before=self.before)
            return self._object
        return tables

    @property
    def is_cut_short(self) -> bool:
        """Whether its JSON object was begun but not ended."""
        return self._object is not None and self._object.is_cut_short


@dataclass
class ListOfRoots:
    """The output of several roots: a heading per root, or one JSON object with the list of the roots' objects."""

    form: str
    _count: int = 0

    def next(self, name: str) -> RowOutput:
        """The output of the next root, which must be written, or end as `failed`."""
        if self.form == "table":
            click.echo(f"== {printable(name)}")
        before = "," if self._count else '{"roots": ['
        self._count += 1
        return RowOutput(self.form, name, before)

    def failed(self, rows: RowOutput, error: StatekeeperError) -> None:
        """Print the error instead of the rows of a root."""
        say(error)
        if self.form == "json":
            result_has_begun()
            of_root = {"root": rows.root, "exit_code": error.exit_code, "error": error_object(error)}
            _write(f"{rows.before}{as_line(of_root)}\n")

    def end(self) -> None:
        """End the list."""
        if self.form == "json":
            _write("]}\n" if self._count else '{"roots": []}\n')


def side_by_side(parts: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The columns of several objects as columns of one table; a repeated name gets its part as prefix."""
    found: dict[str, Any] = {}
    for part, columns in parts:
        for name, value in columns.items():
            found[f"{part}.{name}" if name in found else name] = value
    return found


@contextlib.contextmanager
def restored_bar(stores: int) -> Iterator[Callable[[], None]]:
    """Show the number of finished stores, unless the rows go to a terminal."""
    if sys.stdout.isatty():
        yield lambda: None
        return
    # Otherwise Rich redirects stdout to its own console, which is stderr.
    with progress_bar(redirect_stdout=False) as progress:
        bar = progress.add_task("stores", total=stores)
        yield lambda: progress.advance(bar)
