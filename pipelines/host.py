"""What an operator may use on the machines that it runs on."""

from __future__ import annotations

from dataclasses import dataclass, field

from statestore.engine.sweep import SweepLimits
from statestore.store import StoreLimits


@dataclass(frozen=True)
class Host:
    """What the operator may use on each host. A relative folder is taken from the worker's own directory. The copies lie in
    `statekeeper-<uid>` below it, which no other user may read or write.

    quota_bytes      what the copies of all queries in the folder may take together; the least recently used go first
    unused_seconds   how long a copy stays that nobody asks for
    """

    local_folder: str
    limits: StoreLimits = field(default_factory=StoreLimits)
    quota_bytes: int = SweepLimits.quota_bytes
    unused_seconds: float = SweepLimits.unused_seconds
