"""The types of a switchover: facts, steps, and the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.workers import PROCESS_BYTES, WORKERS
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.lineage import LoadPlan
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import OpenJournal
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep.audit import Audit
from statekeeper.statestore.maintenance.upkeep.snapshot import MEMORY_BYTES


class Source(Enum):
    """The source of a store's snapshot in the other structure."""

    REUSED = "the existing snapshot at the head"
    BUILT = "a load of the head"


@dataclass(frozen=True, kw_only=True)
class StoreSwitchFacts:
    """The facts about one store at the newest commit.

    `load`: how to load its head; None if it cannot be loaded, and `problem` states the reason; `base_bytes`: zip and tables
    of the base; `tail_bytes`: the tail.
    """

    store: StorePath
    head: VersionId
    load: LoadPlan | None
    base_bytes: int
    tail_bytes: int
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class SwitchoverFacts:
    """The facts about a checkpoint. `batch` and `structure` are None before the first commit.

    stores           in the order of the commit log
    commit           the newest commit, as text
    is_plain_commit  whether the commit has only known fields
    begun            the newest batch in the offset log; -1 if it is empty
    pending          files of own jobs' attempts at the next batch, in its structure before the switchover
    others           such files of attempts in the other structure, which ran during a switchover
    former           the versions from which these attempts started; empty if they are unknown
    partitions       number of partitions in the newest offsets; None if they do not contain it
    repartitions     whether the next batch has another number of partitions
    audit            None while a switchover is half done; it was clean before the switchover
    free_bytes       of the disk of the folder `scratch`
    """

    origin: Origin
    batch: int | None = None
    structure: Structure | None = None
    stores: tuple[StoreSwitchFacts, ...] = ()
    files: Mapping[StorePath, StoreFiles] | None = None
    commit: str = ""
    is_plain_commit: bool = True
    begun: int = -1
    pending: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    former: Mapping[StorePath, VersionId] = field(default_factory=dict)
    partitions: int | None = None
    repartitions: bool = False
    conf: StateConf = OURS
    may_be_of_4_0: bool = False
    audit: Audit | None = None
    half_done: OpenJournal | None = None
    free_bytes: int = 0
    scratch: str = ""
    replay_bytes_per_second: float = 1.0


@dataclass(frozen=True, kw_only=True)
class StoreStep:
    """The planned step for one store. `read_bytes`, `write_bytes`: estimates of the downloaded and uploaded bytes; `name`:
    the version of the new snapshot, None for a new id."""

    store: StorePath
    head: VersionId
    load: LoadPlan
    source: Source
    read_bytes: int
    write_bytes: int
    tail_bytes: int
    name: VersionId | None = None

    @property
    def explained(self) -> str:
        """The source of the snapshot, with figures."""
        replayed = f": {counted(len(self.load.replay), 'changelog')}, {self.tail_bytes:,} bytes since {self.load.since}"
        return f"{self.source.value}{replayed if self.load.replay else ''}"


@dataclass(frozen=True, kw_only=True)
class SwitchPlan:
    """The steps of a switchover, in order: quarantine the files `first`, make the snapshots of the `stores`, rewrite the
    newest commit, quarantine the files `last`. If there are `refusals`, no step is executed.

    is_there      the checkpoint has the structure `to` already
    half_done     the journal of an interrupted run, which this plan completes
    header        header of the snapshots' metadata
    stays_files, stays_bytes   files of the old structure that are kept
    local_bytes   upper bound of the local disk
    seconds       estimated duration of the replays
    commit        the newest commit, as text; the execution is refused if it has changed
    begun         the newest batch in the offset log; -1 if it is empty
    """

    to: Structure
    batch: int | None
    header: str
    stores: tuple[StoreStep, ...]
    first: tuple[str, ...]
    last: tuple[str, ...]
    refusals: tuple[str, ...] = ()
    is_there: bool = False
    half_done: OpenJournal | None = None
    conf: StateConf = OURS
    origin: Origin = Origin.NATIVE
    stays_files: int = 0
    stays_bytes: int = 0
    local_bytes: int = 0
    seconds: float = 0.0
    commit: str = ""
    begun: int = -1

    @property
    def is_in_batch(self) -> bool:
        """Return whether a batch is started but not committed: it failed, or it is running."""
        return self.batch is not None and self.begun > self.batch

    @property
    def start_with(self) -> str:
        """The conf with which to start the query afterwards, or the argument of the own job."""
        if self.origin is Origin.OWN:
            return f"structure=Structure.{self.to.name}"
        return " ".join(f"{name}={value}" for name, value in self.to.conf.items())

    @property
    def read_bytes(self) -> int:
        """Bytes to download for all stores."""
        return sum(step.read_bytes for step in self.stores)

    @property
    def write_bytes(self) -> int:
        """Bytes to upload for all stores."""
        return sum(step.write_bytes for step in self.stores)


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
    process_bytes: int = PROCESS_BYTES
