"""Who executes a verb."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from statekeeper.statestore.clock import Clock, Ids
from statekeeper.statestore.maintenance.lease import BEAT_SECONDS
from statekeeper.statestore.maintenance.quiet import QUIET_SECONDS
from statekeeper.statestore.maintenance.switchover import Machine


@dataclass(frozen=True)
class Maintainer:
    """The process that executes a verb.

    `holder` names the process in the lease; `clock` and `ids` are its sources of time and of new ids; `quiet_seconds`: how
    long a checkpoint must not change before the query counts as stopped; `beat_seconds`: time between two renewals of a
    lease or hold by work whose steps may take hours.
    """

    holder: str
    clock: Clock
    ids: Ids
    quiet_seconds: float = QUIET_SECONDS
    _: KW_ONLY
    beat_seconds: float = BEAT_SECONDS

    def machine(self, *, scratch: Path, workers: int, memory_bytes: int) -> Machine:
        """Return what one execution may use, with the clock and the ids of this process."""
        return Machine(scratch=scratch, clock=self.clock, ids=self.ids, workers=workers, memory_bytes=memory_bytes)
