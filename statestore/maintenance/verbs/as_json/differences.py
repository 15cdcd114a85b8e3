"""Encodes a changed row."""

from __future__ import annotations

from statekeeper.statestore.contents.differences import Difference
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.records.history import Json


def of_difference(store: StorePath, row: Difference) -> Json:
    """Encode one changed row of a store."""
    return {
        "store": str(store),
        "family": row.family,
        "change": row.change.value,
        "key": row.key,
        "before": row.before,
        "after": row.after,
    }
