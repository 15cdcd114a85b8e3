"""The partitions: one per streaming query and, in the ledger, one per store.

A run costs seconds, an event costs hundredths of a second, and a query has hundreds of stores. So a run maintains one query
and all its stores.
"""

from __future__ import annotations

import dagster as dg

from statekeeper.statestore.format.names import StorePath

QUERY_SET = "streaming_query"
STORE_SET = "state_store"
"""Names of the two dynamic partition sets in Dagster's storage, without the prefix of the fleet."""

QUERY_TAG = "dagster/partition"
"""The tag of a run with its partition."""

REASON_TAG = "statekeeper/reason"
"""The tag of a run with the reason for its request."""

ALONE_TAG = "statekeeper/alone"
"""The tag of a run that reads for hours. dagster.yaml can limit the runs with the same value to one at a time."""

PRIORITY_TAG = "dagster/priority"
"""The tag of a run with its place in the queue. Without it, a run has the priority 0; a higher one starts first."""

ACTIVE = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
"""The statuses of a run that is queued or running."""


ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
"""The statuses of a run that has ended."""


def store_key(query: str, store: StorePath) -> str:
    """The partition of a store. Its numbers have leading zeros, so that Dagster sorts them."""
    named = "" if store.store == "default" else f"-{store.store}"
    return f"{query}:{store.operator:02d}-{store.partition:05d}{named}"
