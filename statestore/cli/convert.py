"""`statekeeper convert`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

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
    output_option,
    progress_bar,
    root_argument,
    scratch_option,
    stopped_option,
    this_process,
    workers_option,
)
from statestore.format.provider import Provider
from statestore.format.sparks import Spark
from statestore.format.structure import Structure
from statestore.maintenance import passes, records
from statestore.maintenance.rewrites import Convert, RewritePlan
from statestore.maintenance.switchover import Progress, SwitchPhase
from statestore.switch_journal import RewriteKind

_PROVIDERS = {provider.option: provider for provider in Provider}


@click.command(short_help="Move between Spark's state store providers.")
@root_argument
@click.option(
    "--to",
    type=click.Choice(list(_PROVIDERS)),
    callback=lambda _, __, value: None if value is None else _PROVIDERS[value],
    help="Provider afterwards: rocksdb, or hdfs, Spark's default provider that keeps the state in memory.",
)
@click.option(
    "--structure",
    type=click.Choice([structure.value for structure in Structure]),
    default=Structure.V1.value,
    show_default=True,
    callback=lambda _, __, value: Structure(value),
    help="Structure of the checkpoint afterwards. hdfs supports only v1.",
)
@click.option("--apply", is_flag=True, help="Execute the plan, or finish an interrupted conversion.")
@click.option("--abort", is_flag=True, help="Reverse an interrupted conversion. It needs no --apply.")
@for_spark_of_checkpoint_option
@stopped_option("Required for --apply and --abort.")
@scratch_option
@workers_option
@memory_option
@output_option
def convert(
    root: Opened,
    to: Provider | None,
    structure: Structure,
    apply: bool,
    abort: bool,
    spark: Spark | None,
    stopped: bool,
    scratch: Path,
    workers: int,
    memory_bytes: int,
    output: Output,
) -> None:
    """Show the plan for another state store provider; with --apply, execute it.

    Stop the query first. convert encodes each row of the state for the other provider and keeps its partition. It writes
    one snapshot for each store, reads it back and compares all rows. Then it appends one batch without rows to the offset
    log and the commit log. The query continues after this batch with the other provider. The offset log names the provider,
    and Spark ignores the setting of the session.

    The files of the former provider remain until gc deletes them. hdfs supports no operators with column families, such as
    transformWithState.
    """
    storage, policies, by = root.storage, root.policies, this_process()
    run = by.ids.fresh()
    if abort == (to is not None) or (abort and apply):
        raise click.UsageError("give --to rocksdb or --to hdfs (with or without --apply), or --abort")
    if to is None:
        begun = passes.rewrite.abort(storage, policies, RewriteKind.CONVERT, by, _tell, run=run, stopped=stopped)
        was = f"reversed: the checkpoint is as it was after batch {begun.batch}"
        output.show({"aborted": begun.number}, lambda console: console.print(was))
        return
    prepared = passes.rewrite.plan(storage, policies, Convert(to, structure), spark, scratch=scratch)
    if not apply:
        _show(output, prepared.plan)
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
            stopped=stopped,
            scratch=scratch,
            workers=workers,
            memory_bytes=memory_bytes,
        )
    planned = prepared.plan
    if not prepared.may_start:
        _show(output, planned)
    done = f"converted to {to.value}; {_start_with(planned)}"
    record = {**records.of_rewrite_plan(planned), "converted": True}
    output.show(record, lambda console: console.print(tables.plain(done), soft_wrap=True))


def _start_with(planned: RewritePlan) -> str:
    if planned.provider is Provider.HDFS_BACKED:
        return "start the query as before"
    settings = " ".join(f"{name}={value}" for name, value in planned.structure.conf.items())
    return f"start the query with {settings}"


def _tell(progress: Progress) -> None:
    TALK.print(progress.phase.value)


def _show(output: Output, planned: RewritePlan) -> NoReturn:
    output.show(records.of_rewrite_plan(planned), lambda console: _print_plan(console, planned))
    sys.exit(FINDINGS if planned.refusals else 0)


def _print_plan(console: Console, planned: RewritePlan) -> None:
    if planned.is_there:
        console.print(f"the checkpoint already has {planned.provider.value} in structure {planned.structure.value}")
        return
    if planned.groups and planned.batch is not None:
        title = f"{tables.when(planned.batch)}, to {planned.provider.value} in structure {planned.structure.value}"
        table = tables.table(title, "operator", "store", "partitions", "bytes read")
        for group in planned.groups[: tables.ROWS]:
            tables.add(table, group.operator, group.name, len(group.sources), f"{group.read_bytes:,}")
        tables.show(console, table)
        for line in _lines(planned):
            console.print(tables.plain(line), soft_wrap=True)
    for refusal in planned.refusals:
        console.print(Text.assemble(("blocked: ", "red"), refusal), soft_wrap=True)
    if not planned.refusals:
        console.print("to execute: --apply --confirm-stopped")


def _lines(planned: RewritePlan) -> list[str]:
    assert planned.batch is not None
    lines = [
        f"reads {planned.read_bytes:,} bytes and writes about as many; it needs about {planned.seconds:,.0f} s and at most "
        f"{planned.local_bytes:,} bytes of local disk",
        f"appends batch {planned.batch + 1}, which has no rows: a sink never receives this batch",
        f"afterwards, {_start_with(planned)}",
    ]
    if planned.half_done is not None:
        lines.insert(0, "a conversion is incomplete: --apply finishes it, --abort reverses it")
    return lines
