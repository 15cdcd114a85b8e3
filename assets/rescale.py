"""The asset `rescale`: changes the number of partitions of a checkpoint when a person launches it."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from statekeeper.assets.checks import NOTHING_LEFT_HALF_RESCALED
from statekeeper.assets.launches import launched
from statekeeper.assets.partitions import QUERIES
from statekeeper.assets.rewrites import Rewrite, rewriting
from statekeeper.assets.sources import GROUP, OWNERS, STREAMING_QUERY
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format.names import MOST_PARTITIONS
from statekeeper.statestore.maintenance.rewrites.engine import Rescale


class RescaleQuery(Rewrite):
    """The launchpad's configuration. The default only plans."""

    partitions: int = Field(
        default=0,
        ge=0,
        le=MOST_PARTITIONS,
        description="Number of partitions of each stateful operator after the rescale. Required for PLAN and APPLY.",
    )


@dg.asset(
    partitions_def=QUERIES,
    deps=[STREAMING_QUERY],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "adds-files"},
    code_version="1",
    check_specs=[NOTHING_LEFT_HALF_RESCALED],
)
def rescale(
    context: dg.AssetExecutionContext, config: RescaleQuery, fleet: Fleet
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Changes the number of partitions of a stopped query. Launch it by hand; it only plans unless the launchpad sets
    `do: APPLY`.

    *Danger*: stop the query first. Each row of the state moves to the partition of its key; the new snapshots are read
    back and compared. Then one batch without rows is appended to the logs. The state root of a job on `pipelines` gets
    no batch: its newest commit and its binding are rewritten. APPLY completes an interrupted rescale, ABORT reverses
    it. By hand: `statekeeper rescale`.
    """
    yield from launched(context, fleet, rewriting(config, fleet, RewriteKind.RESCALE, Rescale(config.partitions)))
