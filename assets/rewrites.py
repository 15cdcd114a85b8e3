"""The assets that rewrite the state of a stopped query when a person launches them. One factory makes them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import dagster as dg
from pydantic import Field

from statekeeper.assets.checks import NOTHING_LEFT_HALF_SWITCHED, nothing_left_half_switched
from statekeeper.assets.launches import (
    Do,
    DoOrUndo,
    StoppedLaunch,
    config_of,
    of_prepared,
    options_in,
)
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.assets.work import Given, Outcome, Work, of_asset, recorded
from statekeeper.resources.fleet import Fleet, OpenedQuery
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.maintenance.rewrites.engine import Progress
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.edit import Edit
from statekeeper.statestore.maintenance.verbs.migrate import Migrate
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


def _checks(fleet: Fleet, query: OpenedQuery) -> list[dg.AssetCheckResult]:
    del fleet
    return [nothing_left_half_switched(rewrite_journal.open_journal(query.storage), query)]


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """A rewrite as an asset. `name`: if it is not that of the verb; `undo`: a completed rewrite can be reversed."""

    verb: type[OfStoppedQuery[Any]]
    description: str
    noun: str
    name: str = ""
    undo: bool = False
    does: str = "adds-files"

    @cached_property
    def launch(self) -> type[dg.Config]:
        """The launchpad's configuration."""
        actions = DoOrUndo if self.undo else Do
        of_undo = ", UNDO a completed one" if self.undo else ""
        fields: dict[str, tuple[Any, Any]] = {
            "do": (
                actions,
                Field(
                    default=actions.PLAN,
                    description=f"PLAN shows the plan. APPLY executes it or completes an interrupted {self.noun}. ABORT "
                    f"reverses an interrupted one{of_undo}.",
                ),
            )
        }
        if self.undo:
            shown = f"With UNDO: the `run` in the materialization of the {self.noun}."
            fields["undo_run"] = (str, Field(default="", description=shown))

        class Launch(config_of(self.verb, StoppedLaunch, **fields)):  # type: ignore[misc]
            """The launchpad's configuration. The default only plans."""

        return Launch

    @cached_property
    def work(self) -> Work[Outcome]:
        """The work of the asset. What is asked for is a launch."""
        return of_asset(self.name or self.verb.name, self._do, without_result=_checks)

    def _do(self, given: Given, how: Mapping[str, Any]) -> Outcome:
        launch: Any = self.launch(**how)
        run = replace(given.run, stopped=launch.confirm_stopped)
        started = run.clock.monotonic_seconds()

        def tell(step: Progress) -> None:
            given.told(f"{step.phase.value}: {step.done} of {step.of} {step.store or ''}".strip())

        try:
            prepared = self._done(launch, run, tell)
            shown = of_prepared(prepared)
        except StatekeeperError as error:
            return Outcome(checks=_checks(given.fleet, given.query), errors={given.query.name: str(error)})
        shown["seconds"] = round(run.clock.monotonic_seconds() - started, 3)
        is_refused = prepared.refusals and launch.do.value != "plan"
        errors = {given.query.name: str(prepared.refusals[0])} if is_refused else {}
        return Outcome(metadata=shown, checks=_checks(given.fleet, given.query), errors=errors)

    def _done(self, launch: Any, run: Run, tell: Callable[[Progress], None]) -> Prepared[Any, Progress, Any]:
        kind, action = RewriteKind(self.verb.name), launch.do.value
        if action == "abort":
            written = self.verb(**options_in(launch, self.verb)).run_of_journal(run)
            return perform(prepare(Rollback(kind), written), tell)
        if action == "undo":
            return perform(prepare(Revert(kind, launch.undo_run), run), tell)
        prepared = prepare(self.verb(**options_in(launch, self.verb)), run)
        return prepared if action == "plan" else perform(prepared, tell)


_REWRITES = [
    Rewrite(
        verb=Switch,
        description="Moves a checkpoint from structure V1 to V2, or back, which no Spark release does. Launch it by hand; "
        "it only plans unless the launchpad sets `do: APPLY`.\n\n"
        "*Danger*: stop the query first. Every store gets a full snapshot at its head in the target structure; each "
        "snapshot is read back and compared. Then the newest commit is replaced. APPLY completes an interrupted "
        "switchover, ABORT undoes it. Afterwards, start the query with the conf in `start_with`. By hand: `statekeeper "
        "switch`.",
        noun="switchover",
        name="checkpoint_format",
        does="rewrites-files",
    ),
    Rewrite(
        verb=Rescale,
        description="Changes the number of partitions of a stopped query. Launch it by hand; it only plans unless the "
        "launchpad sets `do: APPLY`.\n\n"
        "*Danger*: stop the query first. Each row of the state moves to the partition of its key; the new snapshots are "
        "read back and compared. Then one batch without rows is appended to the logs. The state root of a job on "
        "`pipelines` gets no batch: its newest commit and its binding are rewritten. APPLY completes an interrupted "
        "rescale, ABORT reverses it. By hand: `statekeeper rescale`.",
        noun="rescale",
    ),
    Rewrite(
        verb=Convert,
        description="Moves the state of a stopped Spark query from Spark's default state store provider to RocksDB, or "
        "back. Launch it by hand; it only plans unless the launchpad sets `do: APPLY`.\n\n"
        "*Danger*: stop the query first. Each row of the state is encoded for the other provider; the new snapshots are "
        "read back and compared. Then one batch without rows is appended to the logs. APPLY completes an interrupted "
        "conversion, ABORT reverses it. By hand: `statekeeper convert`.",
        noun="conversion",
    ),
    Rewrite(
        verb=Edit,
        description="Deletes keys of the state of a stopped query, or corrects rows. Launch it by hand; it only plans "
        "unless the launchpad sets `do: APPLY`.\n\n"
        "*Danger*: stop the query first. The plan shows the changed rows before and after. Each changed store gets a new "
        "snapshot of its newest version, which is read back and compared. The replaced files are quarantined. APPLY "
        "completes an interrupted edit, ABORT reverses it; UNDO reverses a completed edit until the query commits a "
        "batch. By hand: `statekeeper edit`.",
        noun="edit",
        undo=True,
    ),
    Rewrite(
        verb=Load,
        description="Replaces the state of a stopped query by the rows of a savepoint. Launch it by hand; it only plans "
        "unless the launchpad sets `do: APPLY`.\n\n"
        "*Danger*: stop the query first. All rows and the watermark of the query are replaced. Each store gets a new "
        "snapshot, which is read back and compared. Then one batch without rows is appended to the logs; the state root "
        "of a job on `pipelines` gets no batch. APPLY completes an interrupted load, ABORT reverses it; UNDO reverses a "
        "completed load until the query begins a batch. By hand: `statekeeper load`.",
        noun="load",
        undo=True,
    ),
    Rewrite(
        verb=Evolve,
        description="Adds, drops, widens or renames value columns of the state root of a stopped job. Launch it by hand; "
        "it only plans unless the launchpad sets `do: APPLY`.\n\n"
        "*Danger*: stop the job first. Each changed store gets a new snapshot of its newest version, which is read back "
        "and compared. Afterwards only a job that declares the new columns starts. APPLY completes an interrupted schema "
        "evolution, ABORT reverses it; UNDO reverses a completed one until the job commits a batch. By hand: `statekeeper "
        "evolve`.",
        noun="schema evolution",
        undo=True,
    ),
    Rewrite(
        verb=Migrate,
        description="Keeps the state of a stopped query whose code has changed: writes a new checkpoint for the changed "
        "query. Launch it by hand; it only plans unless the launchpad sets `do: APPLY`.\n\n"
        "Stop the query first. `blueprint` is a checkpoint that the changed query wrote on a few rows; it says which state "
        "the changed query wants. The new checkpoint at `destination` has the operators of the blueprint and the rows of "
        "the query, which are read back and compared. Neither the query's checkpoint nor the blueprint changes. APPLY "
        "completes an interrupted migration, ABORT deletes what it wrote. By hand: `statekeeper migrate`.",
        noun="migration",
        does="adds-files",
    ),
]


REWRITES: tuple[Work[Outcome], ...] = tuple(one.work for one in _REWRITES)
"""The work of the assets."""


def rewrites(names: Names, sources: Sources) -> dict[str, dg.AssetsDefinition]:
    """Make the assets of the rewrites of a fleet, by their names without its prefix."""
    return {one.work.name: _rewrite(names, sources, one) for one in _REWRITES}


def _rewrite(names: Names, sources: Sources, declared: Rewrite) -> dg.AssetsDefinition:
    @names.asset(
        declared.work.name,
        deps=[sources.streaming_query],
        does=declared.does,
        checks=[NOTHING_LEFT_HALF_SWITCHED],
        description=declared.description,
    )
    def made(
        context: dg.AssetExecutionContext,
        config: declared.launch,  # type: ignore[name-defined]
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        yield from recorded(context, names, declared.work, config)

    return made
