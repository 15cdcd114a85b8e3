"""`statekeeper gc`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from statestore.cli import tables
from statestore.cli.common import (
    FINDINGS,
    PARTLY_DONE,
    Duration,
    Opened,
    Output,
    holder,
    mode_option,
    output_option,
    progress_bar,
    root_argument,
    say,
    stopped_option,
)
from statestore.clock import RandomIds, SystemClock
from statestore.errors import RefusedAsUnsafe, RootHeld, StatekeeperError
from statestore.maintenance import records, retention, runs
from statestore.maintenance.config import Mode
from statestore.maintenance.quiet import require_stopped
from statestore.maintenance.retention import Deleted, Outcome, RetentionPlan, Rule


@click.command()
@root_argument
@click.option("--apply", is_flag=True, help="Delete what the plan says.")
@click.option("--retain", type=click.IntRange(1), help="So many versions stay; 100 unless configured.")
@click.option("--grace", type=Duration(), help="What is younger stays: 90s, 10m, 1h, 7d; 1h unless configured.")
@mode_option
@click.option(
    "--orphans",
    "everything",
    is_flag=True,
    help="Look at every store, also where nothing is known to have changed; of a query of Spark's that is stopped, also "
    "tables that no snapshot names.",
)
@stopped_option
@click.option("--verbose", is_flag=True, help="Every file with its rule, also those that are kept.")
@output_option
def gc(
    root: Opened,
    apply: bool,
    retain: int | None,
    grace: float | None,
    mode: str | None,
    everything: bool,
    stopped: bool,
    verbose: bool,
    output: Output,
) -> None:
    """Show which files nobody needs, and why; with --apply, delete them.

    What both --retain and --grace let go is deleted. A store that cannot be loaded holds the floor for all of them.
    """
    clock = SystemClock()
    policy = root.policies.retention
    policy = replace(
        policy,
        versions=policy.versions if retain is None else retain,
        grace_seconds=policy.grace_seconds if grace is None else grace,
    )
    storage = root.storage
    gathered = retention.gather(storage, policy, clock=clock, everything=everything)
    planned = retention.plan(gathered, policy, stopped=everything and stopped)
    done: list[Deleted] = []
    if not apply:
        output.show(_object(planned, done, verbose), lambda console: _print(console, planned, done, verbose))
        sys.exit(FINDINGS if planned.findings else 0)
    allowed = Mode(mode) if mode else root.policies.mode_for(is_own=planned.is_own)
    if allowed is not Mode.FULL:
        raise RefusedAsUnsafe(
            f"mode {allowed.value}: nothing may be deleted", path=storage.url, hint="allow it with --mode full"
        )
    if everything and stopped and not planned.is_own:
        require_stopped(storage, said=True, clock=clock)
    failure: StatekeeperError | None = None
    try:
        with progress_bar() as progress:
            bar = progress.add_task("deleting", total=len(planned.deletions))
            for step in runs.delete(storage, gathered, planned, holder=holder(), clock=clock, ids=RandomIds()):
                done.append(step)
                progress.advance(bar, step.files)
    except RootHeld:
        raise
    except StatekeeperError as error:
        failure = error
        say(error)
    finally:
        output.show(_object(planned, done, verbose), lambda console: _print(console, planned, done, verbose))
    if failure is not None:
        sys.exit(PARTLY_DONE if done else failure.exit_code)
    sys.exit(FINDINGS if planned.findings or any(step.outcome is Outcome.CHANGED for step in done) else 0)


def _object(planned: RetentionPlan, done: Sequence[Deleted], verbose: bool) -> dict[str, Any]:
    by_rule = {
        rule.name.lower(): {
            "files": sum(1 for verdict in planned.verdicts if verdict.rule is rule),
            "bytes": sum(verdict.size_bytes for verdict in planned.verdicts if verdict.rule is rule),
            "deletes": rule.deletes,
        }
        for rule in Rule
    }
    return {
        "head": planned.head,
        "floor": planned.floor,
        "wanted_floor": planned.wanted_floor,
        "stores": len(planned.stores),
        "findings": list(planned.findings),
        "rules": by_rule,
        "left_out": planned.left_out,
        "files": [
            {"path": verdict.path, "bytes": verdict.size_bytes, "rule": verdict.rule.name.lower()}
            for verdict in planned.verdicts
            if verbose or verdict.rule.deletes
        ],
        "done": [records.of_deleted(step) for step in done],
    }


def _print(console: Console, planned: RetentionPlan, done: Sequence[Deleted], verbose: bool) -> None:
    counts: Counter[Rule] = Counter()
    sizes: Counter[Rule] = Counter()
    for verdict in planned.verdicts:
        counts[verdict.rule] += 1
        sizes[verdict.rule] += verdict.size_bytes
    floor = "none" if planned.floor is None else f"version {planned.floor}"
    looked_at = f"{len(planned.stores):,} stores looked at"
    table = tables.table(f"head version {planned.head}, floor {floor}, {looked_at}", "what", "files", "bytes", "why")
    for rule in sorted(counts, key=lambda rule: (not rule.deletes, -sizes[rule])):
        what = "delete" if rule.deletes else "keep"
        tables.add(table, what, f"{counts[rule]:,}", f"{sizes[rule]:,}", rule.value)
    console.print(table)
    if verbose:
        files = tables.table("every file", "what", "path", "why")
        for verdict in planned.verdicts:
            tables.add(files, "delete" if verdict.rule.deletes else "keep", verdict.path, verdict.rule.value)
        console.print(files)
    for finding in planned.findings:
        console.print(tables.plain(finding), soft_wrap=True)
    if planned.left_out:
        console.print(f"{planned.left_out:,} more files go in the next run")
    deletions = len(planned.deletions)
    if done:
        files_gone, bytes_gone = sum(step.files for step in done), sum(step.size_bytes for step in done)
        console.print(f"deleted {files_gone:,} of {deletions:,} files, {bytes_gone:,} bytes")
        for step in done:
            if step.outcome is Outcome.CHANGED:
                console.print(tables.plain(f"{step.store}: {step.outcome.value}: {step.detail}"), soft_wrap=True)
    elif deletions:
        console.print(f"--apply deletes {deletions:,} files")
    else:
        console.print("nothing to delete")
