"""The asset `checkpoint_format`: moves a checkpoint to the other structure when a person launches it."""

from collections.abc import Iterator
from enum import Enum

import dagster as dg
from pydantic import Field

from assets import metadata
from assets.checks import NOTHING_LEFT_HALF_SWITCHED, nothing_left_half_switched
from assets.partitions import QUERIES
from assets.sources import GROUP, OWNERS, STREAMING_QUERY
from assets.verdicts import with_fleet_verdicts
from resources.fleet import Fleet
from resources.worker import holder
from statestore.clock import RandomIds, SystemClock
from statestore.errors import StatekeeperError
from statestore.format.sparks import Spark
from statestore.format.structure import Structure
from statestore.maintenance import passes, switchover
from statestore.maintenance.passes import Maintainer
from statestore.maintenance.switchover import Progress


class Do(Enum):
    """The action of a launch."""

    PLAN = "plan"
    APPLY = "apply"
    ABORT = "abort"


class ForSpark(Enum):
    """The Spark release that will run the query, if the checkpoint does not show it."""

    BY_THE_CHECKPOINT = "by the checkpoint"
    V4_0 = "4.0"
    V4_1 = "4.1"
    V4_2 = "4.2"
    V4_3 = "4.3"

    @property
    def spark(self) -> Spark | None:
        return None if self is ForSpark.BY_THE_CHECKPOINT else Spark(self.value)


class Switch(dg.Config):
    """The launchpad's configuration. The default only plans."""

    to: Structure = Field(default=Structure.V2, description="The target structure of the checkpoint.")
    do: Do = Field(
        default=Do.PLAN,
        description="PLAN shows the plan. APPLY executes it or completes an interrupted switchover. ABORT undoes one.",
    )
    confirm_stopped: bool = Field(
        default=False, description="The query is stopped: its application has ended, and no scheduler will start it."
    )
    for_spark: ForSpark = Field(
        default=ForSpark.BY_THE_CHECKPOINT,
        description="In V2, Spark 4.0 cannot read the snapshots of later releases, nor later releases those of Spark 4.0.",
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
    query = fleet.open(context.partition_key)
    storage, policies, scratch = query.storage, query.policies, fleet.scratch_folder()
    by = Maintainer(holder(context.run.run_id), SystemClock(), RandomIds(), fleet.quiet_seconds)
    run = by.ids.fresh()
    is_refused = False

    def report(progress: Progress) -> None:
        context.log.info(f"{progress.phase.value}: {progress.done} of {progress.of} {progress.store or ''}".strip())

    try:
        if config.do is Do.ABORT:
            begun = passes.switch.abort(storage, policies, by, report, run=run, stopped=config.confirm_stopped)
            shown = metadata.of_aborted_switch(begun)
        else:
            prepared = passes.switch.plan(storage, policies, config.to, config.for_spark.spark, scratch=scratch)
            if config.do is Do.APPLY:
                prepared = passes.switch.execute(
                    storage, prepared, by, report, run=run, stopped=config.confirm_stopped, scratch=scratch
                )
            planned = prepared.plan
            is_done = planned.is_there or (config.do is Do.APPLY and not planned.refusals)
            is_refused = config.do is Do.APPLY and bool(planned.refusals)
            shown = metadata.of_switch(planned, is_done=is_done)
    except StatekeeperError as error:
        yield from with_fleet_verdicts(context, [nothing_left_half_switched(switchover.open_journal(storage), query)])
        raise dg.Failure(str(error)) from error
    yield from with_fleet_verdicts(context, [nothing_left_half_switched(switchover.open_journal(storage), query)])
    if is_refused:
        raise dg.Failure(str(shown["refusal"]), metadata=shown)
    yield dg.MaterializeResult(metadata=shown)
