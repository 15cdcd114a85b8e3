"""What a plan of snapshots is made from."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.format.names import StorePath, VersionId
from statestore.format.sparks import Spark
from statestore.format.state_conf import OURS, StateConf
from statestore.lineage import LoadPlan
from statestore.stateless import Stateless

REPLAY_BYTES_PER_SECOND = 8 * 1024 * 1024
"""Until a snapshot of the checkpoint was made and measured."""


@dataclass(frozen=True)
class StoreSnapshotFacts:
    """One store. `load` says how the version is loaded of which a snapshot may be made, None when it cannot be; `problem`
    what is wrong with it, or with its snapshot; `stray_sidecar` a sidecar under the name of the snapshot, which itself is
    not there. `files` and `size_bytes` are of all that lies in the store's folder."""

    store: StorePath
    head: VersionId
    load: LoadPlan | None
    tail_bytes: int
    problem: str | None = None
    snapshots: int = 0
    files: int = 0
    size_bytes: int = 0
    stray_sidecar: str | None = None


@dataclass(frozen=True)
class SnapshotFacts:
    """The facts about a checkpoint. `batch` is None before the first commit; `is_own`: a root of our own jobs.

    `replay_bytes_per_second`: bytes of changelogs, as they lie in storage, fetched and replayed a second; as measured
    when the newest snapshots were made. `conf`: what the query's state is written by. `written_by`: the
    Sparks that may have written the newest batch, more than one where nothing tells; none for a root of our own.
    `stateless`: why there is no store; None where there are some, and before the first commit.
    """

    batch: int | None
    is_own: bool
    stores: tuple[StoreSnapshotFacts, ...]
    replay_bytes_per_second: float = REPLAY_BYTES_PER_SECOND
    conf: StateConf = OURS
    written_by: tuple[Spark, ...] = ()
    stateless: Stateless | None = None

    @property
    def replaces_versions(self) -> bool:
        """Whether the query, while it runs, may still replace its newest versions: one of Spark's, in structure V1."""
        return not self.is_own and any(fact.head.id is None for fact in self.stores)

    @property
    def may_be_of_4_0(self) -> bool:
        """Whether Spark 4.0 may run the query, in structure V2, whose snapshots it reads with a header of its own."""
        return Spark.V4_0 in self.written_by and any(fact.head.id is not None for fact in self.stores)

    def restore_seconds(self, fact: StoreSnapshotFacts) -> float:
        """How long a restart of the store waits for its tail, as far as one can tell beforehand."""
        return fact.tail_bytes / self.replay_bytes_per_second
