"""The asset `checkpoint_format`: moves a checkpoint to the other structure when a person launches it."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from statekeeper.assets import metadata
from statekeeper.assets.checks import NOTHING_LEFT_HALF_SWITCHED
from statekeeper.assets.launches import Action, Do, Launch, StoppedQuery, launched
from statekeeper.assets.partitions import QUERIES
from statekeeper.assets.sources import GROUP, OWNERS, STREAMING_QUERY
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance import verbs


class Switch(StoppedQuery):
    """The launchpad's configuration. The default only plans."""

    to: Structure = Field(default=Structure.V2, description="The target structure of the checkpoint.")
    do: Do = Field(
        default=Do.PLAN,
        description="PLAN shows the plan. APPLY executes it or completes an interrupted switchover. ABORT undoes one.",
    )


@dg.asset(
    partitions_def=QUERIES,
    deps=[STREAMING_QUERY],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "rewrites-files"},
    code_version="1",
    check_specs=[NOTHING_LEFT_HALF_SWITCHED],
)
def checkpoint_format(
    context: dg.AssetExecutionContext, config: Switch, fleet: Fleet
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Moves a checkpoint from structure V1 to V2, or back, which no Spark release does. Launch it by hand; it only plans
    unless the launchpad sets `do: APPLY`.

    *Danger*: stop the query first. Every store gets a full snapshot at its head in the target structure; each snapshot is
    read back and compared. Then the newest commit is replaced. APPLY completes an interrupted switchover, ABORT undoes it.
    Afterwards, start the query with the conf in `start_with`. By hand: `statekeeper switch`.
    """
    yield from launched(context, fleet, _switching(config))


def _switching(config: Switch) -> Action:
    def action(launch: Launch) -> tuple[metadata.Metadata, str | None]:
        storage, policies = launch.query.storage, launch.query.policies
        run, stopped = launch.run, config.confirm_stopped
        if config.do is Do.ABORT:
            begun = verbs.switch.abort(storage, policies, launch.by, launch.report, run=run, stopped=stopped)
            return metadata.of_aborted_switch(begun), None
        spark = config.for_spark.spark
        prepared = verbs.switch.plan(storage, policies, config.to, spark, scratch=launch.scratch)
        if config.do is Do.PLAN:
            return metadata.of_switch(prepared, is_done=prepared.plan.is_there), None
        prepared = verbs.switch.execute(
            storage, prepared, launch.by, launch.report, run=run, stopped=stopped, scratch=launch.scratch
        )
        refusal = next(map(str, prepared.refusals), None)
        return metadata.of_switch(prepared, is_done=refusal is None), refusal

    return action
