"""External assets: the queries, their commit logs, and the ledger of their stores."""

from __future__ import annotations

import dagster as dg

from statekeeper.assets.partitions import QUERIES, STORES

OWNERS = ["team:streaming"]
GROUP = "maintenance"

STREAMING_QUERY = dg.AssetSpec(
    "streaming_query",
    description="A stateful Spark query, which runs outside Dagster. It writes only changelogs; the assets of the group "
    "`maintenance` take its snapshots, audit its checkpoint and delete its garbage.",
    group_name="queries",
    kinds={"spark"},
    owners=OWNERS,
    partitions_def=QUERIES,
)

COMMIT_LOG = dg.AssetSpec(
    "commit_log",
    deps=[STREAMING_QUERY],
    description="`commits/` of a checkpoint: the version and checkpoint id of each store after each batch. Batch N writes "
    "version N+1. Every check compares the files with it, and the sensor `changelog_tail` watches it.",
    group_name="queries",
    kinds={"spark"},
    owners=OWNERS,
    partitions_def=QUERIES,
)

STATE_STORE = dg.AssetSpec(
    "state_store",
    deps=[COMMIT_LOG],
    description="The ledger: one partition for each store, and one materialization for each change that maintenance made "
    "to it. A store without a materialization was never due. `statekeeper inspect QUERY` reads the checkpoint itself.",
    group_name="queries",
    kinds={"rocksdb"},
    owners=OWNERS,
    partitions_def=STORES,
)
