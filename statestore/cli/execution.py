"""The common part of the commands that rewrite the state of a stopped query: options, progress and refusals."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn, Protocol

import click
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.cli.common import (
    FINDINGS,
    TALK,
    Output,
    for_spark_of_checkpoint_option,
    memory_option,
    pasteable,
    progress_bar,
    say_skipped,
    scratch_option,
    stopped_option,
    workers_option,
)
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.rewrites.switchover import Progress, ProgressCallback, SwitchPhase

Command = Callable[..., None]

_ITEMS = {SwitchPhase.VERIFIED: "rows verified", SwitchPhase.READ: "rows read", SwitchPhase.SNAPSHOTS: "stores"}
"""What a progress bar counts in a phase."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The options with which a command plans, executes or reverses a rewrite."""

    apply: bool
    abort: bool
    spark: Spark | None
    stopped: bool
    scratch: Path
    workers: int
    memory_bytes: int

    @property
    def limits(self) -> dict[str, Any]:
        """Return the arguments that limit an execution on this machine."""
        return {"scratch": self.scratch, "workers": self.workers, "memory_bytes": self.memory_bytes}


def execution_options(*, apply: str, abort: str, stopped: str) -> Callable[[Command], Command]:
    """Add the options of `Execution` to a command, which gets them as the argument `execution`.

    `apply`, `abort`: the help of these options; `stopped`: when the command requires --confirm-stopped.
    """
    options: list[Callable[[Command], Command]] = [
        click.option("--apply", is_flag=True, help=apply),
        click.option("--abort", is_flag=True, help=abort),
        for_spark_of_checkpoint_option,
        stopped_option(stopped),
        scratch_option,
        workers_option,
        memory_option,
    ]

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def with_execution(*args: Any, **given: Any) -> None:
            execution = Execution(**{field.name: given.pop(field.name) for field in fields(Execution)})
            command(*args, execution=execution, **given)

        added: Command = with_execution
        for option in reversed(options):
            added = option(added)
        return added

    return add


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


class Prepared(Protocol):
    """The prepared plan of any verb."""

    @property
    def refusals(self) -> tuple[StatekeeperError, ...]: ...


def blockers(prepared: Prepared) -> list[str]:
    """Return what blocks the execution of a plan, for people."""
    return [pasteable(str(error)) for error in prepared.refusals]


def show_plan(
    output: Output, record: dict[str, Any], for_people: Callable[[Console], None], blocked: Sequence[str]
) -> NoReturn:
    """Show a plan that is not executed, and what blocks it. Exits with `FINDINGS` if something does."""
    output.show({**record, "refusals": list(blocked)}, for_people)
    sys.exit(FINDINGS if blocked else 0)


def print_next_step(console: Console, blocked: Sequence[str]) -> None:
    """Print what blocks a plan, or how to execute it."""
    for refusal in blocked:
        console.print(Text.assemble(("blocked: ", "red"), refusal), soft_wrap=True)
    if not blocked:
        console.print("to execute: --apply --confirm-stopped")
