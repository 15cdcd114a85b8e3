"""What maintenance finds and does not make: the queries, their commit logs, and the ledger of their stores."""

from __future__ import annotations

import dagster as dg

from assets.partitions import QUERIES, STORES

OWNERS = ["team:streaming"]
GROUP = "maintenance"

STREAMING_QUERY = dg.AssetSpec(
    "streaming_query",
    description="A stateful Spark query that runs somewhere else. It writes changelogs and nothing but changelogs; "
    "what becomes of them is this group's work.",
    group_name="queries",
    kinds={"spark"},
    owners=OWNERS,
    partitions_def=QUERIES,
)

COMMIT_LOG = dg.AssetSpec(
    "commit_log",
    deps=[STREAMING_QUERY],
    description="`commits/` of a checkpoint: which version, under which id, each store has after each batch. Batch N makes "
    "version N+1. It is what every check compares the files with, and what wakes the sensor `changelog_tail`.",
    group_name="queries",
    kinds={"spark"},
    owners=OWNERS,
    partitions_def=QUERIES,
)

STATE_STORE = dg.AssetSpec(
    "state_store",
    deps=[COMMIT_LOG],
    description="The ledger: one partition for each store, and a materialization for each time that maintenance touched "
    "it. A store without one was not due. The truth is in the checkpoint: `statekeeper inspect QUERY`.",
    group_name="queries",
    kinds={"rocksdb"},
    owners=OWNERS,
    partitions_def=STORES,
)
