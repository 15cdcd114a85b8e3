"""The asset `lineage`: the proof that the files of a checkpoint are what its commit log says."""

import dagster as dg

from assets import metadata, pictures
from assets.checks import LINEAGE_CHECKS, lineage_checks
from assets.partitions import QUERIES
from assets.snapshot import snapshot
from assets.sources import GROUP, OWNERS
from resources.fleet import Fleet
from statestore.clock import SystemClock
from statestore.maintenance import passes


@dg.asset(
    partitions_def=QUERIES,
    deps=[snapshot],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "reads"},
    code_version="1",
    check_specs=LINEAGE_CHECKS,
)
def lineage(context: dg.AssetExecutionContext, fleet: Fleet) -> dg.MaterializeResult:
    """The audit of the whole checkpoint: every retained version of every store, from a base to the head, by the commit log.

    Reads only. A red blocking check ends the run here, so that nothing is deleted. The picture shows the store with the
    longest tail, or the one that is broken. By hand: `statekeeper audit QUERY`, with --deep for every byte.
    """
    query = fleet.open(context.partition_key)
    looked = passes.audit.look(query.storage, query.policies, clock=SystemClock())
    return dg.MaterializeResult(
        metadata={"picture": pictures.of_lineage(looked.facts, looked.audit), **metadata.of_audit(looked)},
        check_results=list(lineage_checks(looked.audit)),
    )
