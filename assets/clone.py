"""The asset `clone`: copies a checkpoint to another location when a person launches it."""

import dagster as dg

from statekeeper.assets.launches import Copy, config_of, copied, options_in
from statekeeper.assets.names import Names
from statekeeper.assets.sources import Sources
from statekeeper.statestore.maintenance.verbs.clone import Clone


class CloneLaunch(config_of(Clone, Copy)):  # type: ignore[misc]
    """The launchpad's configuration. The default only plans."""


def clone(names: Names, sources: Sources) -> dg.AssetsDefinition:
    """Make the asset `clone` of a fleet."""

    @names.asset("clone", deps=[sources.streaming_query], does="adds-files")
    def made(context: dg.AssetExecutionContext, config: CloneLaunch) -> dg.MaterializeResult:
        """Copies a checkpoint at one batch to another location, from which Spark or a job can start. Launch it by hand; it
        only plans unless the launchpad sets `do: APPLY`.

        The source may be running and is not changed. Inside one storage service, no state passes through this machine. By
        hand: `statekeeper clone`.
        """
        return copied(context, names.fleet_in(context), config, Clone(**options_in(config, Clone)))

    return made
