"""The common part of the commands that rewrite the state of a stopped query: options, progress and displays."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli.common import (
    FINDINGS,
    TALK,
    Opened,
    Output,
    executor_option,
    memory_option,
    output_option,
    progress_bar,
    run_of,
    say_skipped,
    scratch_option,
    stopped_option,
    workers_option,
)
from statekeeper.statestore.cli.reports import APPLY, print_report
from statekeeper.statestore.cli.verb_options import Command, verb_options
from statekeeper.statestore.maintenance.rewrites.engine import Progress, ProgressCallback, RewritePhase
from statekeeper.statestore.maintenance.verbs.contract import Verb, perform, prepare
from statekeeper.statestore.maintenance.verbs.rewrite import OfStoppedQuery, Revert, Rollback

_ITEMS = {
    RewritePhase.VERIFIED: "rows verified",
    RewritePhase.READ: "rows read",
    RewritePhase.SORTED: "stores sorted",
    RewritePhase.BUILT: "snapshots built",
    RewritePhase.SNAPSHOTS: "stores",
}
"""What a progress bar counts in a phase."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The options with which a command plans, executes or reverses a rewrite. `undo`: the run that is reversed."""

    apply: bool
    abort: bool
    undo: str | None
    stopped: bool
    scratch: Path
    workers: int
    memory_bytes: int
    output: Output

    def require(self, *, given: bool, usage: str, alone: bool = True) -> None:
        """Require either a rewrite, with or without --apply, or a reversal. `given`: the options state a rewrite; `alone`:
        they state nothing beside a reversal. Raises `click.UsageError`."""
        actions = self.abort + (self.undo is not None) + given
        if actions != 1 or (not given and (self.apply or not alone)):
            raise click.UsageError(usage)


def rewrite_options(
    verb: type[OfStoppedQuery[Any]], noun: str, *, undo: str = "", **texts: str
) -> Callable[[Command], Command]:
    """Add the options of a verb to its command, and those of `Execution`, which the command gets as `execution`.

    `noun`: the rewrite; `undo`: when the reversal of a completed one is rejected, empty if a rewrite has none; `texts`: the
    help of --apply, --abort and --confirm-stopped, if it is special.
    """
    required = "Required for --apply, --abort and --undo." if undo else "Required for --apply and --abort."
    executes = f"Execute the plan, or finish an interrupted {noun}."
    options: list[Callable[[Command], Command]] = [
        verb_options(verb),
        click.option("--apply", is_flag=True, help=texts.get("apply", executes)),
        click.option(
            "--abort",
            is_flag=True,
            help=texts.get("abort", f"Reverse an interrupted {noun}. Runs immediately, without --apply."),
        ),
        click.option(
            "--undo",
            metavar="RUN",
            help=f"Reverse a completed {noun}. RUN is the id that {verb.name} --apply printed. Rejected if {undo} since. "
            "Runs immediately, without --apply.",
        ),
        stopped_option(texts.get("stopped", required)),
        scratch_option,
        executor_option,
        workers_option,
        memory_option,
        output_option,
    ]
    if not undo:
        del options[3]

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def with_execution(*args: Any, **given: Any) -> None:
            given.setdefault("undo", None)
            execution = Execution(**{field.name: given.pop(field.name) for field in fields(Execution)})
            command(*args, execution=execution, **given)

        added: Command = with_execution
        for option in reversed(options):
            added = option(added)
        return added

    return add


def run_rewrite(root: Opened, verb: Verb[Any, Progress, Any] | None, kind: RewriteKind, execution: Execution) -> None:
    """Show the plan of a rewrite or execute it; without one, reverse an interrupted or completed rewrite of this kind."""
    run = run_of(
        root,
        stopped=execution.stopped,
        scratch=execution.scratch,
        workers=execution.workers,
        memory_bytes=execution.memory_bytes,
    )
    if verb is None:
        reversal = Rollback(kind) if execution.undo is None else Revert(kind, execution.undo)
        done = perform(prepare(reversal, run), tell)
    else:
        done = prepare(verb, run)
        if execution.apply:
            with store_progress() as progress:
                done = perform(done, progress)
    report = done.report()
    blocked = list(map(str, done.refusals))
    record = report.record if done.is_done else {**report.record, "refusals": blocked}
    execution.output.show(record, lambda console: print_report(console, report, done, *APPLY))
    if not done.is_done:
        sys.exit(FINDINGS if blocked else 0)


def tell(progress: Progress) -> None:
    """Print the phase of a rewrite on stderr."""
    TALK.print(progress.phase.value)


@contextmanager
def store_progress() -> Iterator[ProgressCallback]:
    """Show on stderr how many rows or stores are complete, each skipped snapshot, and the end of each phase."""
    with progress_bar() as bar:
        task = bar.add_task("stores", total=None)

        def show(progress: Progress) -> None:
            if progress.phase in _ITEMS:
                items = _ITEMS[progress.phase]
                bar.update(task, completed=progress.done, total=progress.of, description=items)
                if progress.store is not None:
                    say_skipped(progress.store, progress.skipped_snapshots)
            elif progress.done == progress.of:
                tell(progress)

        yield show
