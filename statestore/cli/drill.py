"""`statekeeper drill`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.cli.common import (
    FAILED,
    FINDINGS,
    PARTLY_DONE,
    Opened,
    Output,
    executor_option,
    memory_option,
    mode_option,
    output_option,
    progress_bar,
    root_argument,
    run_of,
    runs_on_spark,
    say,
    scratch_option,
    stopped_option,
)
from statekeeper.statestore.cli.reports import show, show_plan
from statekeeper.statestore.cli.verb_options import verb_options
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.upkeep.drill import Found, sparks
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.drill import Drill, Ended
from statekeeper.statestore.maintenance.verbs.start_drill import StartDrill


@click.command()
@root_argument
@verb_options(Drill, StartDrill)
@stopped_option(
    "Restore also the two newest batches of a native query in structure V1, which a running query may replace."
)
@click.option("--dry-run", is_flag=True, help="Show the sample and restore nothing.")
@mode_option("Results are recorded only in snapshots or full.")
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS),
    default=1,
    show_default=True,
    help="Number of stores to restore at the same time. With more than one, the measured times are longer, "
    "and predictions do not use them.",
)
@scratch_option
@executor_option
@memory_option
@output_option
def drill(
    root: Opened,
    stopped: bool,
    dry_run: bool,
    mode: str | None,
    workers: int,
    scratch: Path,
    memory_bytes: int,
    output: Output,
    command: str | None,
    place: str | None,
    most_seconds: float,
    **given: Any,
) -> None:
    """Restore a sample of stores into scratch folders, time it, and compare the rows.

    drill loads each store of the sample at its newest batch, as a restart does. It then compares the rows with those of a
    load that does not use the newest snapshot, and with those of the last drill. So it finds a wrong row in a file whose
    checksum is right. The report shows the predicted and the measured seconds, and later predictions use the measured ones.
    A store whose rows could not be compared is reported as such, and never as verified.

    The query may be running. drill does not change its state, so it runs immediately, without --apply. It records the
    results below _statekeeper/, unless the mode of ROOT is observe. ROOT can be a mirror: then the drill proves that the
    mirror restores.

    A worker needs space in --scratch for two loads of a store, each with its changelogs. Exit code 3: a store does not
    restore, or its rows differ. 4: a store was not compared, or not examined.
    """
    if command is None and given["against_spark"] and runs_on_spark():
        raise sparks.on_cluster()  # before this command starts Spark
    # A start of the query has no tasks for a cluster.
    how: dict[str, Any] = {"scratch": scratch, "workers": workers, "memory_bytes": memory_bytes}
    run = run_of(root, mode=mode, stopped=stopped, only_plans=dry_run or command is not None, **how)
    if command is not None:
        if chosen := [name for name, value in given.items() if value]:
            raise click.UsageError(f"--start restores no single stores: leave out --{chosen[0].replace('_', '-')}")
        _start(StartDrill(command=command, place=place, most_seconds=most_seconds), run, output, dry_run=dry_run)
    prepared = prepare(Drill(**given), run)
    if dry_run:
        show_plan(output, prepared)
        sys.exit(FINDINGS if prepared.refusals else 0)
    with progress_bar() as bar:
        bar_of_stores = bar.add_task("stores", total=len(prepared.plan.plan.drill))
        ended: set[StorePath] = set()

        def told(one: Ended) -> None:
            action, outcome = one
            if isinstance(outcome, StatekeeperError):
                say(outcome, of=action.store)
            ended.add(action.store)  # the comparison with Spark tells a store again
            bar.update(bar_of_stores, completed=len(ended))

        prepared = perform(prepared, told)
    show(output, prepared)
    sys.exit(_exit_code(prepared.made))


def _start(verb: StartDrill, run: Run, output: Output, *, dry_run: bool) -> NoReturn:
    prepared = prepare(verb, run)
    if dry_run:
        show_plan(output, prepared)
        sys.exit(FINDINGS if prepared.refusals else 0)
    prepared = perform(prepared)
    show(output, prepared)
    sys.exit(0 if prepared.made is not None and prepared.made.is_green else FINDINGS)


def _exit_code(made: Found | None) -> int:
    if made is None or made.is_green:
        return 0
    if made.findings:
        return FINDINGS
    return PARTLY_DONE if made.drilled else FAILED
