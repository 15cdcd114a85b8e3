"""What becomes of files, as data: rules, verdicts, and the plan that they make up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from statestore.format import names
from statestore.format.names import StorePath, VersionId
from statestore.maintenance.verification import Reads, SnapshotRead
from statestore.stateless import Stateless


@dataclass(frozen=True)
class RetentionPolicy:
    """What stays: the newest `versions` versions, and everything younger than `grace_seconds`; both hold.

    `history_seconds`: how long records of maintenance stay; `quarantine_seconds`: how long what was quarantined
    stays. At most `most_files` files are deleted in a run.
    """

    versions: int = 100
    grace_seconds: float = 3600.0
    history_seconds: float = 30 * 86_400.0
    quarantine_seconds: float = 30 * 86_400.0
    most_files: int = 100_000


class Rule(Enum):
    """Why a file is kept or deleted: an explanation for people."""

    RESTORES = "a retained version is restored from it"
    RUNNING = "newer than the head: an attempt may be at work"
    YOUNG = "younger than the grace period"
    LOG = "belongs to a retained batch"
    WAY_BACK = "of the structure before the switchover: no second snapshot of the new one is the floor's base yet"
    REUSABLE = "Spark may name it again in its next snapshot"
    UPLOADED = "a table that no snapshot names: Spark may be about to"
    QUARANTINE = "quarantined by a repair or a switchover, or named by a snapshot that was: the way back needs it"
    STARTS = "Spark reads it when it starts from the oldest retained batch"
    HELD = "its store cannot be judged: see the findings"
    UNKNOWN = "no file that is known"
    SUPERSEDED = "below the snapshot that the oldest retained version is restored from"
    DEAD_BRANCH = "of an attempt that was never committed"
    UNNAMED = "a table that no kept snapshot names"
    OLD_LOG = "belongs to a batch below the floor"
    OLD_RECORD = "an old record of maintenance"
    OLD_QUARANTINE = "quarantined by a repair or a switchover longer ago than retention.quarantine"
    LEFTOVER = "an unfinished file of a dead process"

    @property
    def deletes(self) -> bool:
        """Whether a file under this rule goes."""
        return self in _DELETES


_DELETES = frozenset(
    {
        Rule.SUPERSEDED,
        Rule.DEAD_BRANCH,
        Rule.UNNAMED,
        Rule.OLD_LOG,
        Rule.OLD_RECORD,
        Rule.OLD_QUARANTINE,
        Rule.LEFTOVER,
    }
)


REPLACED = frozenset({Rule.SUPERSEDED, Rule.OLD_LOG, Rule.OLD_QUARANTINE, Rule.UNNAMED})
"""Files under these rules may restore a version as long as they are there, if the base of the floor turns out not to."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one file."""

    path: str
    size_bytes: int
    rule: Rule


@dataclass(frozen=True)
class StoreVerdicts:
    """What becomes of the files of one store. `base`: what its floor version is restored from (`EMPTY`: nothing), None
    when that is not known, and then all of its chain is kept. `problem` says why."""

    store: StorePath
    base: VersionId | None
    files: tuple[Verdict, ...]
    problem: str | None = None

    @property
    def deletions(self) -> list[Verdict]:
        """In the order of deleting: zips before the tables that they name, then changelogs; the oldest first, and checksums
        behind what they are of."""
        return sorted((v for v in self.files if v.rule.deletes), key=deletion_order)


@dataclass(frozen=True)
class RetentionPlan:
    """What becomes of every file. `floor`: the oldest retained version, None when no version is known to load in every
    store; `wanted_floor`: what it would be if all stores were whole. `left_out`: deletions beyond the run's bound.
    `stateless`: why there is no store.

    `reads`: the snapshots that have to be read in full before anything is deleted, because the deletions leave nothing that
    replaces them; `reads_on_record`: the record of earlier reads, without files that are gone."""

    is_own: bool
    head: int | None
    floor: int | None
    wanted_floor: int
    stores: tuple[StoreVerdicts, ...]
    logs: tuple[Verdict, ...]
    findings: tuple[str, ...]
    left_out: int = 0
    stateless: Stateless | None = None
    reads: tuple[SnapshotRead, ...] = ()
    reads_on_record: Reads = field(default_factory=dict)

    @property
    def read_bytes(self) -> int:
        """How many bytes have to be read before anything is deleted."""
        return sum(read.size_bytes for read in self.reads)

    @property
    def verdicts(self) -> Iterator[Verdict]:
        """All of them."""
        for store in self.stores:
            yield from store.files
        yield from self.logs

    @property
    def deletions(self) -> list[Verdict]:
        """All files that go, in order: the stores' files first, then the logs."""
        of_stores = [verdict for store in self.stores for verdict in store.deletions]
        return of_stores + [verdict for verdict in self.logs if verdict.rule.deletes]


def deletion_order(verdict: Verdict) -> tuple[int, int, str]:
    """Sidecars sort behind their files: `1.zip`, `1.zip.crc`."""
    place = names.parse_store_path(verdict.path.removesuffix(names.SIDECAR))
    if place is None:
        return (1, 0, verdict.path)
    _, file = place
    return (0 if file.kind is names.StoreFileKind.SNAPSHOT else 2, file.version.version, verdict.path)
