"""The command itself: verbs, options, and what becomes of errors. How a thing is shown is `tables`' business."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from statestore.cli import tables
from statestore.clock import RandomIds, SystemClock
from statestore.errors import StatekeeperError
from statestore.maintenance import snapshot as snapshots
from statestore.storage import Storage, open_storage

FAILED = 1
FINDINGS = 3
PARTLY_DONE = 4
INTERRUPTED = 130

_TALK = Console(stderr=True)


@dataclass(frozen=True)
class Output:
    """Where results go: one JSON object on stdout, or tables for a person."""

    as_json: bool

    def show(self, result: dict[str, Any], for_people: Callable[[Console], None]) -> None:
        """Print a result."""
        if self.as_json:
            click.echo(tables.as_json(result))
        else:
            for_people(Console())


class _Verbs(click.Group):
    """Errors of the library end the command with their line and their exit code, never with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StatekeeperError as error:
            _say(error)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            _TALK.print("interrupted: what is done stays done, run it again")
            ctx.exit(INTERRUPTED)


def _say(error: StatekeeperError) -> None:
    # Not as markup: names out of files may hold brackets.
    _TALK.print(Text.assemble((error.code, "red"), ": ", str(error)), soft_wrap=True)


def _root(_: click.Context, __: click.Parameter, value: str) -> Storage:
    try:
        return open_storage(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_ROOT = click.argument("root", callback=_root)
_OUTPUT = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    callback=lambda _, __, value: Output(value == "json"),
    help="Tables for people, or one JSON object on stdout.",
)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Looks after the checkpoints of stateful Spark queries. ROOT is a path or a URL.

    Exit codes: 0 fine, 1 failed, 2 usage, 3 findings, 4 partly done, 10 not a checkpoint, 11 locked, 12 unknown
    format, 13 refused as unsafe, 130 interrupted.
    """


@main.command()
@_ROOT
@_OUTPUT
def inspect(root: Storage, output: Output) -> None:
    """Stores, heads, bases, tails and sizes."""
    gathered = snapshots.gather(root)
    output.show(tables.facts_object(gathered), lambda console: console.print(tables.facts_table(gathered)))
    plan = snapshots.plan(gathered, snapshots.SnapshotPolicy())
    sys.exit(_exit_code(plan, (), ()))


@main.command()
@_ROOT
@click.option("--all", "take_all", is_flag=True, help="Every store that has no snapshot at its head.")
@click.option("--dry-run", is_flag=True, help="Show the plan and do nothing.")
@click.option(
    "--changelogs", type=click.IntRange(1), default=50, show_default=True, help="A tail of so many files is long."
)
@click.option(
    "--scratch",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: Path(tempfile.gettempdir()),
    show_default="the system's folder for temporary files",
    help="Local disk to work on.",
)
@_OUTPUT
def snapshot(root: Storage, take_all: bool, dry_run: bool, changelogs: int, scratch: Path, output: Output) -> None:
    """Make snapshots of the stores whose tail is long.

    It only adds files, so it acts at once. Stores are taken worst first; one that fails does not stop the others.
    """
    plan = snapshots.plan(snapshots.gather(root), snapshots.SnapshotPolicy(changelogs=changelogs), take_all=take_all)
    if dry_run:
        output.show(tables.plan_object(plan), lambda console: console.print(tables.plan_table(plan)))
        sys.exit(_exit_code(plan, (), ()))
    taken: list[snapshots.Taken] = []
    failed: list[tuple[snapshots.TakeSnapshot, StatekeeperError]] = []
    try:
        with _progress() as progress:
            for action in progress.track(plan.take, description="snapshots"):
                try:
                    taken.append(snapshots.execute(root, action, scratch=scratch, clock=SystemClock(), ids=RandomIds()))
                except StatekeeperError as error:
                    failed.append((action, error))
                    _say(error)
    finally:
        # Also when it is interrupted: what was made is there.
        output.show(
            tables.taken_object(plan, taken, failed), lambda console: tables.print_taken(console, plan, taken, failed)
        )
    sys.exit(_exit_code(plan, taken, failed))


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=_TALK,
        transient=True,
    )


def _exit_code(plan: snapshots.SnapshotPlan, taken: Sequence[snapshots.Taken], failed: Sequence[object]) -> int:
    if failed:
        return PARTLY_DONE if taken else FAILED
    return FINDINGS if any(action.reason.is_finding for action in plan.leave) else 0
