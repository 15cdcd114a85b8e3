"""The assets that rewrite the state of a stopped query when a person launches them. One factory makes them."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from statekeeper.assets.checks import half_done_check, nothing_left_half_switched
from statekeeper.assets.launches import (
    Do,
    DoOrUndo,
    StoppedLaunch,
    config_of,
    of_prepared,
    options_in,
    run_of,
)
from statekeeper.assets.partitions import QUERIES
from statekeeper.assets.sources import GROUP, OWNERS, STREAMING_QUERY
from statekeeper.assets.verdicts import with_fleet_verdicts
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.maintenance.rewrites.engine import Progress
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.edit import Edit
from statekeeper.statestore.maintenance.verbs.rewrite import (
    Convert,
    Evolve,
    Load,
    OfStoppedQuery,
    Rescale,
    Revert,
    Rollback,
)
from statekeeper.statestore.maintenance.verbs.switch import Switch


def _rewrite(
    verb: type[OfStoppedQuery[Any]],
    description: str,
    *,
    noun: str,
    name: str = "",
    undo: bool = False,
    does: str = "adds-files",
) -> dg.AssetsDefinition:
    """Make the asset of a rewrite. `name`: if it is not that of the verb; `undo`: a completed rewrite can be reversed."""
    kind, actions = RewriteKind(verb.name), DoOrUndo if undo else Do
    of_undo = ", UNDO a completed one" if undo else ""
    fields: dict[str, tuple[Any, Any]] = {
        "do": (
            actions,
            Field(
                default=actions.PLAN,
                description=f"PLAN shows the plan. APPLY executes it or completes an interrupted {noun}. ABORT reverses an "
                f"interrupted one{of_undo}.",
            ),
        )
    }
    if undo:
        shown = f"With UNDO: the `run` in the materialization of the {noun}."
        fields["undo_run"] = (str, Field(default="", description=shown))

    class Launch(config_of(verb, StoppedLaunch, **fields)):  # type: ignore[misc]
        """The launchpad's configuration. The default only plans."""

    def done(config: Any, run: Run, tell: Any) -> Prepared[Any, Progress, Any]:
        action = config.do.value
        if action == "abort":
            return perform(prepare(Rollback(kind), run), tell)
        if action == "undo":
            return perform(prepare(Revert(kind, config.undo_run), run), tell)
        prepared = prepare(verb(**options_in(config, verb)), run)
        return prepared if action == "plan" else perform(prepared, tell)

    @dg.asset(
        name=name or verb.name,
        description=description,
        partitions_def=QUERIES,
        deps=[STREAMING_QUERY],
        group_name=GROUP,
        kinds={"rocksdb"},
        owners=OWNERS,
        tags={"statekeeper/does": does},
        code_version="1",
        check_specs=[half_done_check(name or verb.name)],
    )
    def made(
        context: dg.AssetExecutionContext,
        config: Launch,
        fleet: Fleet,
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        query = fleet.open(context.partition_key)
        run = run_of(context, fleet, query, stopped=config.confirm_stopped)
        started = run.clock.monotonic_seconds()

        def tell(step: Progress) -> None:
            context.log.info(f"{step.phase.value}: {step.done} of {step.of} {step.store or ''}".strip())

        def verdicts() -> list[dg.AssetCheckResult]:
            found = nothing_left_half_switched(rewrite_journal.open_journal(query.storage), query)
            return with_fleet_verdicts(context, [found], fleet)

        try:
            prepared = done(config, run, tell)
            shown = of_prepared(prepared)
        except StatekeeperError as error:
            yield from verdicts()
            raise dg.Failure(str(error)) from error
        shown["seconds"] = round(run.clock.monotonic_seconds() - started, 3)
        yield from verdicts()
        if prepared.refusals and config.do.value != "plan":
            raise dg.Failure(printable(str(prepared.refusals[0])), metadata=shown)
        yield dg.MaterializeResult(metadata=shown)

    return made


checkpoint_format = _rewrite(
    Switch,
    "Moves a checkpoint from structure V1 to V2, or back, which no Spark release does. Launch it by hand; it only "
    "plans unless the launchpad sets `do: APPLY`.\n\n"
    "*Danger*: stop the query first. Every store gets a full snapshot at its head in the target structure; each "
    "snapshot is read back and compared. Then the newest commit is replaced. APPLY completes an interrupted "
    "switchover, ABORT undoes it. Afterwards, start the query with the conf in `start_with`. By hand: `statekeeper "
    "switch`.",
    noun="switchover",
    name="checkpoint_format",
    does="rewrites-files",
)

rescale = _rewrite(
    Rescale,
    "Changes the number of partitions of a stopped query. Launch it by hand; it only plans unless the launchpad sets "
    "`do: APPLY`.\n\n"
    "*Danger*: stop the query first. Each row of the state moves to the partition of its key; the new snapshots are "
    "read back and compared. Then one batch without rows is appended to the logs. The state root of a job on "
    "`pipelines` gets no batch: its newest commit and its binding are rewritten. APPLY completes an interrupted "
    "rescale, ABORT reverses it. By hand: `statekeeper rescale`.",
    noun="rescale",
)

convert = _rewrite(
    Convert,
    "Moves the state of a stopped Spark query from Spark's default state store provider to RocksDB, or back. Launch "
    "it by hand; it only plans unless the launchpad sets `do: APPLY`.\n\n"
    "*Danger*: stop the query first. Each row of the state is encoded for the other provider; the new snapshots are "
    "read back and compared. Then one batch without rows is appended to the logs. APPLY completes an interrupted "
    "conversion, ABORT reverses it. By hand: `statekeeper convert`.",
    noun="conversion",
)

edit = _rewrite(
    Edit,
    "Deletes keys of the state of a stopped query, or corrects rows. Launch it by hand; it only plans unless the "
    "launchpad sets `do: APPLY`.\n\n"
    "*Danger*: stop the query first. The plan shows the changed rows before and after. Each changed store gets a new "
    "snapshot of its newest version, which is read back and compared. The replaced files are quarantined. APPLY "
    "completes an interrupted edit, ABORT reverses it; UNDO reverses a completed edit until the query commits a "
    "batch. By hand: `statekeeper edit`.",
    noun="edit",
    undo=True,
)

load = _rewrite(
    Load,
    "Replaces the state of a stopped query by the rows of a savepoint. Launch it by hand; it only plans unless the "
    "launchpad sets `do: APPLY`.\n\n"
    "*Danger*: stop the query first. All rows and the watermark of the query are replaced. Each store gets a new "
    "snapshot, which is read back and compared. Then one batch without rows is appended to the logs; the state root "
    "of a job on `pipelines` gets no batch. APPLY completes an interrupted load, ABORT reverses it; UNDO reverses a "
    "completed load until the query begins a batch. By hand: `statekeeper load`.",
    noun="load",
    undo=True,
)

evolve = _rewrite(
    Evolve,
    "Adds, drops, widens or renames value columns of the state root of a stopped job. Launch it by hand; it only "
    "plans unless the launchpad sets `do: APPLY`.\n\n"
    "*Danger*: stop the job first. Each changed store gets a new snapshot of its newest version, which is read back "
    "and compared. Afterwards only a job that declares the new columns starts. APPLY completes an interrupted schema "
    "evolution, ABORT reverses it; UNDO reverses a completed one until the job commits a batch. By hand: `statekeeper "
    "evolve`.",
    noun="schema evolution",
    undo=True,
)

REWRITES = (checkpoint_format, rescale, convert, edit, load, evolve)
