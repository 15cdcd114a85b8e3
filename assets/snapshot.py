"""The asset `snapshot`: changelogs become snapshots, so that a restart replays little."""

import dagster as dg

from assets import metadata
from assets.checks import TAIL_IS_SHORT, tail_is_short
from assets.partitions import QUERIES, STORE_SET, store_key
from assets.sources import COMMIT_LOG, GROUP, OWNERS, STATE_STORE
from resources.fleet import Fleet
from resources.worker import holder
from statestore.clock import RandomIds, SystemClock
from statestore.maintenance import passes
from statestore.maintenance.passes import Maintainer
from statestore.maintenance.snapshot import Taken


@dg.asset(
    partitions_def=QUERIES,
    deps=[COMMIT_LOG],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "adds-files"},
    code_version="1",
    check_specs=[TAIL_IS_SHORT],
)
def snapshot(context: dg.AssetExecutionContext, fleet: Fleet) -> dg.MaterializeResult:
    """Snapshots, in Spark's own format, of the stores whose tail of changelogs is long, the longest first.

    It only adds files and overwrites none, so it is safe while the query runs; the running job begins its lineage at the
    new snapshots. A store whose tail is short is left alone: `why` says of each store what was decided and by which
    figures. Policies: `[roots.QUERY.snapshot]` in statekeeper.toml. By hand: `statekeeper snapshot QUERY`.
    """
    query = fleet.open(context.partition_key)
    by = Maintainer(holder(context.run.run_id), SystemClock(), RandomIds())
    done = passes.snapshot.unattended(query.storage, query.policies, by, scratch=fleet.scratch_folder())
    _enter(context, query.name, done.taken)
    shown = metadata.of_snapshots(done)
    if done.failed:
        action, error = done.failed[0]
        raise dg.Failure(f"{len(done.failed)} snapshots failed, the first of {action.store}: {error}", metadata=shown)
    return dg.MaterializeResult(metadata=shown, check_results=[tail_is_short(done, query.policies.snapshot)])


def _enter(context: dg.AssetExecutionContext, query: str, taken: tuple[Taken, ...]) -> None:
    """Into the ledger: the stores that got a snapshot."""
    keys = [store_key(query, one.action.store) for one in taken]
    context.instance.add_dynamic_partitions(STORE_SET, sorted(keys))
    for key, one in zip(keys, taken, strict=True):
        context.log_event(
            dg.AssetMaterialization(STATE_STORE.key, partition=key, metadata=dict(metadata.of_taken(one)))
        )
