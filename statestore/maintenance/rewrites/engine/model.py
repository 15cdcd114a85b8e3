"""The types that all rewrites share: the facts about a stopped query, the step of a store, the plan, the progress."""

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
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteJournal, RewriteKind
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.executors import MEMORY_BYTES, Executor, LocalExecutor
from statekeeper.statestore.maintenance.upkeep.audit import Audit


class Source(Enum):
    """The source of a store's snapshot in the other structure."""

    REUSED = "the existing snapshot at the head"
    BUILT = "a load of the head"


@dataclass(frozen=True, kw_only=True)
class StoppedStore:
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
class StoppedQuery:
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
    stores: tuple[StoppedStore, ...] = ()
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
    half_done: RewriteJournal | None = None
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
class Plan:
    """What the plans of all rewrites have. If there are `refusals`, no step is executed.

    batch        the newest committed batch; of an interrupted run, that of its start
    begun        the newest batch in the offset log; -1 if it is empty
    commit       the newest commit, as text; the execution is refused if it has changed
    header       the header of the new snapshots
    is_there     the goal is reached already
    half_done    the journal of an interrupted run, which this plan completes
    local_bytes  upper bound of the local disk
    seconds      estimated duration
    """

    rewrite: RewriteKind
    batch: int | None
    origin: Origin = Origin.NATIVE
    begun: int = -1
    commit: str = ""
    header: str = "v1"
    refusals: tuple[str, ...] = ()
    is_there: bool = False
    half_done: RewriteJournal | None = None
    local_bytes: int = 0
    seconds: float = 0.0

    @property
    def is_in_batch(self) -> bool:
        """Return whether a batch is started but not committed: it failed, or it is running."""
        return self.batch is not None and self.begun > self.batch


class RewritePhase(Enum):
    """The steps of a rewrite. The value is shown after the step, the name is the stable code."""

    VERIFIED = "rows of the savepoint verified"
    BEGUN = "journal opened"
    CLEARED = "files that would conflict with the new structure are in quarantine"
    READ = "rows of the savepoint read"
    SORTED = "rows sorted by partition"
    BUILT = "snapshots built"
    SNAPSHOTS = "snapshots made"
    COMMIT = "newest commit rewritten"
    APPENDED = "batch without rows appended"
    MIGRATED = "logs written"
    MOVED = "snapshots of the old structure are in quarantine"
    ENDED = "audit clean, journal closed"
    TAKEN_BACK = "rolled back: the checkpoint is as it was before"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a rewrite: `done` of `of` items in this phase, which are rows, stores or files.

    `skipped_snapshots`: unusable bases of the store, with reasons.
    """

    phase: RewritePhase
    done: int = 0
    of: int = 0
    store: StorePath | None = None
    skipped_snapshots: tuple[str, ...] = ()


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What it may use of this machine, and where time and ids come from. `process_bytes`: stores of this size together
    are rewritten by several processes; `cluster`: runs the tasks elsewhere."""

    scratch: Path
    clock: Clock
    ids: Ids
    workers: int = WORKERS
    memory_bytes: int = MEMORY_BYTES
    process_bytes: int = PROCESS_BYTES
    cluster: Executor | None = None

    @property
    def executor(self) -> Executor:
        """Runs the tasks of the rewrite."""
        return self.cluster or LocalExecutor(
            scratch=self.scratch,
            clock=self.clock,
            ids=self.ids,
            memory_bytes=self.memory_bytes,
            workers=self.workers,
        )
