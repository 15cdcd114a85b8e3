"""The common part of `statekeeper rescale` and `statekeeper convert`: options, prompts and displays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from statestore.cli import tables
from statestore.cli.common import (
    FINDINGS,
    TALK,
    Opened,
    Output,
    for_spark_of_checkpoint_option,
    memory_option,
    open_destination,
    output_option,
    progress_bar,
    scratch_option,
    stopped_option,
    this_process,
    workers_option,
)
from statestore.cli.file_sink import file_sink_lines, file_sink_option
from statestore.format.sparks import Spark
from statestore.maintenance import passes, records
from statestore.maintenance.rewrites import Goal, RewritePlan
from statestore.maintenance.switchover import Progress, SwitchPhase
from statestore.origin import Origin
from statestore.storage import Storage
from statestore.switch_journal import RewriteKind

Command = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of both commands, as click gives them."""

    apply: bool
    abort: bool
    file_sink: str | None
    spark: Spark | None
    stopped: bool
    scratch: Path
    workers: int
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Wording:
    """The texts in which the commands differ.

    noun     the rewrite, after "a"
    is_there that the goal is reached already
    done     that the rewrite is complete, and how to start the query
    title    the end of the title of the plan
    after    what the plan says about the time afterwards
    """

    noun: str
    is_there: Callable[[RewritePlan], str]
    done: Callable[[RewritePlan], str]
    title: Callable[[RewritePlan], str]
    after: Callable[[RewritePlan], str]


def rewrite_options(noun: str) -> Callable[[Command], Command]:
    """Add the options of `Options`, and `output`, to a command."""

    def add(command: Command) -> Command:
        of_noun: list[Callable[[Command], Command]] = [
            click.option("--apply", is_flag=True, help=f"Execute the plan, or finish an interrupted {noun}."),
            click.option(
                "--abort", is_flag=True, help=f"Roll back an interrupted {noun}. Runs immediately, without --apply."
            ),
        ]
        common: list[Callable[[Command], Command]] = [
            file_sink_option,
            for_spark_of_checkpoint_option,
            stopped_option("Required for --apply and --abort."),
            scratch_option,
            workers_option,
            memory_option,
            output_option,
        ]
        for option in reversed([*of_noun, *common]):
            command = option(command)
        return command

    return add


def run_rewrite(
    ctx: click.Context,
    root: Opened,
    goal: Goal | None,
    kind: RewriteKind,
    options: Options,
    output: Output,
    wording: Wording,
) -> None:
    """Show the plan for a goal, execute it, or reverse an interrupted rewrite if there is no goal."""
    storage, policies, by = root.storage, root.policies, this_process()
    run = by.ids.fresh()

    def open_sink(url: str) -> Storage:
        return open_destination(ctx, url).storage

    if goal is None:
        begun = passes.rewrite.abort(
            storage, policies, kind, by, _tell, run=run, stopped=options.stopped, open_sink=open_sink
        )
        was = f"reversed: the checkpoint is as it was after batch {begun.batch}"
        output.show({"aborted": begun.number}, lambda console: console.print(was))
        return
    prepared = passes.rewrite.plan(
        storage,
        policies,
        goal,
        options.spark,
        scratch=options.scratch,
        file_sink=options.file_sink,
        open_sink=open_sink,
    )
    if options.apply:
        with progress_bar() as bar:
            task = bar.add_task("stores", total=None)

            def show(progress: Progress) -> None:
                if progress.phase is SwitchPhase.SNAPSHOTS:
                    bar.update(task, completed=progress.done, total=progress.of)
                elif progress.done == progress.of:
                    _tell(progress)

            prepared = passes.rewrite.execute(
                storage,
                prepared,
                by,
                show,
                run=run,
                stopped=options.stopped,
                scratch=options.scratch,
                workers=options.workers,
                memory_bytes=options.memory_bytes,
            )
    planned = prepared.plan
    record = records.of_rewrite_plan(planned)
    if not options.apply or not prepared.may_start:
        output.show(record, lambda console: _print_plan(console, planned, wording))
        sys.exit(FINDINGS if planned.refusals else 0)
    done = tables.plain(wording.done(planned))
    output.show({**record, "rewritten": True}, lambda console: console.print(done, soft_wrap=True))


def _tell(progress: Progress) -> None:
    TALK.print(progress.phase.value)


def _print_plan(console: Console, planned: RewritePlan, wording: Wording) -> None:
    if planned.is_there:
        console.print(f"{wording.is_there(planned)}: nothing to do")
        return
    if planned.groups and planned.batch is not None:
        title = f"{tables.when(planned.batch)}, to {wording.title(planned)}"
        table = tables.table(title, "operator", "store", "partitions now", "after", "bytes read")
        for group in planned.groups[: tables.ROWS]:
            tables.add(
                table, group.operator, group.name, len(group.sources), len(group.targets), f"{group.read_bytes:,}"
            )
        tables.show(console, table)
        for line in _lines(planned, wording):
            console.print(tables.plain(line), soft_wrap=True)
    for refusal in planned.refusals:
        console.print(Text.assemble(("blocked: ", "red"), refusal), soft_wrap=True)
    if not planned.refusals:
        console.print("to execute: --apply --confirm-stopped")


def _lines(planned: RewritePlan, wording: Wording) -> list[str]:
    assert planned.batch is not None
    lines = [
        f"reads {planned.read_bytes:,} bytes and writes about as many; it needs about {planned.seconds:,.0f} s and at most "
        f"{planned.local_bytes:,} bytes of local disk",
        _commit(planned.batch, planned.origin),
        *file_sink_lines(planned),
        wording.after(planned),
    ]
    if planned.half_done is not None:
        lines.insert(0, f"a {wording.noun} is incomplete: --apply finishes it, --abort reverses it")
    return lines


def _commit(batch: int, origin: Origin) -> str:
    if origin is Origin.OWN:
        return f"rewrites the newest commit, of batch {batch}, and the binding of the root: it appends no batch"
    return f"appends batch {batch + 1}, which has no rows: a sink never receives this batch"
