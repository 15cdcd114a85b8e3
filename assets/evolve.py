"""The asset `evolve`: changes the value columns of a state root when a person launches it."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from statekeeper.assets import metadata
from statekeeper.assets.checks import NOTHING_LEFT_HALF_EVOLVED
from statekeeper.assets.launches import Action, DoOrUndo, Launch, StoppedQuery, launched
from statekeeper.assets.partitions import QUERIES
from statekeeper.assets.sources import GROUP, OWNERS, STREAMING_QUERY
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.rewrites import engine
from statekeeper.statestore.maintenance.rewrites.evolution import read_schema_file


class EvolveState(StoppedQuery):
    """The launchpad's configuration. The default only plans."""

    schema_file: str = Field(
        default="",
        description="The TOML or JSON file with the changes of value columns by store. The process of the run reads it "
        "from its disk.",
    )
    do: DoOrUndo = Field(
        default=DoOrUndo.PLAN,
        description="PLAN shows the plan and the first rows. APPLY executes it or completes an interrupted schema "
        "evolution. ABORT reverses an interrupted one, UNDO a completed one.",
    )
    undo_run: str = Field(
        default="", description="With UNDO: the `run` in the materialization of the schema evolution."
    )


@dg.asset(
    partitions_def=QUERIES,
    deps=[STREAMING_QUERY],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "adds-files"},
    code_version="1",
    check_specs=[NOTHING_LEFT_HALF_EVOLVED],
)
def evolve(
    context: dg.AssetExecutionContext, config: EvolveState, fleet: Fleet
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Adds, drops, widens or renames value columns of the state root of a stopped job. Launch it by hand; it only plans
    unless the launchpad sets `do: APPLY`.

    *Danger*: stop the job first. Each changed store gets a new snapshot of its newest version, which is read back and
    compared. Afterwards only a job that declares the new columns starts. APPLY completes an interrupted schema evolution,
    ABORT reverses it; UNDO reverses a completed one until the job commits a batch. By hand: `statekeeper evolve`.
    """
    yield from launched(context, fleet, _evolving(config))


def _evolving(config: EvolveState) -> Action:
    def action(launch: Launch) -> tuple[metadata.Metadata, str | None]:
        storage, policies, by, report = launch.query.storage, launch.query.policies, launch.by, launch.report
        run, scratch, stopped, kind = launch.run, launch.scratch, config.confirm_stopped, RewriteKind.EVOLVE
        if config.do is DoOrUndo.ABORT:
            begun = verbs.rewrite.abort(storage, policies, kind, by, report, run=run, stopped=stopped)
            return metadata.of_aborted_rewrite(begun), None
        if config.do is DoOrUndo.UNDO:
            begun = verbs.rewrite.undo(storage, policies, kind, config.undo_run, by, report, run=run, stopped=stopped)
            return {**metadata.of_aborted_rewrite(begun), "phase": "undone"}, None
        goal = read_schema_file(config.schema_file)
        prepared = verbs.rewrite.plan(storage, policies, goal, config.for_spark.spark, scratch=scratch)
        if config.do is DoOrUndo.PLAN:
            found = engine.preview(storage, prepared.plan, scratch=scratch, clock=by.clock, ids=by.ids)
            return metadata.of_evolution(prepared, found), None
        prepared = verbs.rewrite.execute(storage, prepared, by, report, run=run, stopped=stopped, scratch=scratch)
        planned = prepared.plan
        refusal = next(map(str, prepared.refusals), None)
        shown = metadata.of_rewrite(prepared, is_done=refusal is None)
        return {**shown, "run": run if planned.half_done is None else planned.half_done.begun.run}, refusal

    return action
