"""`statekeeper top`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import Opened, Output, output_option, scratch_option
from statekeeper.statestore.cli.roots import several_roots
from statekeeper.statestore.cli.rows import chosen, restored_bar
from statekeeper.statestore.cli.tables import as_line
from statekeeper.statestore.contents.rows import contents_at
from statekeeper.statestore.contents.sizes import Growth
from statekeeper.statestore.contents.top import KeyBytes, Top, TopOfState, look
from statekeeper.statestore.maintenance.verbs.report import decimal, when

_PARTITIONS = 5
"""The largest partitions that a terminal shows."""
_BAR = 20


@click.command()
@several_roots
@click.option(
    "--operator",
    type=click.IntRange(0),
    help="Look only at this operator, by its number. Default: all operators.",
)
@click.option(
    "--batches",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Count the writes of each key in so many of the newest batches. 0 counts none.",
)
@click.option("--limit", type=click.IntRange(0), default=10, show_default=True, help="Number of keys in each list.")
@scratch_option
@output_option
def top(root: Opened, operator: int | None, batches: int, limit: int, scratch: Path, output: Output) -> int:
    """Show the largest keys of the state, the keys that change most, and the oldest rows.

    top also shows the skew of the partitions, the growth of each operator per day, and the rows that the watermark should
    have evicted. It only reads. It restores the stores into the scratch folder (--scratch), one after another. The scratch
    folder needs space for the largest store.

    The size of a key is that of its key and value, uncompressed. The growth is computed from the oldest and the newest
    snapshot of each store.
    """
    contents = contents_at(root.storage)
    if contents is None:
        output.show({"batch": None, "kinds": []}, lambda console: console.print(when(None)))
        return 0
    stores = chosen(contents, () if operator is None else (str(operator),), None)
    with restored_bar(len(stores)) as advance:
        found = look(
            contents,
            stores,
            batches=batches,
            limit=limit,
            scratch=scratch,
            clock=SystemClock(),
            ids=RandomIds(),
            told=lambda store: advance(),
        )
    output.show(as_object(found), lambda console: _print(console, found))
    return 0


def as_object(found: TopOfState) -> dict[str, Any]:
    """The result as one JSON object."""
    return {
        "batch": found.batch,
        "version": found.batch + 1,
        "watermark_ms": found.watermark_ms,
        "counted_batches": None if found.counted is None else list(found.counted),
        "skipped_changelogs": found.skipped,
        "kinds": [_kind_object(one) for one in found.kinds],
        "growth": [
            {
                "operator": one.operator,
                "keys_per_day": round(one.keys_per_day, 1),
                "bytes_per_day": round(one.bytes_per_day),
                "days": round(one.days, 3),
            }
            for one in found.growth
        ],
    }


def _kind_object(one: Top) -> dict[str, Any]:
    oldest = one.oldest
    return {
        "operator": one.operator,
        "name": one.operator_name,
        "store": one.store,
        "family": one.family,
        "rows": one.rows,
        "bytes": one.size_bytes,
        "skew": None if one.skew is None else round(one.skew, 3),
        "partitions": [
            {"partition": part.partition, "rows": part.rows, "bytes": part.size_bytes} for part in one.partitions
        ],
        "largest": [{"partition": key.partition, "key": key.key, "bytes": key.size_bytes} for key in one.largest],
        "most_changed": [{"partition": key.partition, "key": key.key, "writes": key.writes} for key in one.changed],
        "is_exact": one.is_exact,
        "oldest": oldest and {"due_at": utc(oldest.due_ms / 1000), "column": oldest.by, "key": oldest.key},
        "overdue_rows": one.overdue,
    }


def _print(console: Console, found: TopOfState) -> None:
    growth = {one.operator: one for one in found.growth}
    for one in found.kinds:
        for line in _headlines(found, one, growth.get(one.operator)):
            console.print(tables.plain(line), soft_wrap=True)
        _print_keys(console, "largest keys", one.largest, "bytes", [key.size_bytes for key in one.largest])
        if found.counted is not None and one.changed:
            first, last = found.counted
            exact = "" if one.is_exact else ", at least"
            title = f"most changed keys, batches {first} to {last}{exact}"
            _print_keys(console, title, one.changed, "writes", [key.writes for key in one.changed])
        _print_partitions(console, one)
    if found.skipped:
        line = f"{counted(found.skipped, 'changelog')} could not be read: their writes are not counted"
        console.print(tables.plain(line), soft_wrap=True)


def _headlines(found: TopOfState, one: Top, growth: Growth | None) -> Iterator[str]:
    name = f"{one.operator} {one.operator_name}".strip()
    store = "" if one.store == "default" else f", store {one.store}"
    family = "" if one.family is None else f", {one.family}"
    skew = "" if one.skew is None else f", the largest partition has {one.skew:.2f} times the average"
    yield (
        f"{when(found.batch)}, operator {name}{store}{family}: {counted(one.rows, 'row')}, "
        f"{decimal(one.size_bytes)} in {counted(len(one.partitions), 'partition')}{skew}"
    )
    if growth is not None:
        yield (
            f"growth of operator {one.operator}: {growth.keys_per_day:+,.0f} keys and "
            f"{'-' if growth.bytes_per_day < 0 else '+'}{decimal(int(abs(growth.bytes_per_day)))} of files per day, over "
            f"{growth.days:,.1f} days"
        )
    if one.oldest is not None:
        key = as_line(one.oldest.key)
        yield f"oldest row: {one.oldest.by} is {utc(one.oldest.due_ms / 1000)}, key {key}"
    if one.overdue is not None:
        by = utc(found.watermark_ms / 1000) if found.watermark_ms else "none"
        yield f"rows that should have been evicted: {one.overdue:,} (watermark {by})"


def _print_keys(console: Console, title: str, keys: Sequence[KeyBytes], column: str, numbers: Sequence[int]) -> None:
    if not keys:
        return
    table = tables.table(title, "key", "partition", column)
    for key, number in zip(keys, numbers, strict=True):
        tables.add(table, as_line(key.key), key.partition, f"{number:,}")
    tables.show(console, table)


def _print_partitions(console: Console, one: Top) -> None:
    if len(one.partitions) < 2 or not one.rows:
        return
    largest = sorted(one.partitions, key=lambda part: (-part.rows, part.partition))
    most = largest[0].rows
    table = tables.table("largest partitions", "partition", "rows", "bytes", "share")
    table.columns[-1].justify = "left"
    for part in largest[:_PARTITIONS]:
        bar = "#" * max(1, round(_BAR * part.rows / most)) if part.rows else ""
        tables.add(table, part.partition, f"{part.rows:,}", f"{part.size_bytes:,}", bar)
    tables.show(console, table)
