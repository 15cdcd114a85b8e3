"""The common part of the assets `rescale` and `convert`: configuration and execution."""

from __future__ import annotations

from pydantic import Field

from statekeeper.assets import metadata
from statekeeper.assets.launches import Action, Do, Launch, StoppedQuery
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.rewrites.engine import Goal
from statekeeper.statestore.storage import Storage


class Rewrite(StoppedQuery):
    """The launchpad's configuration of both rewrites. The default only plans."""

    do: Do = Field(
        default=Do.PLAN,
        description="PLAN shows the plan. APPLY executes it or completes an interrupted run. ABORT reverses one.",
    )
    file_sink: str | None = Field(
        default=None,
        description="The output folder, if the query writes files with Spark's file sink (parquet, json, csv, orc or text, "
        "with a path). Without it, such a sink and all readers of the folder fail afterwards.",
    )


def rewriting(config: Rewrite, fleet: Fleet, kind: RewriteKind, goal: Goal) -> Action:
    """Return the action that the configuration asks for. `goal` is not used for ABORT."""

    def action(launch: Launch) -> tuple[metadata.Metadata, str | None]:
        storage, policies = launch.query.storage, launch.query.policies

        def open_sink(url: str) -> Storage:
            return fleet.open_destination(url, launch.query)

        if config.do is Do.ABORT:
            begun = verbs.rewrite.abort(
                storage,
                policies,
                kind,
                launch.by,
                launch.report,
                run=launch.run,
                stopped=config.confirm_stopped,
                open_sink=open_sink,
            )
            return metadata.of_aborted_rewrite(begun), None
        prepared = verbs.rewrite.plan(
            storage,
            policies,
            goal,
            config.for_spark.spark,
            scratch=launch.scratch,
            file_sink=config.file_sink,
            open_sink=open_sink,
        )
        if config.do is Do.PLAN:
            return metadata.of_rewrite(prepared, is_done=prepared.plan.is_there), None
        prepared = verbs.rewrite.execute(
            storage,
            prepared,
            launch.by,
            launch.report,
            run=launch.run,
            stopped=config.confirm_stopped,
            scratch=launch.scratch,
        )
        refusal = next(map(str, prepared.refusals), None)
        return metadata.of_rewrite(prepared, is_done=refusal is None), refusal

    return action
