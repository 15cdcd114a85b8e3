"""`statekeeper snapshot`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.cli.common import (
    FAILED,
    FINDINGS,
    PARTLY_DONE,
    Opened,
    Output,
    executor_option,
    memory_option,
    mode_option,
    output_option,
    progress_bar,
    root_argument,
    run_of,
    say,
    say_skipped,
    scratch_option,
    stopped_option,
    workers_option,
)
from statekeeper.statestore.cli.reports import show, show_plan
from statekeeper.statestore.cli.verb_options import verb_options
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.snapshot import Ended, PlannedSnapshots, Snapshot, Snapshots


@click.command()
@root_argument
@verb_options(Snapshot)
@stopped_option("Required for --at-head for a native query in structure V1.")
@mode_option("snapshot requires snapshots or full, except with --dry-run.")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@scratch_option
@executor_option
@workers_option
@memory_option
@output_option
def snapshot(
    root: Opened,
    stopped: bool,
    mode: str | None,
    dry_run: bool,
    scratch: Path,
    workers: int,
    memory_bytes: int,
    output: Output,
    **given: Any,
) -> None:
    """Take snapshots of the stores with long tails.

    A tail is the changelogs after the newest snapshot: a restart replays them. A store gets a snapshot if its tail has many
    changelogs (--changelogs), or if the predicted replay time of this tail is at least 10 s. To change the limit of 10 s,
    set `restore` in statekeeper.toml. The limit for all tails together is --restore-target.

    snapshot only adds files, so it runs immediately, without --apply. The query may be running. For a running native query
    in structure V1, it takes snapshots of the state two batches before the head. The store with the longest tail comes
    first. If one store fails, the others continue.
    """
    how: dict[str, Any] = {"scratch": scratch, "workers": workers, "memory_bytes": memory_bytes, "only_plans": dry_run}
    run = run_of(root, mode=mode, stopped=stopped, **how)
    prepared = prepare(Snapshot(**given), run)
    found = prepared.plan
    if dry_run:
        show_plan(output, prepared)
        sys.exit(_exit_code(found, Snapshots()))
    ended: list[Ended] = []
    progress = progress_bar()
    bar = progress.add_task("snapshots", total=len(found.plan.take))

    def told(one: Ended) -> None:
        ended.append(one)
        action, outcome = one
        if isinstance(outcome, StatekeeperError):
            say(outcome, of=action.store)
        else:
            say_skipped(action.store, outcome.skipped_snapshots)
        progress.advance(bar)

    try:
        with progress:
            prepared = perform(prepared, told)
    except BaseException:
        # Also after an interruption: the finished snapshots exist.
        if ended:
            show(output, replace(prepared, made=Snapshots.of(ended, found.plan), is_done=True))
        raise
    show(output, prepared)
    sys.exit(_exit_code(found, prepared.made or Snapshots()))


def _exit_code(found: PlannedSnapshots, made: Snapshots) -> int:
    if made.failed:
        return PARTLY_DONE if made.taken else FAILED
    return FINDINGS if found.findings else 0
