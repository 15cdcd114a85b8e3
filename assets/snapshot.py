"""The asset `snapshot`: compacts changelogs into snapshots, so that a restart replays few of them."""

import dagster as dg

from statekeeper.assets import metadata
from statekeeper.assets.checks import TAIL_IS_SHORT, tail_is_short
from statekeeper.assets.launches import of_prepared, run_of
from statekeeper.assets.names import Names
from statekeeper.assets.partitions import store_key
from statekeeper.assets.sources import Sources
from statekeeper.assets.verdicts import with_fleet_verdicts
from statekeeper.resources.fleet import OpenedQuery
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.maintenance.upkeep.snapshot import Taken
from statekeeper.statestore.maintenance.verbs.contract import prepare, unattended
from statekeeper.statestore.maintenance.verbs.snapshot import PlannedSnapshots, Snapshot, Snapshots
from statekeeper.statestore.root.attempts import metrics_at
from statekeeper.statestore.storage.query_metrics import QueryMetrics


def snapshot(names: Names, sources: Sources) -> dg.AssetsDefinition:
    """Make the asset `snapshot` of a fleet."""

    @names.asset("snapshot", deps=[sources.commit_log], does="adds-files", checks=[TAIL_IS_SHORT])
    def made(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """Takes snapshots, in Spark's own format, of the stores with a long tail, the longest tail first.

        It adds files and overwrites none, so it is safe while the query runs; a running job starts its lineage at the new
        snapshots. A store with a short tail gets no snapshot. `reasons` lists the decision for each store with its figures.
        `job` shows the requests, latencies and price that a Statekeeper job recorded.
        Policy: `[roots.QUERY.snapshot]` in statekeeper.toml. By hand: `statekeeper snapshot QUERY`.
        """
        fleet = names.fleet_in(context)
        query = fleet.open(context.partition_key)
        prepared = unattended(prepare(Snapshot(), run_of(context, fleet, query)))
        found, done = prepared.plan, prepared.made or Snapshots()
        _record(context, names, sources, query.name, done.taken)
        shown = {**of_prepared(prepared), **metadata.of_job(_metrics(query, found), query.prices)}
        if done.failed:
            action, error = done.failed[0]
            raise dg.Failure(
                f"{len(done.failed)} snapshots failed. First: store {action.store}: {error}", metadata=shown
            )
        results = with_fleet_verdicts(context, [tail_is_short(found, done, query)], names)
        return dg.MaterializeResult(metadata=shown, check_results=results)

    return made


def _metrics(query: OpenedQuery, found: PlannedSnapshots) -> QueryMetrics | None:
    """Read the figures that the job recorded; None for a native query, which records none."""
    batch = found.plan.batch
    return metrics_at(query.storage, batch) if found.gathered.origin is Origin.OWN and batch is not None else None


def _record(
    context: dg.AssetExecutionContext, names: Names, sources: Sources, query: str, taken: tuple[Taken, ...]
) -> None:
    """Record the stores that got a snapshot in the ledger."""
    keys = [store_key(query, one.action.store) for one in taken]
    context.instance.add_dynamic_partitions(names.store_set, sorted(keys))
    for key, one in zip(keys, taken, strict=True):
        context.log_event(
            dg.AssetMaterialization(sources.state_store.key, partition=key, metadata=dict(metadata.of_taken(one)))
        )
