"""The types of a snapshot plan: policy, reasons, actions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.lineage import LoadPlan
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.stateless import Stateless
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.maintenance.records.drills import Drills, Measured, measured


@dataclass(frozen=True)
class SnapshotPolicy:
    """When a store needs a snapshot.

    changelogs               its tail has this many files
    restore_seconds          the replay of its tail takes this long
    restore_target_seconds   the replays of all tails, one after another, take longer than this: the longest tails get
                             snapshots until the rest takes at most this long; None for no target
    """

    changelogs: int = 50
    restore_seconds: float = 10.0
    restore_target_seconds: float | None = None


class SnapshotReason(Enum):
    """Why a store gets a snapshot."""

    COUNT = "many changelogs since the newest snapshot"
    RESTORE = "the replay of its tail takes too long"
    TARGET = "the replays of all tails take longer than the restore target"
    ASKED = "requested"


class SkipReason(Enum):
    """Why a store gets no snapshot."""

    AT_HEAD = "the head has a snapshot"
    NEAR_HEAD = "snapshot deferred: in structure V1, a running query may still replace the files of its newest batches"
    SHORT_TAIL = "the tail is short"
    WHICH_SPARK = (
        "Spark 4.0 and later releases read different snapshots, and the checkpoint does not show which release will run "
        "the query: add --for-spark"
    )
    NOT_LOADABLE = "the head cannot be loaded"
    DAMAGED = (
        "the snapshot at the head is damaged. Stop the query and run: statekeeper repair ROOT --apply --confirm-stopped, "
        "then this command again"
    )
    SIDECAR = (
        "a checksum file (.crc) without its snapshot, so Spark would reject a new snapshot. Stop the query and run: "
        "statekeeper repair ROOT --apply --confirm-stopped, then this command again"
    )

    @property
    def is_finding(self) -> bool:
        """Return whether a person must act."""
        return self in (SkipReason.NOT_LOADABLE, SkipReason.DAMAGED, SkipReason.SIDECAR, SkipReason.WHICH_SPARK)


@dataclass(frozen=True, kw_only=True)
class TakeSnapshot:
    """Make the snapshot of the target version of `load`.

    `header`: header of the metadata; None for the header of its base, v1 without a base. `name`: the version of the other
    structure under which the snapshot is published; such a snapshot is read back and compared.
    """

    store: StorePath
    version: VersionId
    load: LoadPlan
    tail_bytes: int
    reason: SnapshotReason
    conf: StateConf = OURS
    header: str | None = None
    name: VersionId | None = None

    @property
    def path(self) -> str:
        """The path under which the snapshot is published."""
        return self.store.snapshot(self.name or self.version)

    @property
    def explained(self) -> str:
        """The reason and its figures."""
        count = len(self.load.replay)
        return f"{self.reason.value}: {counted(count, 'changelog')}, {self.tail_bytes:,} bytes since {self.load.since}"


@dataclass(frozen=True)
class LeaveAlone:
    """Make no snapshot."""

    store: StorePath
    version: VersionId
    reason: SkipReason
    detail: str

    @property
    def explained(self) -> str:
        """The reason, after the file if the reason ends with a command, and its figures."""
        if not self.detail:
            return self.reason.value
        if self.reason is SkipReason.DAMAGED:
            return f"{self.detail}; {self.reason.value}"
        if self.reason is SkipReason.SIDECAR:
            return f"{self.detail}: {self.reason.value}"
        return f"{self.reason.value}: {self.detail}"


@dataclass(frozen=True)
class SnapshotPlan:
    """The action for each store, longest tail first. `stateless`: why the checkpoint has no store.

    `seconds_before`, `seconds_after`: predicted replay of all tails, one after another, without and with the snapshots.
    """

    batch: int | None
    take: tuple[TakeSnapshot, ...]
    leave: tuple[LeaveAlone, ...]
    stateless: Stateless | None = None
    _: KW_ONLY
    seconds_before: float = 0.0
    seconds_after: float = 0.0


REPLAY_BYTES_PER_SECOND = 8 * 1024 * 1024
"""Default until a snapshot of the checkpoint was made and measured."""


@dataclass(frozen=True, kw_only=True)
class StoreSnapshotFacts:
    """The facts about one store.

    load                how to load the version of the snapshot; None if it cannot be loaded
    problem             what is wrong with that version or with its snapshot
    stray_sidecar       sidecar with the name of the snapshot, without the snapshot
    files               files in the folder of the store; changelogs in batch logs are in none of them
    size_bytes          bytes of these files, and of the changelogs in batch logs
    """

    store: StorePath
    head: VersionId
    load: LoadPlan | None
    tail_bytes: int
    problem: str | None = None
    snapshots: int = 0
    files: int = 0
    size_bytes: int = 0
    stray_sidecar: str | None = None


@dataclass(frozen=True, kw_only=True)
class SnapshotFacts:
    """The facts about a checkpoint.

    batch                     None before the first commit
    origin                    the writer of the checkpoint
    replay_bytes_per_second   compressed changelog bytes fetched and replayed per second, measured with the newest snapshots
    conf                      encoding of the state
    written_by                Spark releases that may have written the newest batch; empty for an own root
    stateless                 why the checkpoint has no store; None before the first commit
    measured                  what drills have measured; None if the predictions do not use it
    """

    batch: int | None
    origin: Origin
    stores: tuple[StoreSnapshotFacts, ...]
    replay_bytes_per_second: float = REPLAY_BYTES_PER_SECOND
    conf: StateConf = OURS
    written_by: tuple[Spark, ...] = ()
    stateless: Stateless | None = None
    measured: Measured | None = None

    @property
    def replaces_versions(self) -> bool:
        """Return whether the running query may replace its newest versions: a Spark query in structure V1."""
        return self.origin is Origin.NATIVE and any(fact.head.id is None for fact in self.stores)

    @property
    def may_be_of_4_0(self) -> bool:
        """Return whether Spark 4.0 may run the query in structure V2: its snapshots need another header."""
        return Spark.V4_0 in self.written_by and any(fact.head.id is not None for fact in self.stores)

    def corrected_by(self, drills: Drills) -> SnapshotFacts:
        """Return the facts whose predictions use what drills have measured. Pure."""
        there = {one.store for one in self.stores}
        return replace(self, measured=measured((store, one) for store, one in drills.items() if store in there))

    def restore_seconds(self, fact: StoreSnapshotFacts) -> float:
        """Estimate how long a restart replays the tail of the store. If drills have measured it, the time to fetch the base
        is included."""
        if self.measured is None or fact.load is None:
            return fact.tail_bytes / self.replay_bytes_per_second
        return self.measured.load_seconds(
            fact.store,
            has_base=fact.load.base != EMPTY,
            changelogs=len(fact.load.replay),
            tail_bytes=fact.tail_bytes,
            bytes_per_second=self.replay_bytes_per_second,
        )
