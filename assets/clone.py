"""The asset `clone`: copies a checkpoint to another location when a person launches it."""

import dagster as dg

from statekeeper.assets.launches import Copy, config_of, copied, options_in
from statekeeper.assets.partitions import QUERIES
from statekeeper.assets.sources import GROUP, OWNERS, STREAMING_QUERY
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.maintenance.verbs.clone import Clone


class CloneLaunch(config_of(Clone, Copy)):  # type: ignore[misc]
    """The launchpad's configuration. The default only plans."""


@dg.asset(
    partitions_def=QUERIES,
    deps=[STREAMING_QUERY],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "adds-files"},
    code_version="1",
)
def clone(context: dg.AssetExecutionContext, config: CloneLaunch, fleet: Fleet) -> dg.MaterializeResult:
    """Copies a checkpoint at one batch to another location, from which Spark or a job can start. Launch it by hand; it only
    plans unless the launchpad sets `do: APPLY`.

    The source may be running and is not changed. Inside one storage service, no state passes through this machine. By hand:
    `statekeeper clone`.
    """
    return copied(context, fleet, config, Clone(**options_in(config, Clone)))
