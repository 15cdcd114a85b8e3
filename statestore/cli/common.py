"""What the verbs share: the root, where output goes, progress, and what becomes of errors."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from statestore.cli import tables
from statestore.clock import RandomIds, SystemClock
from statestore.errors import StatekeeperError
from statestore.format.names import StorePath
from statestore.format.sparks import Spark
from statestore.maintenance.config import FILE_NAME, Configuration, Mode, Policies, load, parse_duration
from statestore.maintenance.passes import Maintainer
from statestore.maintenance.pool import WORKERS
from statestore.maintenance.snapshot import MEMORY_BYTES
from statestore.storage import Storage, open_storage

FAILED = 1
FINDINGS = 3
PARTLY_DONE = 4
INTERRUPTED = 130

_MIB = 1024 * 1024

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
        except MemoryError:
            # Each decoder bounds what it takes; of what many threads take together this is the end.
            TALK.print(
                "out of memory: the command ended early; give it more memory, or fewer --workers, and run it again"
            )
            ctx.exit(FAILED)
        except KeyboardInterrupt:
            TALK.print("interrupted: what is done stays done, run it again")
            ctx.exit(INTERRUPTED)


def say(error: StatekeeperError, *, of: StorePath | None = None) -> None:
    """Tell a person of an error, and of which store it is."""
    # Not as markup: names out of files may hold brackets.
    store = f"{of}: " if of else ""
    TALK.print(Text.assemble((error.code, "red"), ": ", store, str(error)), soft_wrap=True)


def say_skipped(store: StorePath, skipped: Iterable[str]) -> None:
    """Tell of snapshots that could not be used, where an older base has replaced them."""
    for reason in dict.fromkeys(skipped):
        what = f"{reason}; an older base was used. Verify the checkpoint: statekeeper audit ROOT --deep"
        TALK.print(Text.assemble(("warning", "yellow"), ": ", f"{store}: {what}"), soft_wrap=True)


class Duration(click.ParamType[float]):
    """An option's value in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True)
class Opened:
    """The root that a verb is about: its storage, and how it is looked after."""

    storage: Storage
    policies: Policies


def _configuration(ctx: click.Context) -> Configuration:
    chosen: Path | None = ctx.find_root().params.get("config")
    if chosen is None:
        chosen = Path(FILE_NAME)
        if not chosen.exists():
            return Configuration()
    return load(chosen)


def _root(ctx: click.Context, _: click.Parameter, value: str) -> Opened:
    root = _configuration(ctx).find(value)
    try:
        return Opened(open_storage(root.spec), root.policies)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    envvar="STATEKEEPER_CONFIG",
    help=f"Roots and policies; by default {FILE_NAME} in the working directory, if there is one.",
)


def _complete_root(ctx: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    """Configured names, and files."""
    try:
        names = [name for name in _configuration(ctx).roots if name.startswith(typed)]
    except StatekeeperError:
        names = []
    return [*(CompletionItem(name) for name in names), CompletionItem(typed, type="dir")]


root_argument = click.argument("root", callback=_root, shell_complete=_complete_root)
output_option = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    callback=lambda _, __, value: Output(value == "json"),
    help="Tables for people, or one JSON object on stdout.",
)
mode_option = click.option(
    "--mode", type=click.Choice([mode.value for mode in Mode]), help="What may be done to the checkpoint."
)


class RenamedOption(click.Option):
    """An option whose second name is its former one: it works for one more release, and the help does not show it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and (self.opts[0], record[1])


stopped_option = click.option(
    "--confirm-stopped",
    "--i-stopped-it",
    "stopped",
    cls=RenamedOption,
    is_flag=True,
    help="The query is stopped: its application is gone, and nothing will start it.",
)
for_spark_option = click.option(
    "--for-spark",
    "spark",
    type=click.Choice([spark.value for spark in Spark if spark.knows_v2]),
    callback=lambda _, __, value: None if value is None else Spark(value),
    help="The Spark that goes on from here: 4.0 and later ones do not read each other's snapshots in structure V2.",
)
scratch_option = click.option(
    "--scratch",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: Path(tempfile.gettempdir()),
    show_default="the system's folder for temporary files",
    help="Local disk to work on.",
)

workers_option = click.option(
    "--workers",
    type=click.IntRange(1),
    default=WORKERS,
    show_default="the number of cores",
    help="So many stores at a time.",
)
memory_option = click.option(
    "--memory",
    "memory_bytes",
    type=click.IntRange(320),
    default=MEMORY_BYTES // _MIB,
    show_default=True,
    callback=lambda _, __, value: value * _MIB,
    help="MiB of memory to work in, for all workers together.",
)


def holder() -> str:
    """Who is at it, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"


def this_process() -> Maintainer:
    """Return the maintainer of this process: the one in the click context's object, else one with the machine's clock."""
    injected = click.get_current_context().find_object(Maintainer)
    return injected or Maintainer(holder(), SystemClock(), RandomIds())


def progress_bar(*, redirect_stdout: bool = True) -> Progress:
    """For work that may take longer than a second; nothing where nobody watches."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=TALK,
        transient=True,
        disable=not TALK.is_terminal,
        redirect_stdout=redirect_stdout,
    )
