"""The common part of the assets `rescale` and `convert`: configuration, execution and result."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from assets import metadata
from assets.checkpoint_format import Do, ForSpark
from assets.checks import nothing_left_half_switched
from assets.verdicts import with_fleet_verdicts
from resources.fleet import Fleet, OpenedQuery
from resources.worker import holder
from statestore import switch_journal
from statestore.clock import RandomIds, SystemClock
from statestore.errors import StatekeeperError
from statestore.maintenance import passes
from statestore.maintenance.passes import Maintainer
from statestore.maintenance.rewrites import Goal
from statestore.maintenance.switchover import Progress, ProgressCallback
from statestore.switch_journal import RewriteKind


class Rewrite(dg.Config):
    """The launchpad's configuration of each rewrite. The default only plans."""

    do: Do = Field(
        default=Do.PLAN,
        description="PLAN shows the plan. APPLY executes it or completes an interrupted run. ABORT reverses one.",
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
        "with a path). Without it, such a sink and all readers of the folder fail afterwards.",
    )


def run_rewrite(
    context: dg.AssetExecutionContext, config: Rewrite, fleet: Fleet, kind: RewriteKind, goal: Goal
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Plan, execute or reverse a rewrite of one query; yield the results of its checks, then its metadata.

    `goal` is not used for ABORT. Raises `dg.Failure` for an error of the pass and for a refused execution.
    """
    query = fleet.open(context.partition_key)
    by = Maintainer(holder(context.run.run_id), SystemClock(), RandomIds(), fleet.quiet_seconds)
    started = by.clock.monotonic_seconds()

    def verdicts() -> list[dg.AssetCheckResult]:
        found = nothing_left_half_switched(switch_journal.open_journal(query.storage), query)
        return with_fleet_verdicts(context, [found])

    try:
        if config.do is Do.ABORT:
            shown, refusal = _abort(context, config, fleet, query, kind, by), None
        else:
            shown, refusal = _plan_or_apply(context, config, fleet, query, goal, by)
    except StatekeeperError as error:
        yield from verdicts()
        raise dg.Failure(str(error)) from error
    shown["seconds"] = round(by.clock.monotonic_seconds() - started, 3)
    yield from verdicts()
    if refusal is not None:
        raise dg.Failure(refusal, metadata=shown)
    yield dg.MaterializeResult(metadata=shown)


def _abort(
    context: dg.AssetExecutionContext,
    config: Rewrite,
    fleet: Fleet,
    query: OpenedQuery,
    kind: RewriteKind,
    by: Maintainer,
) -> metadata.Metadata:
    begun = passes.rewrite.abort(
        query.storage,
        query.policies,
        kind,
        by,
        _report(context),
        run=by.ids.fresh(),
        stopped=config.confirm_stopped,
        open_sink=lambda url: fleet.open_destination(url, query),
    )
    return metadata.of_aborted_rewrite(begun)


def _plan_or_apply(
    context: dg.AssetExecutionContext,
    config: Rewrite,
    fleet: Fleet,
    query: OpenedQuery,
    goal: Goal,
    by: Maintainer,
) -> tuple[metadata.Metadata, str | None]:
    """Return the metadata, and why the execution was refused."""
    scratch = fleet.scratch_folder()
    prepared = passes.rewrite.plan(
        query.storage,
        query.policies,
        goal,
        config.for_spark.spark,
        scratch=scratch,
        file_sink=config.file_sink,
        open_sink=lambda url: fleet.open_destination(url, query),
    )
    if config.do is Do.PLAN:
        return metadata.of_rewrite(prepared.plan, is_done=prepared.plan.is_there), None
    prepared = passes.rewrite.execute(
        query.storage,
        prepared,
        by,
        _report(context),
        run=by.ids.fresh(),
        stopped=config.confirm_stopped,
        scratch=scratch,
    )
    refusal = next(iter(prepared.plan.refusals), None)
    return metadata.of_rewrite(prepared.plan, is_done=refusal is None), refusal


def _report(context: dg.AssetExecutionContext) -> ProgressCallback:
    def report(progress: Progress) -> None:
        context.log.info(f"{progress.phase.value}: {progress.done} of {progress.of} {progress.store or ''}".strip())

    return report
