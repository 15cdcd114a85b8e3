"""The common part of `statekeeper rescale` and `statekeeper convert`: options, prompts and displays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
from rich.console import Console

from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import Opened, Output, open_destination, output_option, pasteable, this_process
from statekeeper.statestore.cli.execution import (
    Command,
    Execution,
    blockers,
    execution_options,
    print_next_step,
    show_plan,
    store_progress,
    tell,
)
from statekeeper.statestore.cli.file_sink import file_sink_lines, file_sink_option
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.rewrites.engine import Goal, RewritePlan
from statekeeper.statestore.maintenance.verbs import Maintainer, as_json
from statekeeper.statestore.maintenance.verbs.rewrite import PreparedRewrite
from statekeeper.statestore.storage import Storage, open_storage


@dataclass(frozen=True, kw_only=True)
class Wording:
    """The texts in which the commands differ.

    noun     the rewrite, after "a"
    is_there that the goal is reached already
    done     that the rewrite is complete, and how to start the query
    title    the end of the title of the plan
    after    the lines of the plan about the time afterwards
    """

    noun: str
    is_there: Callable[[RewritePlan], str]
    done: Callable[[RewritePlan], str]
    title: Callable[[RewritePlan], str]
    after: Callable[[RewritePlan], list[str]]


def rewrite_options(noun: str) -> Callable[[Command], Command]:
    """Add the options `file_sink`, `execution` and `output` to a command."""

    def add(command: Command) -> Command:
        execution = execution_options(
            apply=f"Execute the plan, or finish an interrupted {noun}.",
            abort=f"Roll back an interrupted {noun}. Runs immediately, without --apply.",
            stopped="Required for --apply and --abort.",
        )
        return file_sink_option(execution(output_option(command)))

    return add


def run_rewrite(
    ctx: click.Context,
    root: Opened,
    goal: Goal | None,
    kind: RewriteKind,
    wording: Wording,
    *,
    file_sink: str | None,
    execution: Execution,
    output: Output,
) -> None:
    """Show the plan for a goal, execute it, or reverse an interrupted rewrite if there is no goal."""
    storage, policies, by = root.storage, root.policies, this_process()
    run = by.ids.fresh()

    def open_sink(url: str) -> Storage:
        return open_destination(ctx, url).storage

    if goal is None:
        begun = verbs.rewrite.abort(
            storage, policies, kind, by, tell, run=run, stopped=execution.stopped, open_sink=open_sink
        )
        was = f"reversed: the checkpoint is as it was after batch {begun.batch}"
        output.show({"aborted": begun.number}, lambda console: console.print(was))
        return
    prepared = prepared_for(root, goal, by, run=run, execution=execution, file_sink=file_sink, open_sink=open_sink)
    planned = prepared.plan
    record = as_json.of_rewrite_plan(planned)
    if not execution.apply or not prepared.may_start:
        blocked = blockers(prepared)
        show_plan(output, record, lambda console: _print_plan(console, planned, wording, blocked), blocked)
    done = tables.plain(wording.done(planned))
    output.show({**record, "rewritten": True}, lambda console: console.print(done, soft_wrap=True))


def prepared_for(
    root: Opened,
    goal: Goal,
    by: Maintainer,
    *,
    run: str,
    execution: Execution,
    file_sink: str | None = None,
    open_sink: Callable[[str], Storage] = open_storage,
) -> PreparedRewrite:
    """Plan the rewrite for a goal; with --apply, execute the plan. Raises as `verbs.rewrite.plan` and `execute`."""
    prepared = verbs.rewrite.plan(
        root.storage,
        root.policies,
        goal,
        execution.spark,
        scratch=execution.scratch,
        file_sink=file_sink,
        open_sink=open_sink,
        clock=by.clock,
    )
    if not execution.apply:
        return prepared
    with store_progress() as progress:
        return verbs.rewrite.execute(
            root.storage, prepared, by, progress, run=run, stopped=execution.stopped, **execution.limits
        )


def _print_plan(console: Console, planned: RewritePlan, wording: Wording, blocked: Sequence[str]) -> None:
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
            console.print(tables.plain(pasteable(line)), soft_wrap=True)
    print_next_step(console, blocked)


def _lines(planned: RewritePlan, wording: Wording) -> list[str]:
    assert planned.batch is not None
    lines = [
        f"reads {planned.read_bytes:,} bytes and writes about as many; it needs about {planned.seconds:,.0f} s and at most "
        f"{planned.local_bytes:,} bytes of local disk",
        _commit(planned.batch, planned.origin),
        *file_sink_lines(planned),
        *wording.after(planned),
    ]
    if planned.half_done is not None:
        lines.insert(0, f"a {wording.noun} is incomplete: --apply finishes it, --abort reverses it")
    return lines


def _commit(batch: int, origin: Origin) -> str:
    if origin is Origin.OWN:
        return f"rewrites the newest commit, of batch {batch}, and the binding of the root: it appends no batch"
    return f"appends batch {batch + 1}, which has no rows: a sink never receives this batch"
