"""The types of a snapshot plan: policy, reasons, actions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum

from statekeeper.statestore.counts import counted
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.lineage import LoadPlan
from statekeeper.statestore.stateless import Stateless


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
    NEAR_HEAD = "snapshot deferred: in structure V1, a running query may still replace its newest versions"
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
