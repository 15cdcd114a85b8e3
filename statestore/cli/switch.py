"""`statekeeper switch`."""

from __future__ import annotations

import sys
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
    for_spark_option,
    holder,
    output_option,
    progress_bar,
    root_argument,
    scratch_option,
    stopped_option,
)
from statestore.clock import RandomIds, SystemClock
from statestore.errors import RefusedAsUnsafe
from statestore.format.sparks import Spark
from statestore.format.structure import Structure
from statestore.maintenance import records, runs, switchover
from statestore.maintenance.audit import AuditPolicy
from statestore.maintenance.config import Mode
from statestore.maintenance.pool import WORKERS
from statestore.maintenance.quiet import require_stopped
from statestore.maintenance.snapshot import MEMORY_BYTES
from statestore.maintenance.switchover import Machine, Phase, Progress, SwitchPlan

_MIB = 1024 * 1024


@click.command()
@root_argument
@click.option(
    "--to",
    type=click.Choice([structure.value for structure in Structure]),
    callback=lambda _, __, value: None if value is None else Structure(value),
    help="The structure that it is to have.",
)
@click.option("--apply", is_flag=True, help="Do what the plan says, or finish what an interrupted run began.")
@click.option("--abort", is_flag=True, help="Make the checkpoint what it was before the interrupted run.")
@for_spark_option
@stopped_option
@scratch_option
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=WORKERS,
    show_default="the number of cores",
    help="So many stores at a time.",
)
@click.option(
    "--memory",
    "memory_mib",
    type=click.IntRange(320),
    default=MEMORY_BYTES // _MIB,
    show_default=True,
    help="MiB of memory to work in, for all workers together.",
)
@output_option
def switch(
    root: Opened,
    to: Structure | None,
    apply: bool,
    abort: bool,
    spark: Spark | None,
    stopped: bool,
    scratch: Path,
    workers: int,
    memory_mib: int,
    output: Output,
) -> None:
    """Show how a checkpoint gets from structure V1 to V2, or back; with --apply, do it.

    The query is stopped for it. Every store gets a full snapshot at its head under its name in the other structure, which
    is read back and compared; then the newest commit is written anew, and the query goes on from there. A run that was
    interrupted is finished by --apply and taken back by --abort.
    """
    storage, clock = root.storage, SystemClock()
    if abort == (to is not None):
        raise click.UsageError("say --to v2 or --to v1, or --abort")
    if abort:
        _abort(root, stopped, output)
        return
    assert to is not None
    policy = AuditPolicy(retained_versions=root.policies.retention.versions)
    gathered = switchover.gather(storage, scratch=scratch, policy=policy)
    planned = switchover.plan(gathered, to, spark, workers=workers)
    if not apply or planned.refusals or planned.is_there:
        output.show(records.of_switch_plan(planned), lambda console: _print_plan(console, planned))
        sys.exit(FINDINGS if planned.refusals else 0)
    _require_allowed(root)
    # Own jobs refuse to start on what is half done, and leave no file as long as they idle.
    require_stopped(storage, said=stopped or gathered.is_own, clock=clock)
    gathered = switchover.gather(storage, scratch=scratch, policy=policy)
    planned = switchover.plan(gathered, to, spark, workers=workers)
    if planned.refusals or planned.is_there:
        output.show(records.of_switch_plan(planned), lambda console: _print_plan(console, planned))
        sys.exit(FINDINGS if planned.refusals else 0)
    machine = Machine(scratch, clock, RandomIds(), workers, memory_mib * _MIB)
    with progress_bar() as bar:
        task = bar.add_task("stores", total=len(planned.stores))

        def told(progress: Progress) -> None:
            if progress.phase is Phase.SNAPSHOTS:
                bar.update(task, completed=progress.done, total=progress.of)
            else:
                TALK.print(progress.phase.value)

        runs.switch(storage, planned, told, run=RandomIds().fresh(), holder=holder(), machine=machine, policy=policy)
    conf = _conf(planned)
    output.show(
        {**records.of_switch_plan(planned), "switched": True},
        lambda console: console.print(
            tables.plain(f"switched to {to.value}; start the query with {conf}"), soft_wrap=True
        ),
    )


def _abort(root: Opened, stopped: bool, output: Output) -> None:
    storage, clock = root.storage, SystemClock()
    standing = switchover.standing(storage)
    if standing is None:
        raise RefusedAsUnsafe(
            "no switchover is half done", path=storage.url, hint="one that has ended is led back by --to"
        )
    _require_allowed(root)
    require_stopped(storage, said=stopped, clock=clock)
    runs.abort_switch(
        storage,
        standing,
        lambda progress: TALK.print(progress.phase.value),
        run=RandomIds().fresh(),
        holder=holder(),
        clock=clock,
    )
    was = standing.begun.to.other.value
    output.show(
        {"aborted": standing.begun.number}, lambda console: console.print(f"the checkpoint is of {was} as before")
    )


def _require_allowed(root: Opened) -> None:
    if root.policies.mode not in (None, Mode.FULL):
        raise RefusedAsUnsafe(
            f"mode {root.policies.mode.value} is configured: nothing may be changed",
            path=root.storage.url,
            hint='set mode = "full" for it in statekeeper.toml',
        )


def _print_plan(console: Console, planned: SwitchPlan) -> None:
    if planned.is_there:
        console.print(f"the checkpoint is of structure {planned.to.value}: nothing is to be done")
        return
    if planned.stores:
        title = f"{tables.when(planned.batch)}, to {planned.to.value}: {len(planned.stores):,} stores"
        table = tables.table(title, "store", "head", "snapshot from", "read", "written")
        for step in planned.stores[: tables.ROWS]:
            tables.add(table, step.store, step.head, step.explained, f"{step.read_bytes:,}", f"{step.write_bytes:,}")
        if len(planned.stores) > tables.ROWS:
            table.caption = f"the first {tables.ROWS}"
        console.print(table)
    lines = [
        f"reads {planned.read_bytes:,} bytes, writes about {planned.write_bytes:,}; replays take some "
        f"{planned.seconds:,.0f} s; up to {planned.local_bytes:,} bytes of local disk",
        f"{len(planned.first) + len(planned.last):,} files are put aside; {planned.stays_files:,} files of the old "
        f"structure, {planned.stays_bytes:,} bytes, stay for the way back",
        f"afterwards the query is started with {_conf(planned)}",
    ]
    if planned.half_done is not None:
        lines.insert(0, "a switchover is half done: --apply finishes it, --abort takes it back")
    for line in lines:
        console.print(tables.plain(line), soft_wrap=True)
    for refusal in planned.refusals:
        console.print(Text.assemble(("not now: ", "red"), refusal), soft_wrap=True)
    if not planned.refusals:
        console.print("--apply --i-stopped-it does it")


def _conf(planned: SwitchPlan) -> str:
    return " ".join(f"{name}={value}" for name, value in planned.to.conf.items())
