"""`statekeeper history`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from statekeeper.statestore.base.durations import duration_text
from statekeeper.statestore.base.errors import BadConfiguration, StatekeeperError
from statekeeper.statestore.base.messages import CONFIGURATION_FILE
from statekeeper.statestore.cli.common import (
    FAILED,
    FINDINGS,
    Duration,
    Output,
    configuration_of,
    output_option,
    progress_bar,
    say,
    scratch_option,
    this_process,
    with_options,
)
from statekeeper.statestore.cli.reports import print_tables, to_execute
from statekeeper.statestore.cli.roots import chosen_roots, no_checkpoints, roots_options, worst
from statekeeper.statestore.cli.tables import plain
from statekeeper.statestore.maintenance.verbs import history as histories
from statekeeper.statestore.maintenance.verbs.config import HISTORY_KEEP_SECONDS, Root
from statekeeper.statestore.maintenance.verbs.history import Destination, Source
from statekeeper.statestore.storage import StorageSpec, canonical, open_storage


@click.command()
@roots_options
@click.option(
    "--to",
    "to",
    metavar="URL",
    help="The place of the tables. Default: [history] of the root in statekeeper.toml.",
)
@click.option(
    "--keep",
    type=Duration(),
    help="Retention of the tables: a month leaves them when all of it is older. Default: keep of [history], or "
    f"{duration_text(HISTORY_KEEP_SECONDS)}.",
)
@click.option("--dry-run", is_flag=True, help="Show which runs the tables lack, and change nothing.")
@scratch_option
@output_option
def history(
    roots: tuple[str, ...],
    all_roots: bool,
    to: str | None,
    keep: float | None,
    dry_run: bool,
    scratch: Path,
    output: Output,
) -> None:
    """Keep Delta tables with the history of maintenance: runs, their steps, and the health of each day.

    Each run of snapshot, gc, drill and the other verbs leaves records below its root, which gc deletes after 30 days.
    history adds them to three tables, each run once: runs, steps and health. The tables survive the loss of Dagster's
    database, and SQL answers who deleted a file, which query has no drill, and what a team pays in a month.

    Run it each day. It reads the records of the runs that the tables lack, and examines each root once a day. It only
    reads the roots, and runs immediately, without --apply. If it is interrupted, run the same command again. A run that
    ends later is added later. The tables have one writer.

    Exit code 1: a root could not be read. Exit code 3: a record is damaged.
    """
    ctx, codes = click.get_current_context(), list[int]()
    configuration = configuration_of(ctx)
    found: list[Root] = []
    for name in chosen_roots(ctx, codes, roots, all_roots=all_roots):
        root = configuration.find(name)
        found.append(replace(root, spec=with_options(ctx, root.spec)))
    if not found:
        raise no_checkpoints(ctx)
    if to is not None:
        place = StorageSpec(canonical(to))
        found = [replace(one, outputs=replace(one.outputs, history=place)) for one in found]
    places, without = histories.destinations(found)
    if without:
        raise BadConfiguration(
            f"has no place for the tables of history of {', '.join(one.name for one in without[:5])}",
            path=without[0].file or CONFIGURATION_FILE,
            hint='add [history] and url = "s3://bucket/statekeeper-history", or run this command with --to URL',
        )
    results: list[dict[str, Any]] = []
    for one in places:
        spec = with_options(ctx, one.spec)
        chosen = replace(one, spec=spec, keep_seconds=one.keep_seconds if keep is None else keep)
        try:
            codes.append(_recorded(chosen, Output(output.as_json, results), scratch, dry_run=dry_run))
        except StatekeeperError as error:
            # The other places do not depend on it.
            say(error)
            codes.append(error.exit_code)
    if output.as_json:
        output.show({"places": results}, lambda console: None)
    sys.exit(worst(codes))


def _recorded(place: Destination, output: Output, scratch: Path, *, dry_run: bool) -> int:
    """Bring the tables of one place to the newest runs, or show the plan. Return the exit code."""
    process, codes = this_process(), list[int]()
    sources: list[Source] = []
    for root in place.roots:
        try:
            sources.append(histories.source_of(root, open_storage(root.spec, is_hurried=False)))
        except StatekeeperError as error:
            say(error)
            codes.append(FAILED)
    facts = histories.gather(
        place.spec.url, sources, lambda url: open_storage(place.table(url), is_hurried=False), clock=process.clock
    )
    planned = histories.plan(facts, keep_seconds=place.keep_seconds)
    made = None
    if not dry_run:
        with progress_bar() as bar:
            task = bar.add_task("roots", total=len(facts.sources) or None)
            made = histories.execute(
                planned,
                scratch=scratch,
                clock=process.clock,
                ids=process.ids,
                told=lambda name: bar.update(task, advance=1),
            )
    report = histories.report(planned, made)

    def for_people(console: Console) -> None:
        if made is not None:
            print_tables(console, report.made, report.done)
            return
        print_tables(console, report.tables, report.lines)
        if planned.has_work:
            console.print(plain(to_execute()), soft_wrap=True)

    output.show(report.record, for_people)
    if facts.problems if made is None else made.problems:
        codes.append(FAILED)
    return worst([*codes, FINDINGS if made is not None and made.damaged else 0])
