"""The limits of a store on its host."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.lineage_ceiling import LINEAGE_STOP_BYTES
from statekeeper.statestore.loading.loader import AHEAD, AheadLimits
from statekeeper.statestore.storage.parts import PART_BYTES


@dataclass(frozen=True, kw_only=True)
class StoreLimits:
    """The limits of a store on its host.

    block_cache_bytes     RocksDB's block cache, unless stores share one
    lock_timeout_seconds  longest wait for another process that moves the same local copy
    part_bytes            size of the parts in which a changelog is uploaded
    lineage_bytes         a version with a longer lineage is not loaded: Spark could soon not read the next changelogs
    ahead                 changes that a load keeps in memory over the local copy
    """

    block_cache_bytes: int = 32 * 1024 * 1024
    lock_timeout_seconds: float = 30.0
    part_bytes: int = PART_BYTES
    lineage_bytes: int = LINEAGE_STOP_BYTES
    ahead: AheadLimits = AHEAD
