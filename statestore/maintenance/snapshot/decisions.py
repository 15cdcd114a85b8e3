"""What to do about stores, as data: the policy, actions, reasons, and the plan that they make up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from statestore.format.names import StorePath, VersionId
from statestore.format.state_conf import OURS, StateConf
from statestore.lineage import LoadPlan
from statestore.stateless import Stateless


@dataclass(frozen=True)
class SnapshotPolicy:
    """When a store deserves a snapshot: its tail has `changelogs` files, or takes `restore_seconds` to replay."""

    changelogs: int = 50
    restore_seconds: float = 10.0


class SnapshotReason(Enum):
    """Why a store gets a snapshot."""

    COUNT = "many changelogs behind the newest snapshot"
    RESTORE = "its tail takes long to restore"
    ASKED = "asked for"


class SkipReason(Enum):
    """Why a store gets none."""

    AT_HEAD = "has a snapshot at its head"
    NEAR_HEAD = "has none to come: while a query of structure V1 runs, its newest versions may still be replaced"
    SHORT_TAIL = "its tail is short"
    WHICH_SPARK = "Spark 4.0 reads other snapshots than later ones, and nothing tells which it is: say --for-spark"
    NOT_LOADABLE = "its head cannot be loaded"
    DAMAGED = (
        "its snapshot at the head is damaged. Run: statekeeper repair ROOT --apply --confirm-stopped, then this again"
    )
    SIDECAR = (
        "a sidecar without its snapshot is in the way: Spark would refuse the snapshot. Stop the query and run: "
        "statekeeper repair ROOT --apply --confirm-stopped, then this again"
    )

    @property
    def is_finding(self) -> bool:
        """Whether someone must act."""
        return self in (SkipReason.NOT_LOADABLE, SkipReason.DAMAGED, SkipReason.SIDECAR, SkipReason.WHICH_SPARK)


@dataclass(frozen=True)
class TakeSnapshot:
    """Make the snapshot of `load`'s target.

    `header`: of its metadata; None for that of the snapshot that it grows from, v1 where there is none. `name`: the version
    in another structure under whose name it is published; it is read back and compared then.
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
        """Where the snapshot is published."""
        return self.store.snapshot(self.name or self.version)

    @property
    def explained(self) -> str:
        """The reason with its figures."""
        count = len(self.load.replay)
        return f"{self.reason.value}: {count:,} changelogs, {self.tail_bytes:,} bytes since {self.load.since}"


@dataclass(frozen=True)
class LeaveAlone:
    """Make none."""

    store: StorePath
    version: VersionId
    reason: SkipReason
    detail: str

    @property
    def explained(self) -> str:
        """The reason with its figures."""
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


@dataclass(frozen=True)
class SnapshotPlan:
    """What to do about each store, worst first. `stateless`: why there is no store."""

    batch: int | None
    take: tuple[TakeSnapshot, ...]
    leave: tuple[LeaveAlone, ...]
    stateless: Stateless | None = None
