"""`statekeeper dump`."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import Opened, say_skipped, scratch_option
from statekeeper.statestore.cli.roots import rows_of_several_roots
from statekeeper.statestore.cli.rows import (
    RowOutput,
    Sink,
    Tables,
    chosen,
    family_option,
    limit_option,
    restored_bar,
    rows_option,
    side_by_side,
    store_option,
)
from statekeeper.statestore.cli.tables import as_line
from statekeeper.statestore.contents.rows import Contents, Layout, contents_at, opened
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.plain_values import grouped, plain_rows
from statekeeper.statestore.maintenance.verbs.report import when


@click.command()
@rows_of_several_roots
@store_option
@family_option
@click.option(
    "--version",
    type=click.IntRange(0),
    help="Show the state of the batch whose files have this number: batch N writes 0/3/[N+1].changelog. Version 0 is the "
    "empty state. Give either --batch or --version.",
)
@click.option(
    "--batch",
    type=click.IntRange(0),
    help="Show the state after this batch. Default: the newest batch.",
)
@click.option(
    "--key",
    "keys",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Show only rows whose key column has this value, for example user=ann or id=42. Write the value as --output json "
    "prints it, but without quotes. Repeatable: a row must match all conditions.",
)
@limit_option
@scratch_option
@rows_option
def dump(
    root: Opened,
    wanted: tuple[str, ...],
    family: str | None,
    version: int | None,
    batch: int | None,
    keys: tuple[str, ...],
    limit: int | None,
    scratch: Path,
    rows: RowOutput,
) -> None:
    """Show the rows of the state after any retained batch, without Spark.

    dump only reads. It restores the stores into the scratch folder (--scratch), one after another. The scratch folder
    needs space for the largest store.

    If the state of transformWithState contains a list, dump shows one row for each element.
    """
    if version is not None and batch is not None:
        raise click.UsageError("--version and --batch exclude each other: give one of them")
    contents = contents_at(root.storage, version - 1 if version is not None else batch)
    if limit is None and rows.form == "table":
        limit = tables.ROWS
    shown = Shown(limit, _conditions(keys))
    sink = _sink(rows, contents)
    if contents is not None:
        stores = chosen(contents, wanted, family)
        _require_columns(shown.conditions, stores)
        for row in shown.rows(contents, stores, family, scratch):
            sink.put(row)
    sink.end({"shown": shown.count, "all": not shown.stopped})


def _conditions(keys: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for text in keys:
        column, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not COLUMN=VALUE", param_hint="--key")
        found.append((column, value))
    return found


def _require_columns(conditions: Sequence[tuple[str, str]], stores: Mapping[StorePath, Layout]) -> None:
    families = [family for layout in stores.values() for family in layout.families.values()]
    known = sorted({name for family in families for name in _columns(family.key)})
    for column, _ in conditions:
        if column not in known:
            raise click.BadParameter(
                f"no key has a column {column!r}; existing columns: {', '.join(known) or 'none'}", param_hint="--key"
            )


def _columns(fields: Iterable[pa.Field]) -> Iterator[str]:
    """The names of columns at any depth."""
    for one in fields:
        yield one.name
        if pa.types.is_struct(one.type):
            yield from _columns(one.type)


@dataclass
class Shown:
    """The filter and the count of the rows shown so far. `stopped`: there may be more rows."""

    limit: int | None
    conditions: Sequence[tuple[str, str]]
    count: int = 0
    stopped: bool = False

    def rows(
        self, contents: Contents, stores: Mapping[StorePath, Layout], family: str | None, scratch: Path
    ) -> Iterator[dict[str, Any]]:
        """The rows of all stores, as objects."""
        with restored_bar(len(stores)) as advance:
            for store, of_store in stores.items():
                if self.stopped or self.limit == self.count:
                    self.stopped = True
                    return
                if family is None or family in of_store.families:
                    # Closed here, so that its folder is gone before the next one is made.
                    with contextlib.closing(self._of_store(contents, store, of_store, family, scratch)) as rows:
                        yield from rows
                advance()

    def _of_store(
        self, contents: Contents, store: StorePath, of_store: Layout, family: str | None, scratch: Path
    ) -> Generator[dict[str, Any]]:
        with opened(contents, store, of_store, scratch=scratch, clock=SystemClock(), ids=RandomIds()) as found:
            say_skipped(store, found.skipped_snapshots)
            for pairs in found.pairs(family):
                decoded = found.decoded(pairs)
                values = grouped(plain_rows(decoded.values), decoded.counts)
                for key, of_key in zip(plain_rows(decoded.keys), values, strict=True):
                    if not all(_has(key, column, value) for column, value in self.conditions):
                        continue
                    for value in of_key:
                        if self.count == self.limit:
                            self.stopped = True
                            return
                        self.count += 1
                        yield {"store": str(store), "family": pairs.family, "key": key, "value": value}


def _has(key: Any, column: str, value: str) -> bool:
    """Whether a column of that name, at any depth, has that value."""
    if not isinstance(key, dict):
        return False
    for name, held in key.items():
        if name == column and value == (held if isinstance(held, str) else as_line(held)):
            return True
        if _has(held, column, value):
            return True
    return False


def _sink(output: RowOutput, contents: Contents | None) -> Sink:
    batch = None if contents is None else contents.batch
    head = {"batch": batch, "version": None if batch is None else batch + 1}
    as_tables = Tables(
        title=lambda row: f"{row['store']}{', ' + row['family'] if row['family'] else ''}",
        cells=lambda row: side_by_side([("key", row["key"]), ("value", row["value"])]),
        last_line=lambda summary: _last_line(batch, summary),
    )
    return output.sink("rows", head, as_tables)


def _last_line(batch: int | None, summary: Mapping[str, Any]) -> str:
    if summary["all"]:
        return f"{when(batch)}: {summary['shown']:,} rows"
    more = "--limit shows more; --store, --family and --key filter; --output jsonl prints all"
    return f"{when(batch)}: the first {summary['shown']:,} rows; {more}"
