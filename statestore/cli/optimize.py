"""`statekeeper optimize`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.cli.common import (
    FINDINGS,
    Opened,
    Output,
    complete_root,
    error_object,
    mode_option,
    output_option,
    progress_bar,
    root_argument,
    run_of,
    say,
    scratch_option,
    stopped_option,
)
from statekeeper.statestore.cli.reports import show
from statekeeper.statestore.cli.roots import worst
from statekeeper.statestore.cli.verb_options import verb_options
from statekeeper.statestore.maintenance.upkeep.sink_tables import Merged, Removed
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.optimize import Optimize


@click.command()
@root_argument
@click.argument("destination", metavar="[TABLE]", required=False, shell_complete=complete_root)
@click.option("--apply", is_flag=True, help="Merge and delete the files of the plan.")
@verb_options(Optimize)
@mode_option("--apply requires full.")
@stopped_option(
    "Used only to merge small files that a query writes with MERGE, or through Spark on S3 or on a local disk."
)
@scratch_option
@output_option
def optimize(
    root: Opened,
    destination: str | None,
    apply: bool,
    mode: str | None,
    stopped: bool,
    scratch: Path,
    output: Output,
    **given: Any,
) -> None:
    """Show which small files of a sink table can be merged, and which files no version needs; with --apply, do both.

    A sink table is the Delta table that the query writes. The query may be running. A merge is one commit of the table
    that changes no row, so streaming readers of the table skip it. If another commit is first, the merge is committed
    after it; the query never waits and never fails.

    optimize deletes a file only if no version of the table needs it that a rewind restores or a reader may read. A rewind
    may go to each retained batch of ROOT. Small files that were merged stay until then, too.

    TABLE is a URL, a path, or the name of a sink of ROOT in statekeeper.toml. Default: all sinks that statekeeper.toml
    gives ROOT.
    """
    run = run_of(root, mode=mode, stopped=stopped, scratch=scratch)
    context = click.get_current_context()
    given = {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    if destination is not None:
        sys.exit(_optimized(_verb(root, destination, given), run, output, apply=apply))
    if not root.sinks:
        raise click.UsageError("TABLE is missing, and statekeeper.toml has no sinks for this root")
    codes, shown = [], list[dict[str, Any]]()
    for sink in root.sinks:
        if not output.as_json:
            click.echo(f"== {sink.name}")
        try:
            codes.append(_optimized(_verb(root, sink.name, given), run, Output(output.as_json, shown), apply=apply))
        except StatekeeperError as error:
            # The other tables do not depend on it.
            say(error)
            shown.append({"table": sink.url, "error": error_object(error)})
            codes.append(error.exit_code)
        run = replace(run, id=run.by.ids.fresh())
    if output.as_json:
        output.show({"tables": shown}, lambda console: None)
    sys.exit(worst(codes))


def _verb(root: Opened, destination: str, given: Mapping[str, Any]) -> Optimize:
    """The verb for a location, or for a sink that statekeeper.toml names. Options of the command win."""
    sink = next((one for one in root.sinks if one.name == destination), None)
    if sink is None:
        return Optimize(destination=destination, **given)
    return Optimize(destination=sink.url, **{**sink.options, **given})


def _optimized(verb: Optimize, run: Run, output: Output, *, apply: bool) -> int:
    """Optimize one table, or show the plan. Return the exit code."""
    prepared = prepare(verb, run)
    planned = prepared.plan.plan
    code = FINDINGS if planned.findings or prepared.own else 0
    if not apply:
        show(output, prepared, "--apply")
        return code
    with progress_bar() as bar:
        files = bar.add_task("files", total=planned.merged_files + len(planned.deletions))

        def told(step: Merged | Removed) -> None:
            bar.advance(files, step.files)

        performed = perform(prepared, told)
    show(output, performed)
    return FINDINGS if performed.made is not None and performed.made.conflicts else code
