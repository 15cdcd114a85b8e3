"""The asset `edit`: deletes keys or corrects rows of the state when a person launches it."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from statekeeper.assets import metadata
from statekeeper.assets.checks import NOTHING_LEFT_HALF_EDITED
from statekeeper.assets.launches import Action, DoOrUndo, Launch, StoppedQuery, launched
from statekeeper.assets.partitions import QUERIES
from statekeeper.assets.sources import GROUP, OWNERS, STREAMING_QUERY
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.rewrites.edits.tables import edit_of


class EditState(StoppedQuery):
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
    do: DoOrUndo = Field(
        default=DoOrUndo.PLAN,
        description="PLAN shows the plan. APPLY executes it or completes an interrupted edit. ABORT reverses an "
        "interrupted edit, UNDO a completed one.",
    )
    undo_run: str = Field(default="", description="With UNDO: the `run` in the materialization of the edit.")


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
    yield from launched(context, fleet, _editing(config))


def _editing(config: EditState) -> Action:
    def action(launch: Launch) -> tuple[metadata.Metadata, str | None]:
        storage, policies, by, report = launch.query.storage, launch.query.policies, launch.by, launch.report
        run, scratch, stopped = launch.run, launch.scratch, config.confirm_stopped
        if config.do is DoOrUndo.ABORT:
            begun = verbs.rewrite.abort(storage, policies, RewriteKind.EDIT, by, report, run=run, stopped=stopped)
            return metadata.of_aborted_rewrite(begun), None
        if config.do is DoOrUndo.UNDO:
            begun = verbs.edit.undo(storage, policies, config.undo_run, by, report, run=run, stopped=stopped)
            return {**metadata.of_aborted_rewrite(begun), "phase": "undone"}, None
        goal = edit_of(config.operator, config.delete, config.delete_keys, config.upsert)
        prepared = verbs.edit.plan(storage, policies, goal, by, config.for_spark.spark, scratch=scratch)
        if config.do is DoOrUndo.PLAN:
            return metadata.of_edit(prepared, is_done=prepared.plan.is_there), None
        prepared = verbs.edit.execute(storage, prepared, by, report, run=run, stopped=stopped, scratch=scratch)
        planned = prepared.plan
        refusal = next(map(str, prepared.refusals), None)
        shown = metadata.of_edit(prepared, is_done=refusal is None)
        return {**shown, "run": run if planned.half_done is None else planned.half_done.begun.run}, refusal

    return action
