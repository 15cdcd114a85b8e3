"""The asset `rescale`: changes the number of partitions of a checkpoint when a person launches it."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from assets import metadata
from assets.checkpoint_format import Do, ForSpark
from assets.checks import NOTHING_LEFT_HALF_RESCALED, nothing_left_half_switched
from assets.partitions import QUERIES
from assets.sources import GROUP, OWNERS, STREAMING_QUERY
from assets.verdicts import with_fleet_verdicts
from resources.fleet import Fleet, OpenedQuery
from resources.worker import holder
from statestore import switch_journal
from statestore.clock import RandomIds, SystemClock
from statestore.errors import StatekeeperError
from statestore.format.names import MOST_PARTITIONS
from statestore.maintenance import passes
from statestore.maintenance.passes import Maintainer
from statestore.maintenance.rewrites import Rescale
from statestore.maintenance.switchover import Progress, ProgressCallback
from statestore.storage import Storage
from statestore.switch_journal import RewriteKind


class RescaleQuery(dg.Config):
    """The launchpad's configuration. The default only plans."""

    partitions: int = Field(
        default=0,
        ge=0,
        le=MOST_PARTITIONS,
        description="Number of partitions of each stateful operator after the rescale. Required for PLAN and APPLY.",
    )
    do: Do = Field(
        default=Do.PLAN,
        description="PLAN shows the plan. APPLY executes it or completes an interrupted rescale. ABORT reverses one.",
    )
    confirm_stopped: bool = Field(
        default=False, description="The query is stopped: its application has ended, and no scheduler will start it."
    )
    for_spark: ForSpark = Field(
        default=ForSpark.BY_THE_CHECKPOINT,
        description="In V2, Spark 4.0 cannot read the snapshots of later releases, nor later releases those of Spark 4.0.",
    )
    file_sink: str | None = Field(
        default=None,
        description="The output folder, if the query writes files with Spark's file sink (parquet, json, csv, orc or text, "
        "with a path). Without it, such a sink and all readers of the folder fail after the rescale.",
    )


@dg.asset(
    partitions_def=QUERIES,
    deps=[STREAMING_QUERY],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "adds-files"},
    code_version="1",
    check_specs=[NOTHING_LEFT_HALF_RESCALED],
)
def rescale(
    context: dg.AssetExecutionContext, config: RescaleQuery, fleet: Fleet
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Changes the number of partitions of a stopped Spark query. Launch it by hand; it only plans unless the launchpad sets
    `do: APPLY`.

    *Danger*: stop the query first. Each row of the state moves to the partition of its key; the new snapshots are read back
    and compared. Then one batch without rows is appended to the logs. APPLY completes an interrupted rescale, ABORT
    reverses it. By hand: `statekeeper rescale`.
    """
    query = fleet.open(context.partition_key)
    by = Maintainer(holder(context.run.run_id), SystemClock(), RandomIds(), fleet.quiet_seconds)
    started = by.clock.monotonic_seconds()

    def report(progress: Progress) -> None:
        context.log.info(f"{progress.phase.value}: {progress.done} of {progress.of} {progress.store or ''}".strip())

    def verdicts() -> list[dg.AssetCheckResult]:
        found = nothing_left_half_switched(switch_journal.open_journal(query.storage), query)
        return with_fleet_verdicts(context, [found])

    try:
        shown, refusal = _run(config, fleet, query, by, report)
    except StatekeeperError as error:
        yield from verdicts()
        raise dg.Failure(str(error)) from error
    shown["seconds"] = round(by.clock.monotonic_seconds() - started, 3)
    yield from verdicts()
    if refusal is not None:
        raise dg.Failure(refusal, metadata=shown)
    yield dg.MaterializeResult(metadata=shown)


def _run(
    config: RescaleQuery, fleet: Fleet, query: OpenedQuery, by: Maintainer, report: ProgressCallback
) -> tuple[metadata.Metadata, str | None]:
    """Plan, execute or reverse. Return the metadata, and why the execution was refused. Raises the errors of the pass."""
    run, scratch = by.ids.fresh(), fleet.scratch_folder()

    def open_sink(url: str) -> Storage:
        return fleet.open_destination(url, query)

    if config.do is Do.ABORT:
        begun = passes.rewrite.abort(
            query.storage,
            query.policies,
            RewriteKind.RESCALE,
            by,
            report,
            run=run,
            stopped=config.confirm_stopped,
            open_sink=open_sink,
        )
        return metadata.of_aborted_rewrite(begun), None
    prepared = passes.rewrite.plan(
        query.storage,
        query.policies,
        Rescale(config.partitions),
        config.for_spark.spark,
        scratch=scratch,
        file_sink=config.file_sink,
        open_sink=open_sink,
    )
    if config.do is Do.PLAN:
        return metadata.of_rewrite(prepared.plan, is_done=prepared.plan.is_there), None
    prepared = passes.rewrite.execute(
        query.storage, prepared, by, report, run=run, stopped=config.confirm_stopped, scratch=scratch
    )
    refusal = next(iter(prepared.plan.refusals), None)
    return metadata.of_rewrite(prepared.plan, is_done=refusal is None), refusal
