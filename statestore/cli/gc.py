"""`statekeeper gc`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from statekeeper.statestore.base.errors import RootHeld, StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FINDINGS,
    PARTLY_DONE,
    TALK,
    Opened,
    Output,
    executor_option,
    mode_option,
    output_option,
    progress_bar,
    root_argument,
    run_of,
    say,
    scratch_option,
    stopped_option,
    workers_option,
)
from statekeeper.statestore.cli.reports import show
from statekeeper.statestore.cli.verb_options import verb_options
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, DeletionOutcome
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.retention import Retention


@click.command()
@root_argument
@click.option("--apply", is_flag=True, help="Delete the files of the plan.")
@verb_options(Retention)
@mode_option("--apply requires full.")
@stopped_option("Used only with --orphans, for a native query.")
@scratch_option
@executor_option
@workers_option
@output_option
def gc(
    root: Opened,
    apply: bool,
    mode: str | None,
    stopped: bool,
    scratch: Path,
    workers: int,
    output: Output,
    **given: Any,
) -> None:
    """Show which files are no longer needed, with reasons; with --apply, delete them.

    gc deletes a file only if it is older than --grace and no retained version needs it (--retain). gc makes sure that
    all stores can be loaded at the oldest version that it retains. If a store cannot be loaded at the oldest of the
    --retain versions, gc also retains older versions, back to the nearest one at which all stores can be loaded.

    gc first audits the checkpoint, like the command audit. If the audit reports an error (lost or wrong state), gc deletes
    nothing. To delete files nevertheless, add --accept-loss.

    gc --apply reads a snapshot in full before it deletes the older files that this snapshot replaces. If the snapshot is
    corrupt, gc deletes nothing.
    """
    run = run_of(root, mode=mode, stopped=stopped, scratch=scratch, workers=workers, only_plans=not apply)
    prepared = prepare(Retention(**given), run)
    found, planned = prepared.plan, prepared.plan.plan
    code = FINDINGS if planned.findings or found.before.breaks else 0
    if not apply:
        show(output, prepared, "--apply")
        sys.exit(code)
    if given["accept_loss"]:
        amount = f"deletes {counted(found.losses.files, 'file')}, {counted(found.losses.bytes, 'byte')}"
        for line in (*found.losses.lines(), amount):
            TALK.print(tables.plain(line), soft_wrap=True)
    done: list[Deleted] = []
    try:
        with progress_bar() as progress:
            bar = progress.add_task("deleting", total=len(planned.deletions))

            def told(step: Deleted) -> None:
                done.append(step)
                progress.advance(bar, step.files)

            prepared = perform(prepared, told)
    except BaseException as error:
        if isinstance(error, StatekeeperError):
            if isinstance(error, RootHeld) or error in prepared.refusals:
                raise
            say(error)
        # Also after an interruption: the finished deletions are shown.
        show(output, replace(prepared, made=tuple(done), is_done=bool(done)))
        if isinstance(error, StatekeeperError):
            sys.exit(PARTLY_DONE if done else error.exit_code)
        raise
    show(output, prepared)
    changed = any(step.outcome in (DeletionOutcome.CHANGED, DeletionOutcome.DAMAGED) for step in done)
    sys.exit(FINDINGS if changed else code)
