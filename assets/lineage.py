"""The asset `lineage`: verifies the files of a checkpoint against its commit log."""

import dagster as dg

from statekeeper.assets import metadata, pictures
from statekeeper.assets.checks import LINEAGE_CHECKS, lineage_checks
from statekeeper.assets.names import Names
from statekeeper.assets.verdicts import with_fleet_verdicts
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.maintenance.verbs.audit import look


def lineage(names: Names, snapshot: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Make the asset `lineage` of a fleet."""

    @names.asset("lineage", deps=[snapshot], does="reads", checks=LINEAGE_CHECKS)
    def made(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """Audits the whole checkpoint: every retained version of every store, from its base to the head in the commit log.

        Reads only. If a blocking check is red, the run ends here and retention deletes nothing. The picture shows the first
        broken store, else the store with the longest tail. By hand: `statekeeper audit QUERY`; --deep reads every byte.
        """
        query = names.fleet_in(context).open(context.partition_key)
        looked = look(query.storage, query.policies, clock=SystemClock())
        return dg.MaterializeResult(
            metadata={"picture": pictures.of_lineage(looked.facts, looked.audit), **metadata.of_audit(looked)},
            check_results=with_fleet_verdicts(context, list(lineage_checks(looked.audit, query)), names),
        )

    return made
