"""A Python state store on RocksDB in Spark's own checkpoint format, and the maintenance of such checkpoints.

`__all__` is the public API. Names outside of it may change in any release. `maintenance` has its own public functions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statekeeper.statestore.base.clock import Clock, Ids, RandomIds, SystemClock
    from statekeeper.statestore.base.errors import StatekeeperError
    from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
    from statekeeper.statestore.format.structure import Structure
    from statekeeper.statestore.storage import Entry, RequestCounts, SizeLimits, Storage, StorageSpec, open_storage
    from statekeeper.statestore.store.loading.loaded import LoadReport
    from statekeeper.statestore.store.state_store import CommitMetrics, StateStore, StoreAddress, StoreLimits

if __name__ != "statekeeper.statestore":
    raise ImportError("the package is now a part of statekeeper: import statekeeper.statestore")

__all__ = [
    "EMPTY",
    "Clock",
    "CommitMetrics",
    "Entry",
    "Ids",
    "LoadReport",
    "RandomIds",
    "RequestCounts",
    "SizeLimits",
    "StateStore",
    "StatekeeperError",
    "Storage",
    "StorageSpec",
    "StoreAddress",
    "StoreLimits",
    "StorePath",
    "Structure",
    "SystemClock",
    "VersionId",
    "open_storage",
]

_MODULES = {
    "statekeeper.statestore.base.clock": ("Clock", "Ids", "RandomIds", "SystemClock"),
    "statekeeper.statestore.base.errors": ("StatekeeperError",),
    "statekeeper.statestore.format.names": ("EMPTY", "StorePath", "VersionId"),
    "statekeeper.statestore.format.structure": ("Structure",),
    "statekeeper.statestore.store.loading.loaded": ("LoadReport",),
    "statekeeper.statestore.storage": (
        "Entry",
        "RequestCounts",
        "SizeLimits",
        "Storage",
        "StorageSpec",
        "open_storage",
    ),
    "statekeeper.statestore.store.state_store": ("CommitMetrics", "StateStore", "StoreAddress", "StoreLimits"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used. The command line starts faster without RocksDB and PyArrow."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'statestore' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
