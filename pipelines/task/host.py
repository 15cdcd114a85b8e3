"""Limits of the resources that an operator uses on each host."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from statekeeper.pipelines.task.emergency import EMERGENCY_CHANGELOGS
from statekeeper.statestore.store.engine.sweep import SweepLimits
from statekeeper.statestore.store.state_store import StoreLimits


@dataclass(frozen=True)
class Host:
    """Limits the resources that the operator uses on each host. A relative folder starts at the worker's directory. Local
    copies are in `statekeeper-<uid>` below it; no other user can read or write them.

    quota_bytes      limit for the local copies of all queries in the folder; the least recently used are deleted first. The
                     cached batch logs of a query use at most an eighth of it
    unused_seconds   time after which an unused local copy is deleted
    emergency_changelogs  length of a store's tail from which the job takes a snapshot itself, because maintenance did not
    """

    local_folder: str
    _: KW_ONLY
    limits: StoreLimits = field(default_factory=StoreLimits)
    quota_bytes: int = SweepLimits.quota_bytes
    unused_seconds: float = SweepLimits.unused_seconds
    emergency_changelogs: int = EMERGENCY_CHANGELOGS
