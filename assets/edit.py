"""The asset `edit`: deletes keys or corrects rows of the state when a person launches it."""

from collections.abc import Iterator
from enum import Enum

import dagster as dg
from pydantic import Field

from assets import metadata
from assets.checkpoint_format import ForSpark
from assets.checks import NOTHING_LEFT_HALF_EDITED, nothing_left_half_switched
from assets.partitions import QUERIES
from assets.sources import GROUP, OWNERS, STREAMING_QUERY
from assets.verdicts import with_fleet_verdicts
from resources.fleet import Fleet, OpenedQuery
from resources.worker import holder
from statestore import switch_journal
from statestore.clock import RandomIds, SystemClock
from statestore.errors import StatekeeperError
from statestore.maintenance import passes
from statestore.maintenance.edits.tables import edit_of
from statestore.maintenance.passes import Maintainer
from statestore.maintenance.switchover import Progress, ProgressCallback
from statestore.switch_journal import RewriteKind


class DoEdit(Enum):
    """The action of a launch."""

    PLAN = "plan"
    APPLY = "apply"
    ABORT = "abort"
    UNDO = "undo"


class EditState(dg.Config):
    """The launchpad's configuration. The default only plans."""

    operator: int = Field(default=0, ge=0, description="Number of the stateful operator whose state is edited.")
    delete: dict[str, str] = Field(
        default={},
        description="Columns of the key and their values, written as `statekeeper dump` shows them. The rows whose key has "
        "all these values are deleted.",
    )
    delete_keys: str | None = Field(
        default=None,
        description="A table with the keys to delete: a Parquet, Arrow or CSV file, or the folder of a Delta table. The "
        "process of the run reads it from its disk.",
    )
    upsert: str | None = Field(
        default=None,
        description="A table with rows to insert, or to replace the rows with the same keys. It has all columns of key and "
        "value.",
    )
    do: DoEdit = Field(
        default=DoEdit.PLAN,
        description="PLAN shows the plan. APPLY executes it or completes an interrupted edit. ABORT reverses an "
        "interrupted edit, UNDO a completed one.",
    )
    undo_run: str = Field(default="", description="With UNDO: the `run` in the materialization of the edit.")
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
    tags={"statekeeper/does": "adds-files"},
    code_version="1",
    check_specs=[NOTHING_LEFT_HALF_EDITED],
)
def edit(
    context: dg.AssetExecutionContext, config: EditState, fleet: Fleet
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Deletes keys of the state of a stopped query, or corrects rows. Launch it by hand; it only plans unless the
    launchpad sets `do: APPLY`.

    *Danger*: stop the query first. The plan shows the changed rows before and after. Each changed store gets a new snapshot
    of its newest version, which is read back and compared. The replaced files are quarantined. APPLY completes an
    interrupted edit, ABORT reverses it; UNDO reverses a completed edit until the query commits a batch. By hand:
    `statekeeper edit`.
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
    config: EditState, fleet: Fleet, query: OpenedQuery, by: Maintainer, report: ProgressCallback
) -> tuple[metadata.Metadata, str | None]:
    """Plan, execute or reverse. Return the metadata, and why the execution was refused. Raises the errors of the pass."""
    storage, policies, stopped = query.storage, query.policies, config.confirm_stopped
    run, scratch = by.ids.fresh(), fleet.scratch_folder()
    if config.do is DoEdit.ABORT:
        begun = passes.rewrite.abort(storage, policies, RewriteKind.EDIT, by, report, run=run, stopped=stopped)
        return metadata.of_aborted_rewrite(begun), None
    if config.do is DoEdit.UNDO:
        begun = passes.edit.undo(storage, policies, config.undo_run, by, report, run=run, stopped=stopped)
        return {**metadata.of_aborted_rewrite(begun), "phase": "undone"}, None
    goal = edit_of(config.operator, config.delete, config.delete_keys, config.upsert)
    prepared = passes.edit.plan(storage, policies, goal, by, config.for_spark.spark, scratch=scratch)
    if config.do is DoEdit.PLAN:
        return metadata.of_edit(prepared.plan, is_done=prepared.plan.is_there), None
    prepared = passes.edit.execute(storage, prepared, by, report, run=run, stopped=stopped, scratch=scratch)
    planned = prepared.plan
    refusal = next(iter(planned.refusals), None)
    shown = metadata.of_edit(planned, is_done=refusal is None)
    return {**shown, "run": run if planned.half_done is None else planned.half_done.begun.run}, refusal
