"""What the verbs share: the root, where output goes, progress, and what becomes of errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from statestore.cli import tables
from statestore.errors import StatekeeperError
from statestore.storage import Storage, open_storage

FAILED = 1
FINDINGS = 3
PARTLY_DONE = 4
INTERRUPTED = 130

TALK = Console(stderr=True)
"""For people, whatever the output is: what happens, and what went wrong."""


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


class Verbs(click.Group):
    """Errors of the library end the command with their line and their exit code, never with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StatekeeperError as error:
            say(error)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            TALK.print("interrupted: what is done stays done, run it again")
            ctx.exit(INTERRUPTED)


def say(error: StatekeeperError) -> None:
    """Tell a person of an error."""
    # Not as markup: names out of files may hold brackets.
    TALK.print(Text.assemble((error.code, "red"), ": ", str(error)), soft_wrap=True)


def _root(_: click.Context, __: click.Parameter, value: str) -> Storage:
    try:
        return open_storage(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


root_argument = click.argument("root", callback=_root)
output_option = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    callback=lambda _, __, value: Output(value == "json"),
    help="Tables for people, or one JSON object on stdout.",
)


def progress_bar() -> Progress:
    """For work that may take longer than a second."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=TALK,
        transient=True,
    )
