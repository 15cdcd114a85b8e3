"""What a partition is: one streaming query; and, in the ledger, one store.

A run costs seconds and an event some hundredths of one, and a query has hundreds of stores: so a run is for a query, and
stores are worked on inside of it.
"""

from __future__ import annotations

import dagster as dg

from statestore.format.names import StorePath

QUERY_SET = "streaming_query"
STORE_SET = "state_store"
"""The names of the two sets of partitions in Dagster's storage."""

QUERIES = dg.DynamicPartitionsDefinition(name=QUERY_SET)
"""Found by the sensor `changelog_tail`; names as in `statekeeper.toml`."""

STORES = dg.DynamicPartitionsDefinition(name=STORE_SET)
"""Stores that maintenance has touched: `<query>:<operator>-<partition>[-<store name>]`."""

QUERY_TAG = "dagster/partition"
"""The tag of a run that says its partition."""


def store_key(query: str, store: StorePath) -> str:
    """The partition of a store. Numbers have leading zeros, so that they stand in order."""
    named = "" if store.store == "default" else f"-{store.store}"
    return f"{query}:{store.operator:02d}-{store.partition:05d}{named}"
