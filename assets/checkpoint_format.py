"""The asset `checkpoint_format`: a checkpoint gets the other structure, when a person launches it."""

from collections.abc import Iterator
from enum import Enum

import dagster as dg
from pydantic import Field

from assets import metadata
from assets.checks import NOTHING_LEFT_HALF_SWITCHED, nothing_left_half_switched
from assets.partitions import QUERIES
from assets.sources import GROUP, OWNERS, STREAMING_QUERY
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
    """What a launch does."""

    PLAN = "plan"
    APPLY = "apply"
    ABORT = "abort"


class ForSpark(Enum):
    """The Spark that goes on from here, where the checkpoint does not tell."""

    BY_THE_CHECKPOINT = "by the checkpoint"
    V4_0 = "4.0"
    V4_1 = "4.1"
    V4_2 = "4.2"
    V4_3 = "4.3"

    @property
    def spark(self) -> Spark | None:
        return None if self is ForSpark.BY_THE_CHECKPOINT else Spark(self.value)


class Switch(dg.Config):
    """What the launchpad asks for. As it stands, it only plans."""

    to: Structure = Field(default=Structure.V2, description="The structure that the checkpoint is to have.")
    do: Do = Field(
        default=Do.PLAN,
        description="PLAN shows what would be done. APPLY does it, or finishes an interrupted run. ABORT takes one back.",
    )
    confirm_stopped: bool = Field(
        default=False, description="The query is stopped: its application is gone, and nothing will start it."
    )
    for_spark: ForSpark = Field(
        default=ForSpark.BY_THE_CHECKPOINT, description="4.0 and later ones do not read each other's snapshots in V2."
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
    """Moves a checkpoint from structure V1 to V2, or back. No Spark does that. Launched by hand; it only plans unless the
    launchpad says `do: APPLY`.

    *Danger*: the query has to be stopped. Every store gets a full snapshot at its head in the other structure, which is
    read back and compared; then the newest commit is written anew. Interrupted, it is finished by another APPLY, or taken
    back by ABORT. Afterwards the query is started with the conf that the metadata shows. By hand: `statekeeper switch`.
    """
    query = fleet.open(context.partition_key)
    storage, policies, scratch = query.storage, query.policies, fleet.scratch_folder()
    by = Maintainer(holder(context.run.run_id), SystemClock(), RandomIds(), fleet.quiet_seconds)
    run = by.ids.fresh()

    def told(progress: Progress) -> None:
        context.log.info(f"{progress.phase.value}: {progress.done} of {progress.of} {progress.store or ''}".strip())

    try:
        if config.do is Do.ABORT:
            begun = passes.switch.abort(storage, policies, by, told, run=run, stopped=config.confirm_stopped)
            shown = metadata.of_aborted_switch(begun)
        else:
            prepared = passes.switch.prepare(storage, policies, config.to, config.for_spark.spark, scratch=scratch)
            if config.do is Do.APPLY:
                prepared = passes.switch.execute(
                    storage, prepared, by, told, run=run, stopped=config.confirm_stopped, scratch=scratch
                )
            planned = prepared.plan
            is_done = planned.is_there or (config.do is Do.APPLY and not planned.refusals)
            shown = metadata.of_switch(planned, is_done=is_done)
    except StatekeeperError as error:
        yield nothing_left_half_switched(switchover.standing(storage))
        raise dg.Failure(str(error)) from error
    yield nothing_left_half_switched(switchover.standing(storage))
    if config.do is Do.APPLY and shown["refusals"]:
        raise dg.Failure(str(shown["refusal"]), metadata=shown)
    yield dg.MaterializeResult(metadata=shown)
