"""The facts for a snapshot plan."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.lineage import LoadPlan
from statekeeper.statestore.origin import Origin
from statekeeper.statestore.stateless import Stateless

REPLAY_BYTES_PER_SECOND = 8 * 1024 * 1024
"""Default until a snapshot of the checkpoint was made and measured."""


@dataclass(frozen=True, kw_only=True)
class StoreSnapshotFacts:
    """The facts about one store.

    load                how to load the version of the snapshot; None if it cannot be loaded
    problem             what is wrong with that version or with its snapshot
    stray_sidecar       sidecar with the name of the snapshot, without the snapshot
    files, size_bytes   all files in the folder of the store
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
    """

    batch: int | None
    origin: Origin
    stores: tuple[StoreSnapshotFacts, ...]
    replay_bytes_per_second: float = REPLAY_BYTES_PER_SECOND
    conf: StateConf = OURS
    written_by: tuple[Spark, ...] = ()
    stateless: Stateless | None = None

    @property
    def replaces_versions(self) -> bool:
        """Return whether the running query may replace its newest versions: a Spark query in structure V1."""
        return self.origin is Origin.NATIVE and any(fact.head.id is None for fact in self.stores)

    @property
    def may_be_of_4_0(self) -> bool:
        """Return whether Spark 4.0 may run the query in structure V2: its snapshots need another header."""
        return Spark.V4_0 in self.written_by and any(fact.head.id is not None for fact in self.stores)

    def restore_seconds(self, fact: StoreSnapshotFacts) -> float:
        """Estimate how long a restart replays the tail of the store."""
        return fact.tail_bytes / self.replay_bytes_per_second
