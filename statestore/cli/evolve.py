"""`statekeeper evolve`."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import Opened, Output, output_option, root_argument, this_process
from statekeeper.statestore.cli.execution import (
    Execution,
    blockers,
    execution_options,
    print_next_step,
    show_plan,
    tell,
)
from statekeeper.statestore.cli.rewrites import prepared_for
from statekeeper.statestore.cli.rows import cell
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.rewrites import engine
from statekeeper.statestore.maintenance.rewrites.engine import EvolutionPreview, RewritePlan
from statekeeper.statestore.maintenance.rewrites.evolution import read_schema_file
from statekeeper.statestore.maintenance.verbs import as_json

_CELLS = ("key", "before", "after")


@click.command()
@root_argument
@click.option("--schema", metavar="FILE", help="The changes of value columns by store: a TOML or JSON file.")
@click.option(
    "--undo",
    metavar="RUN",
    help="Reverse a completed schema evolution. RUN is the id that evolve --apply printed. Rejected if the job has "
    "committed a batch since. Runs immediately, without --apply.",
)
@execution_options(
    apply="Execute the plan, or finish an interrupted schema evolution.",
    abort="Reverse an interrupted schema evolution. Runs immediately, without --apply.",
    stopped="Required for --apply, --abort and --undo.",
)
@output_option
def evolve(root: Opened, schema: str | None, undo: str | None, execution: Execution, output: Output) -> None:
    """Change the value columns of a state root: show the rows before and after; with --apply, rewrite them.

    ROOT is the state root of a job on pipelines. Stop the job first. evolve replaces the newest version of each changed
    store by a new snapshot. It reads the snapshot back and compares its rows with those of the plan. Then start the job
    with an operator that declares the new columns.

    FILE has one TOML table, [stores.NAME], for each changed store. The only store of an operator has the name default:

    \b
      [stores.default]
      drop = ["note"]
      rename = { total = "amount" }
      widen = { count = "long" }
      [stores.default.add.currency]
      type = "string"
      nullable = false
      default = "EUR"

    Added columns come last, in the order of the file. A column is widened only to a type that holds all its values. Key
    columns cannot change.
    """
    actions = execution.abort + (undo is not None) + (schema is not None)
    if actions != 1 or (execution.apply and schema is None):
        raise click.UsageError("give --schema FILE (with or without --apply); or --abort; or --undo RUN")
    if schema is None:
        _reverse(root, undo, output, stopped=execution.stopped)
        return
    storage, by = root.storage, this_process()
    run = by.ids.fresh()
    goal = read_schema_file(schema)
    prepared = prepared_for(root, goal, by, run=run, execution=execution)
    planned = prepared.plan
    record = as_json.of_rewrite_plan(planned)
    if not execution.apply or not prepared.may_start:
        blocked = blockers(prepared)
        shown = engine.preview(
            storage, planned, scratch=execution.scratch, clock=by.clock, ids=by.ids, workers=execution.workers
        )
        if shown is not None:
            record = {**record, **as_json.of_preview(shown)}
        show_plan(output, record, lambda console: _print_plan(console, planned, shown, blocked), blocked)
    run = run if planned.half_done is None else planned.half_done.begun.run
    output.show(
        {**record, "rewritten": True, "run": run}, lambda console: _print_done(console, planned, root.storage.url, run)
    )


def _reverse(root: Opened, undo: str | None, output: Output, *, stopped: bool) -> None:
    storage, policies, by = root.storage, root.policies, this_process()
    run, kind = by.ids.fresh(), RewriteKind.EVOLVE
    if undo is None:
        begun = verbs.rewrite.abort(storage, policies, kind, by, tell, run=run, stopped=stopped)
        result = {"aborted": begun.number}
    else:
        begun = verbs.rewrite.undo(storage, policies, kind, undo, by, tell, run=run, stopped=stopped)
        result = {"undone": begun.number}
    was = f"reversed: the state and its columns are as they were after batch {begun.batch}"
    output.show(result, lambda console: console.print(was))


def _print_plan(console: Console, planned: RewritePlan, shown: EvolutionPreview | None, blocked: Sequence[str]) -> None:
    if planned.groups and planned.batch is not None:
        table = tables.table(tables.when(planned.batch), "store", "partitions", "rows", "bytes read")
        for name, group in zip(planned.schemas, planned.groups, strict=True):
            rows = "-" if shown is None else f"{sum(shown.rows[store] for store in group.targets):,}"
            tables.add(table, name, len(group.targets), rows, f"{group.read_bytes:,}")
        tables.show(console, table)
    if shown is not None:
        table = tables.table(f"the first rows ({len(shown.first):,} of {shown.total:,})", "store", *_CELLS)
        for store, row in shown.first:
            record = as_json.of_difference(store, row)
            tables.add(table, str(store), *(cell(record[name]) for name in _CELLS))
        tables.show(console, table)
    for name, change in planned.schemas.items():
        console.print(tables.plain(f"store {name}, columns afterwards: {change.after_columns}"), soft_wrap=True)
    if not planned.refusals:
        for line in _lines(planned):
            console.print(tables.plain(line), soft_wrap=True)
    print_next_step(console, blocked)


def _lines(planned: RewritePlan) -> list[str]:
    lines = [
        f"reads {planned.read_bytes:,} bytes and writes about as many; it needs about {planned.seconds:,.0f} s and at "
        f"most {planned.local_bytes:,} bytes of local disk",
        f"rewrites the newest commit, of batch {planned.batch}, and the state schema: it appends no batch",
    ]
    if planned.half_done is not None:
        lines.insert(0, "a schema evolution is incomplete: --apply finishes it, --abort reverses it")
    return lines


def _print_done(console: Console, planned: RewritePlan, url: str, run: str) -> None:
    console.print(f"changed the columns of the state after batch {planned.batch}; start the job with the new columns")
    console.print(f"to undo this run: statekeeper evolve {url} --undo {run} --confirm-stopped", soft_wrap=True)
