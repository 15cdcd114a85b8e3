"""Who executes a verb."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.clock import Clock, Ids
from statestore.maintenance.quiet import QUIET_SECONDS


@dataclass(frozen=True)
class Maintainer:
    """The process that executes a verb.

    `holder` names the process in the lease; `clock` and `ids` are its sources of time and of new ids; `quiet_seconds`: how
    long a checkpoint must not change before the query counts as stopped.
    """

    holder: str
    clock: Clock
    ids: Ids
    quiet_seconds: float = QUIET_SECONDS
