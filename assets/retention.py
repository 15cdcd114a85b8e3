"""The asset `retention`: deletes the files that no retained version needs, by a plan."""

from itertools import groupby

import dagster as dg

from statekeeper.assets import metadata
from statekeeper.assets.checks import RETENTION_FLOOR_IS_KEPT, retention_floor_is_kept
from statekeeper.assets.launches import of_prepared, run_of
from statekeeper.assets.names import Names
from statekeeper.assets.partitions import store_key
from statekeeper.assets.sources import Sources
from statekeeper.assets.verdicts import with_fleet_verdicts
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, DeletionOutcome
from statekeeper.statestore.maintenance.verbs.audit import judged
from statekeeper.statestore.maintenance.verbs.retention import unattended


def retention(names: Names, sources: Sources, lineage: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Make the asset `retention` of a fleet."""

    @names.asset("retention", deps=[lineage], does="deletes-files", checks=[RETENTION_FLOOR_IS_KEPT])
    def made(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """Deletes the files that no retained version needs: old versions, dead branches, unreferenced SST files and old
        logs.

        *Danger*: it deletes files. It first audits the checkpoint again and deletes nothing while the audit reports errors.
        A rule keeps or deletes each file (`reasons`). It records the plan below `_statekeeper/history/` before the first
        deletion. Policy: `[roots.QUERY.retention]` in statekeeper.toml; in mode "observe" or "snapshots" it only plans. By
        hand: `statekeeper gc QUERY`.
        """
        fleet = names.fleet_in(context)
        query = fleet.open(context.partition_key)
        prepared = unattended(run_of(context, fleet, query))
        found, done = prepared.plan, prepared.made or ()
        _record(context, names, sources, query.name, done)
        after = judged(audit.gather(query.storage), query.policies)
        return dg.MaterializeResult(
            metadata=of_prepared(prepared),
            check_results=with_fleet_verdicts(context, [retention_floor_is_kept(found.plan, after, query)], names),
        )

    return made


def _record(
    context: dg.AssetExecutionContext, names: Names, sources: Sources, query: str, done: tuple[Deleted, ...]
) -> None:
    """Record the stores that lost files, or that changed after the plan, in the ledger."""
    changed = (step for step in done if step.outcome is not DeletionOutcome.READ)
    for store, steps in groupby(changed, key=lambda step: step.store):
        if store is not None:
            key = store_key(query, store)
            context.instance.add_dynamic_partitions(names.store_set, [key])
            shown = metadata.of_deleted(list(steps))
            context.log_event(dg.AssetMaterialization(sources.state_store.key, partition=key, metadata=dict(shown)))
