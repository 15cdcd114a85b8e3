"""How far a switchover is, and what it may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from statestore.clock import Clock, Ids
from statestore.format.names import StorePath
from statestore.maintenance.pool import WORKERS
from statestore.maintenance.snapshot import MEMORY_BYTES


class SwitchPhase(Enum):
    """How far a switchover is."""

    BEGUN = "the journal is open"
    CLEARED = "what would be in the way is quarantined"
    SNAPSHOTS = "stores have their snapshots"
    COMMIT = "the newest commit says so"
    MOVED = "the old structure's snapshots are quarantined"
    ENDED = "the audit is clean, the journal closed"
    TAKEN_BACK = "everything is as it was"


@dataclass(frozen=True)
class Progress:
    """Where it is, and of what is counted in that phase how much is done. `skipped_snapshots`: the bases of the store that
    cannot be used, and why."""

    phase: SwitchPhase
    done: int = 0
    of: int = 0
    store: StorePath | None = None
    skipped_snapshots: tuple[str, ...] = ()


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True)
class Machine:
    """What it may use of this machine, and where time and ids come from."""

    scratch: Path
    clock: Clock
    ids: Ids
    workers: int = WORKERS
    memory_bytes: int = MEMORY_BYTES
