"""`statekeeper maintain`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import click
from platformdirs import user_state_path
from rich.console import Console

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.messages import CONFIGURATION_FILE, counted
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FAILED,
    FINDINGS,
    TALK,
    Duration,
    Output,
    complete_root,
    configuration_of,
    kept_tables_option,
    memory_option,
    output_option,
    result_has_begun,
    scratch_option,
    storage_options,
    this_process,
    with_options_of_command,
    workers_option,
)
from statekeeper.statestore.cli.reports import to_execute
from statekeeper.statestore.maintenance.rounds import metrics
from statekeeper.statestore.maintenance.rounds.delivery import Silent, deliver
from statekeeper.statestore.maintenance.rounds.memory import Memory
from statekeeper.statestore.maintenance.rounds.notices import Notice
from statekeeper.statestore.maintenance.rounds.rounds import SWEEP_SECONDS, Round, Rounds
from statekeeper.statestore.maintenance.rounds.visit import Status, Visit
from statekeeper.statestore.maintenance.verbs.config import Configuration, Mode, Root, fleet_name, people_of
from statekeeper.statestore.maintenance.verbs.config_check import ConfigFinding, unset_channels
from statekeeper.statestore.maintenance.verbs.contract import Run
from statekeeper.statestore.storage import open_storage

_MOST_PROBLEMS = 50
_LEAST_WATCH_SECONDS = 1.0


class _Terminated(KeyboardInterrupt):
    """SIGTERM, with which systemd and Kubernetes stop a process."""


def _address(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65_536:
        raise click.BadParameter(f"{value!r} is not HOST:PORT, for example 127.0.0.1:9464")
    return host, int(port)


@click.command()
@click.argument("roots", metavar="ROOT...", nargs=-1, shell_complete=complete_root)
@storage_options
@click.option("--all", "all_roots", is_flag=True, help="Maintain all checkpoints that statekeeper.toml configures.")
@click.option(
    "--watch",
    type=Duration(),
    help="Stay, and make a pass at this interval, for example 60s. A pass maintains the checkpoints that are due. Only "
    "with --all.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Make one pass of --watch, for cron: maintain only the checkpoints that are due. Only with --all.",
)
@click.option(
    "--sweep",
    type=Duration(),
    default=f"{SWEEP_SECONDS / 3600:.0f}h",
    show_default=True,
    help="With --watch or --once, a checkpoint is due after this time, also without new batches.",
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File on local disk that records the last maintenance and the last message of each checkpoint. Default: a file "
    "for each configuration in the user's folder for state. Only --watch and --once use it.",
)
@click.option(
    "--metrics",
    "metrics_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that is replaced after each pass, for the textfile collector of Prometheus' node exporter. Its name ends in "
    ".prom.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve the metrics for Prometheus at http://HOST:PORT/metrics. Only with --watch.",
)
@click.option("--fleet", help="Name of the fleet in messages and metrics. Default: the name of the configuration file.")
@click.option("--dry-run", is_flag=True, help="Write nothing below the checkpoints: show the audits and plans only.")
@scratch_option
@workers_option
@memory_option
@kept_tables_option
@output_option
def maintain(
    roots: tuple[str, ...],
    all_roots: bool,
    watch: float | None,
    once: bool,
    sweep: float,
    state: Path | None,
    metrics_file: Path | None,
    listen: tuple[str, int] | None,
    fleet: str | None,
    dry_run: bool,
    scratch: Path,
    workers: int,
    memory_bytes: int,
    kept_bytes: int,
    output: Output,
) -> None:
    """Maintain checkpoints: take snapshots of long tails, audit, and delete the files that no retained version needs.

    maintain runs immediately. The mode and the policies of each checkpoint in statekeeper.toml limit what it changes. The
    query of a checkpoint may be running. While the audit of a checkpoint reports an error, nothing is deleted there; the
    other checkpoints are maintained.

    maintain --all --watch 60s is a process that stays, for systemd or for a pod. A checkpoint is due if it is new, if it
    has enough new batches, if its last maintenance failed or found an error, or after --sweep. When the status of a
    checkpoint changes between OK, WARN and ERROR, its team gets one message, and one reminder each day until it is OK: see
    [teams] in statekeeper.toml. SIGTERM ends the process when the maintenance in progress is complete.

    Exit code 3: the status of a checkpoint is WARN or ERROR. Exit code 1: a checkpoint cannot be read, or its maintenance
    failed.
    """
    if all_roots == bool(roots):
        raise click.UsageError("give one or more ROOTs, or --all")
    if (watch is not None or once) and not all_roots:
        raise click.UsageError("--watch and --once need --all")
    if watch is not None and once:
        raise click.UsageError("give either --watch or --once")
    if watch is not None and watch < _LEAST_WATCH_SECONDS:
        raise click.UsageError(f"--watch needs an interval of at least {_LEAST_WATCH_SECONDS:.0f}s, for example 60s")
    if listen is not None and watch is None:
        raise click.UsageError("--listen needs --watch")
    ctx = click.get_current_context()
    keeps = watch is not None or once
    name = fleet or fleet_name(_configuration_file(ctx))
    process, command = this_process(), _before_the_verb(ctx)

    warned: set[ConfigFinding] = set()

    def warn_of_channels(configuration: Configuration) -> None:
        for one in unset_channels(configuration, os.environ) if keeps else ():
            if one not in warned:
                warned.add(one)
                now = utc(process.clock.now_seconds())
                TALK.print(tables.plain(printable(f"{now} warning: {one.subject}: {one.problem}")), soft_wrap=True)

    def configured() -> Configuration:
        found = configuration_of(ctx)
        warn_of_channels(found)
        chosen = [found.find(root) for root in roots]
        given = found if all_roots else replace(found, roots={one.name: one for one in chosen}, parents={}, broken={})
        return with_options_of_command(ctx, given)

    def run_of(root: Root, share: int) -> Run:
        policies = replace(root.policies, mode=Mode.OBSERVE) if dry_run else root.policies
        return Run(
            storage=open_storage(root.spec, is_hurried=False),
            policies=policies,
            by=process,
            scratch=scratch,
            workers=share,
            memory_bytes=memory_bytes * share // workers,
            kept_bytes=kept_bytes,
        )

    silent = Silent()

    def tell(notice: Notice, configuration: Configuration) -> Notice | None:
        if not keeps:
            return None
        TALK.print(tables.plain(f"{utc(notice.at_seconds)} {notice}"), soft_wrap=True)
        problems, left = deliver(notice, configuration.channels_of(notice.team), fleet=name, silent=silent)
        for problem in problems:
            TALK.print(
                tables.plain(f"{utc(notice.at_seconds)} a notice of {notice.subject} was not sent: {problem}"),
                soft_wrap=True,
            )
        return left

    shown = _Shown(output, process.clock.now_seconds, lines=watch is not None)
    with Memory.opened((state or _state_file(ctx)) if keeps else None) as memory:
        registry = metrics.registry(name, memory, command) if metrics_file or listen else None
        rounds = Rounds(
            name,
            configured,
            run_of,
            memory,
            clock=process.clock,
            people=lambda: people_of(_configuration_file(ctx)),
            command=command,
            tell=tell,
            visited=shown.visited,
            sweep_seconds=sweep,
            workers=workers,
        )

        def write_metrics() -> None:
            if metrics_file is not None and registry is not None:
                metrics.write(metrics_file, registry)

        def look() -> Round:
            silent.clear()
            made = rounds.round(everything=not keeps)
            write_metrics()
            return made

        if watch is None:
            made = look()
            shown.end(made, is_plan=dry_run)
            sys.exit(_exit_code(made))
        if listen is not None and registry is not None:
            metrics.serve(*listen, registry)
        signal.signal(signal.SIGTERM, _terminate)
        result_has_begun()
        with suppress(_Terminated):
            while True:
                look()
                process.clock.sleep(watch)
        # The signal may have interrupted a round after its visits, or the replacement of the file.
        write_metrics()
        TALK.print("ended by SIGTERM: the maintenance in progress is complete")


def _terminate(number: int, frame: object) -> NoReturn:
    del number, frame
    raise _Terminated


class _Shown:
    """Shows visits: as a table at the end, or each with a line when it ends."""

    def __init__(self, output: Output, now: Callable[[], float], *, lines: bool) -> None:
        self._output, self._now, self._lines = output, now, lines

    def visited(self, one: Visit) -> None:
        if not self._lines:
            return
        if self._output.as_json:
            click.echo(json.dumps(_object(one)))
        else:
            click.echo(f"{utc(self._now())} {printable(_line(one))}")
        sys.stdout.flush()

    def end(self, made: Round, *, is_plan: bool) -> None:
        absent = {name: {"status": one.status.name, "problem": one.text} for name, one in made.absent.items()}
        visits = sorted(made.visits, key=lambda one: (-one.status, one.name))
        self._output.show(
            {"visits": list(map(_object, visits)), "absent": absent, "not_due": dict(made.not_due)},
            lambda console: _print(console, visits, made, is_plan=is_plan),
        )


def _object(one: Visit) -> dict[str, Any]:
    return {
        "root": one.name,
        "status": one.status.name,
        "problems": [{"status": problem.status.name, "text": problem.text} for problem in one.problems],
        "is_held": one.is_held,
        "is_left_to_spark": one.is_left_to_spark,
        "snapshots_taken": len(one.taken.taken),
        "snapshots_failed": len(one.taken.failed),
        "deleted_files": sum(step.files for step in one.deleted),
        "deleted_bytes": sum(step.size_bytes for step in one.deleted),
        "requests": one.requests.total,
        "seconds": round(one.seconds, 3),
        "figures": metrics.gauges_of(one),
    }


def _line(one: Visit) -> str:
    did = f"{counted(len(one.taken.taken), 'snapshot')}, {counted(sum(step.files for step in one.deleted), 'file')} deleted"
    did = "Spark maintains it, only audited" if one.is_left_to_spark else did
    held = "; another maintainer holds the lease" if one.is_held else ""
    problem = f"; {one.problems[0].text}" if one.problems else ""
    return f"{one.name}: {one.status.name}: {did}, {one.requests.total:,} requests, {one.seconds:,.1f} s{held}{problem}"


def _print(console: Console, visits: list[Visit], made: Round, *, is_plan: bool) -> None:
    columns = ("root", "status", "batch", "tail", "snapshots", "deleted", "requests", "s")
    table = tables.table(f"{counted(len(visits), 'checkpoint')} maintained", *columns)
    for one in visits:
        found = metrics.gauges_of(one)
        taken, deleted = str(len(one.taken.taken)), str(sum(step.files for step in one.deleted))
        if one.is_left_to_spark:
            taken = deleted = "by Spark"
        version = found.get("version")
        batch = "" if not version else version - 1
        cells = (batch, found.get("tail_changelogs", ""), taken, deleted, one.requests.total)
        tables.add(table, one.name, one.status.name, *cells, f"{one.seconds:.1f}")
    if visits:
        tables.show(console, table)
    problems = [(one.name, problem) for one in visits for problem in one.problems]
    problems += list(made.absent.items())
    for name, problem in problems[:_MOST_PROBLEMS]:
        console.print(tables.plain(f"{problem.status.name}: {name}: {problem.text}"), soft_wrap=True)
    for one in visits:
        if one.is_held:
            console.print(tables.plain(f"{one.name}: another maintainer holds the lease"), soft_wrap=True)
    if made.not_due:
        console.print(f"{counted(len(made.not_due), 'checkpoint')} not due")
    if is_plan and visits:
        console.print(tables.plain(to_execute()), soft_wrap=True)


def _exit_code(made: Round) -> int:
    failed = any(one.errors for one in made.visits) or any(one.status is Status.ERROR for one in made.absent.values())
    return FAILED if failed else FINDINGS if made.status is not Status.OK else 0


def _configuration_file(ctx: click.Context) -> Path:
    chosen: Path | None = ctx.find_root().params.get("config")
    return (chosen or Path(CONFIGURATION_FILE)).resolve()


def _state_file(ctx: click.Context) -> Path:
    file = _configuration_file(ctx)
    of_path = sha256(str(file).encode()).hexdigest()[:8]
    return user_state_path("statekeeper") / f"{fleet_name(file)}-{of_path}.json"


def _before_the_verb(ctx: click.Context) -> tuple[str, ...]:
    """The options before the verb of a command that people may paste in another folder."""
    is_given = ctx.find_root().params.get("config") is not None
    file = _configuration_file(ctx)
    return ("--config", str(file)) if is_given or file.exists() else ()
