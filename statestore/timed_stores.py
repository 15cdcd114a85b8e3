"""Stores of a root whose rows have times, and the indexes of these times. See docs/decisions/047."""

from __future__ import annotations

from collections.abc import Sequence

from statekeeper.statestore.format import due_keys
from statekeeper.statestore.store_schema import StoreSchema

TIMERS = "timers"
TIMERS_DUE = "timers_due"
EXPIRES_AT = "expires_at"
FIRES_AT = "fires_at"


def expiries(store: str) -> str:
    """Return the name of the index of a store's expiries."""
    return f"{store}_expiries"


def index_of(stores: Sequence[StoreSchema], name: str) -> str | None:
    """Return the index of the times in a store's rows; None for a store without times. An index is its own index."""
    indexes = [store.name for store in stores if store.prefix_columns == due_keys.PREFIX_COLUMNS]
    wanted = (name, expiries(name), *([TIMERS_DUE] if name == TIMERS else []))
    return next((index for index in indexes if index in wanted), None)
