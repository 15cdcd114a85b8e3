"""The asset `convert`: moves a checkpoint to another state store provider when a person launches it."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from statekeeper.assets.checks import NOTHING_LEFT_HALF_CONVERTED
from statekeeper.assets.launches import launched
from statekeeper.assets.partitions import QUERIES
from statekeeper.assets.rewrites import Rewrite, rewriting
from statekeeper.assets.sources import GROUP, OWNERS, STREAMING_QUERY
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine import Convert


class ConvertQuery(Rewrite):
    """The launchpad's configuration. The default only plans."""

    to: Provider = Field(
        default=Provider.ROCKSDB,
        description="The provider afterwards. HDFS_BACKED is Spark's default provider; it keeps the state in the JVM's "
        "memory.",
    )
    structure: Structure = Field(
        default=Structure.V1, description="The structure afterwards. HDFS_BACKED supports only V1."
    )


@dg.asset(
    partitions_def=QUERIES,
    deps=[STREAMING_QUERY],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "adds-files"},
    code_version="1",
    check_specs=[NOTHING_LEFT_HALF_CONVERTED],
)
def convert(
    context: dg.AssetExecutionContext, config: ConvertQuery, fleet: Fleet
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Moves the state of a stopped Spark query from Spark's default state store provider to RocksDB, or back. Launch it by
    hand; it only plans unless the launchpad sets `do: APPLY`.

    *Danger*: stop the query first. Each row of the state is encoded for the other provider; the new snapshots are read back
    and compared. Then one batch without rows is appended to the logs. APPLY completes an interrupted conversion, ABORT
    reverses it. By hand: `statekeeper convert`.
    """
    yield from launched(
        context, fleet, rewriting(config, fleet, RewriteKind.CONVERT, Convert(config.to, config.structure))
    )
