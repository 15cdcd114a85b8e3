"""`statekeeper diff`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

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
    store_option,
)
from statekeeper.statestore.contents.differences import Change, Difference, Differences
from statekeeper.statestore.contents.rows import Contents, Layout, contents_at, opened
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.verbs.as_json import differences as as_json
from statekeeper.statestore.maintenance.verbs.report import when

_COLUMNS = ("change", "key", "before", "after")


@click.command()
@rows_of_several_roots
@click.option(
    "--from-batch",
    type=click.IntRange(-1),
    metavar="BATCH",
    help="Compare the state after this batch; -1 for the empty state before the first batch. Default: the batch before "
    "--to-batch.",
)
@click.option(
    "--to-batch",
    type=click.IntRange(-1),
    metavar="BATCH",
    help="Compare with the state after this batch. Default: the newest batch.",
)
@click.option(
    "--from",
    "from_version",
    type=click.IntRange(0),
    metavar="VERSION",
    help="As --from-batch, with the number in the names of the files, which is the batch plus 1.",
)
@click.option("--to", "to_version", type=click.IntRange(0), metavar="VERSION", help="As --to-batch, with that number.")
@store_option
@family_option
@limit_option
@scratch_option
@rows_option
def diff(
    root: Opened,
    from_batch: int | None,
    to_batch: int | None,
    from_version: int | None,
    to_version: int | None,
    wanted: tuple[str, ...],
    family: str | None,
    limit: int | None,
    scratch: Path,
    rows: RowOutput,
) -> None:
    """Show the differences of the state between two batches: added, removed and changed keys.

    diff only reads. It restores both states of each store into the scratch folder (--scratch) and compares all keys.

    A list in the state of transformWithState is compared as a whole. If one element differs, diff shows the key as changed,
    with both lists.
    """
    older = _batch(from_batch, from_version, "--from-batch", "--from")
    after = contents_at(root.storage, _batch(to_batch, to_version, "--to-batch", "--to"))
    if after is None:
        _sink(rows, None, None).end(_summary({}))
        return
    if older is None and after.batch < 0:
        raise click.UsageError("no state is before the empty one: use --to-batch 0 or later")
    before = contents_at(root.storage, after.batch - 1 if older is None else older)
    assert before is not None
    stores = chosen(after, wanted, family)
    layouts = chosen(before, wanted, None) if before.batch >= 0 else stores
    if layouts.keys() != stores.keys():
        raise click.UsageError(
            "the two batches have different stores, because the checkpoint was repartitioned between them: compare two "
            "batches before or two batches after the repartitioning"
        )
    if limit is None and rows.form == "table":
        limit = tables.ROWS
    sink = _sink(rows, before, after)
    totals: dict[StorePath, dict[Change, int]] = {}
    shown = 0
    with restored_bar(len(stores)) as advance:
        for store, of_store in stores.items():
            left = None if limit is None else limit - shown
            found = _compare((before, layouts[store]), (after, of_store), store, family, left, scratch, sink)
            totals[store] = found
            shown += sum(found.values()) if left is None else min(left, sum(found.values()))
            advance()
    sink.end(_summary(totals) | {"shown": shown})


def _batch(batch: int | None, version: int | None, name: str, of_version: str) -> int | None:
    if batch is not None and version is not None:
        raise click.UsageError(f"give either {name} or {of_version}")
    return batch if version is None else version - 1


def _compare(
    before: tuple[Contents, Layout],
    after: tuple[Contents, Layout],
    store: StorePath,
    family: str | None,
    limit: int | None,
    scratch: Path,
    sink: Sink,
) -> dict[Change, int]:
    clock, ids = SystemClock(), RandomIds()
    with (
        opened(before[0], store, before[1], scratch=scratch, clock=clock, ids=ids) as old,
        opened(after[0], store, after[1], scratch=scratch, clock=clock, ids=ids) as new,
    ):
        say_skipped(store, (*old.skipped_snapshots, *new.skipped_snapshots))
        differences = Differences(before=old, after=new, family=family, decoded_rows=limit)
        for one in differences:
            sink.put(_row(store, one))
        return differences.counts


def _row(store: StorePath, one: Difference) -> dict[str, Any]:
    return as_json.of_difference(store, one)


def _summary(totals: Mapping[StorePath, Mapping[Change, int]]) -> dict[str, Any]:
    all_together: Counter[Change] = Counter()
    for counts in totals.values():
        all_together.update(counts)
    return {
        "stores": [
            {"store": str(store), **{change.value: counts[change] for change in Change}}
            for store, counts in totals.items()
            if any(counts.values())
        ],
        "totals": {change.value: all_together[change] for change in Change},
        "shown": 0,
    }


def _sink(output: RowOutput, before: Contents | None, after: Contents | None) -> Sink:
    as_tables = Tables(
        title=lambda row: f"{row['store']}{', ' + row['family'] if row['family'] else ''}",
        cells=lambda row: {name: "-" if row[name] is None else row[name] for name in _COLUMNS},
        last_line=lambda summary: _last_line(before, after, summary),
    )
    return output.sink("changes", {"from": _end(before), "to": _end(after)}, as_tables)


def _end(contents: Contents | None) -> dict[str, int] | None:
    return None if contents is None else {"batch": contents.batch, "version": contents.batch + 1}


def _place(contents: Contents) -> str:
    return "the empty state" if contents.batch < 0 else when(contents.batch)


def _last_line(before: Contents | None, after: Contents | None, summary: Mapping[str, Any]) -> str:
    if before is None or after is None:
        return when(None)
    totals = summary["totals"]
    counted = ", ".join(f"{totals[change.value]:,} {change.value}" for change in Change)
    line = f"from {_place(before)} to {_place(after)}: {counted}"
    if summary["shown"] == sum(totals.values()):
        return line
    return f"{line}; the first {summary['shown']:,} are shown; --limit shows more; --output jsonl prints all"
