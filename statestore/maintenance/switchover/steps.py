"""The progress of a switchover."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from statekeeper.statestore.clock import Clock, Ids
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.pool import WORKERS
from statekeeper.statestore.maintenance.snapshot import MEMORY_BYTES


class SwitchPhase(Enum):
    """The steps of a switchover or a rewrite. The value is shown after the step, the name is the stable code."""

    VERIFIED = "rows of the savepoint verified"
    BEGUN = "journal opened"
    CLEARED = "files that would conflict with the new structure are in quarantine"
    READ = "rows of the savepoint read"
    SNAPSHOTS = "snapshots made"
    COMMIT = "newest commit rewritten"
    APPENDED = "batch without rows appended"
    MOVED = "snapshots of the old structure are in quarantine"
    ENDED = "audit clean, journal closed"
    TAKEN_BACK = "rolled back: the checkpoint is as it was before"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a switchover or a rewrite: `done` of `of` items in this phase, which are rows, stores or files.

    `skipped_snapshots`: unusable bases of the store, with reasons.
    """

    phase: SwitchPhase
    done: int = 0
    of: int = 0
    store: StorePath | None = None
    skipped_snapshots: tuple[str, ...] = ()


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What it may use of this machine, and where time and ids come from. `process_bytes`: stores of this size together
    are rewritten by several processes."""

    scratch: Path
    clock: Clock
    ids: Ids
    workers: int = WORKERS
    memory_bytes: int = MEMORY_BYTES
    process_bytes: int = 16 * 1024 * 1024
