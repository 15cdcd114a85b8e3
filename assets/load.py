"""The asset `load`: replaces the state by the rows of a savepoint when a person launches it."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from statekeeper.assets import metadata
from statekeeper.assets.checks import NOTHING_LEFT_HALF_LOADED
from statekeeper.assets.launches import Action, DoOrUndo, Launch, StoppedQuery, launched
from statekeeper.assets.partitions import QUERIES
from statekeeper.assets.sources import GROUP, OWNERS, STREAMING_QUERY
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.copies.savepoints.saved import read_saved
from statekeeper.statestore.maintenance.rewrites.engine import Load
from statekeeper.statestore.storage import Storage


class LoadState(StoppedQuery):
    """The launchpad's configuration. The default only plans."""

    savepoint: str = Field(
        default="",
        description="The folder that `statekeeper savepoint --rows` wrote: a path or URL, or a name in statekeeper.toml. "
        "Required for PLAN and APPLY.",
    )
    replace_state: bool = Field(
        default=False, description="Also load into a checkpoint whose stores have rows. All its rows are replaced."
    )
    file_sink: str | None = Field(
        default=None, description="The output folder, if the query writes files with Spark's file sink."
    )
    do: DoOrUndo = Field(
        default=DoOrUndo.PLAN,
        description="PLAN shows the plan. APPLY executes it or completes an interrupted load. ABORT reverses an "
        "interrupted load, UNDO a completed one.",
    )
    undo_run: str = Field(default="", description="With UNDO: the `run` in the materialization of the load.")


@dg.asset(
    partitions_def=QUERIES,
    deps=[STREAMING_QUERY],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "adds-files"},
    code_version="1",
    check_specs=[NOTHING_LEFT_HALF_LOADED],
)
def load(
    context: dg.AssetExecutionContext, config: LoadState, fleet: Fleet
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Replaces the state of a stopped query by the rows of a savepoint. Launch it by hand; it only plans unless the
    launchpad sets `do: APPLY`.

    *Danger*: stop the query first. All rows and the watermark of the query are replaced. Each store gets a new
    snapshot, which is read back and compared. Then one batch without rows is appended to the logs; the state root of a
    job on `pipelines` gets no batch. APPLY completes an interrupted load, ABORT reverses it; UNDO reverses a completed
    load until the query begins a batch. By hand: `statekeeper load`.
    """
    yield from launched(context, fleet, _loading(config, fleet))


def _loading(config: LoadState, fleet: Fleet) -> Action:
    def action(launch: Launch) -> tuple[metadata.Metadata, str | None]:
        storage, policies, by, report = launch.query.storage, launch.query.policies, launch.by, launch.report
        run, scratch, stopped = launch.run, launch.scratch, config.confirm_stopped

        def open_other(url: str) -> Storage:
            return fleet.open_destination(url, launch.query)

        if config.do is DoOrUndo.ABORT:
            begun = verbs.rewrite.abort(
                storage, policies, RewriteKind.LOAD, by, report, run=run, stopped=stopped, open_sink=open_other
            )
            return metadata.of_aborted_rewrite(begun), None
        if config.do is DoOrUndo.UNDO:
            begun = verbs.rewrite.undo(
                storage,
                policies,
                RewriteKind.LOAD,
                config.undo_run,
                by,
                report,
                run=run,
                stopped=stopped,
                open_sink=open_other,
            )
            return {**metadata.of_aborted_rewrite(begun), "phase": "undone"}, None
        source = open_other(config.savepoint)
        goal = Load(read_saved(source), source, config.replace_state)
        prepared = verbs.rewrite.plan(
            storage,
            policies,
            goal,
            config.for_spark.spark,
            scratch=scratch,
            file_sink=config.file_sink,
            open_sink=open_other,
        )
        if config.do is DoOrUndo.PLAN:
            return metadata.of_load(prepared, is_done=False), None
        prepared = verbs.rewrite.execute(storage, prepared, by, report, run=run, stopped=stopped, scratch=scratch)
        planned = prepared.plan
        refusal = next(map(str, prepared.refusals), None)
        shown = metadata.of_load(prepared, is_done=refusal is None)
        return {**shown, "run": run if planned.half_done is None else planned.half_done.begun.run}, refusal

    return action
