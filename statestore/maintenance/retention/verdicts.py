"""The types of a retention plan: policy, rules, verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.holds import Hold
from statekeeper.statestore.maintenance.verification import Reads, SnapshotRead
from statekeeper.statestore.origin import Origin
from statekeeper.statestore.stateless import Stateless
from statekeeper.statestore.storage import UnfinishedUpload


@dataclass(frozen=True, kw_only=True)
class RetentionPolicy:
    """What to retain: the newest `versions` versions and all files younger than `grace_seconds`.

    `history_seconds`: minimum age of a maintenance record before it is deleted; `quarantine_seconds`: the same for
    quarantined files. A run deletes at most `most_files` files.
    """

    versions: int = 100
    grace_seconds: float = 3600.0
    history_seconds: float = 30 * 86_400.0
    quarantine_seconds: float = 30 * 86_400.0
    most_files: int = 100_000


class Rule(Enum):
    """Why a file is kept or deleted. The value is the explanation for people, the name is the stable code."""

    RESTORES = "a retained version is restored from this file"
    RUNNING = "newer than the head; its batch may be running"
    YOUNG = "younger than the grace period (maintenance records: younger than retention.history)"
    LOG = "belongs to a retained batch"
    WAY_BACK = "written before the switchover or conversion; kept until the retention floor reaches a later snapshot"
    REUSABLE = "the next snapshot of Spark may reference this table again"
    UPLOADED = "no snapshot references this table yet, but Spark may be writing a snapshot that does"
    QUARANTINE = "in quarantine, or referenced by a quarantined snapshot; needed to undo the repair or the switchover"
    PARTITION = (
        "of a partition that a rescale removed; kept until no retained batch has it and a second snapshot exists"
    )
    STARTS = "Spark reads this file when it starts from the oldest retained batch"
    HELD = "kept because of a finding; run: statekeeper audit ROOT"
    UNKNOWN = "unrecognized file"
    SUPERSEDED = "older than the snapshot from which the oldest retained version is restored"
    DEAD_BRANCH = "written by an attempt that was never committed"
    UNNAMED = "no retained snapshot references this table"
    REMOVED = "belongs to a partition that a rescale removed; no retained batch has the partition"
    OLD_LOG = "belongs to a batch older than the retained ones"
    OLD_RECORD = "old maintenance record"
    OLD_QUARANTINE = "in quarantine for longer than retention.quarantine"
    LEFTOVER = "unfinished upload of a dead process"

    @property
    def deletes(self) -> bool:
        """Return whether a file under this rule is deleted."""
        return self in _DELETES


_DELETES = frozenset(
    {
        Rule.SUPERSEDED,
        Rule.DEAD_BRANCH,
        Rule.UNNAMED,
        Rule.REMOVED,
        Rule.OLD_LOG,
        Rule.OLD_RECORD,
        Rule.OLD_QUARANTINE,
        Rule.LEFTOVER,
    }
)


REPLACED = frozenset({Rule.SUPERSEDED, Rule.OLD_LOG, Rule.OLD_QUARANTINE, Rule.UNNAMED, Rule.REMOVED})
"""Files under these rules may restore a version if the base of the floor turns out to be damaged."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about one file, or about an unfinished upload."""

    path: str
    size_bytes: int
    rule: Rule
    upload: UnfinishedUpload | None = None


@dataclass(frozen=True)
class StoreVerdicts:
    """The verdicts on the files of one store.

    `base`: the snapshot from which the floor is restored; `EMPTY` if no snapshot is needed; None if the base is unknown. If
    it is unknown, the whole chain is kept, and `problem` states the reason.
    """

    store: StorePath
    base: VersionId | None
    files: tuple[Verdict, ...]
    problem: str | None = None

    @property
    def deletions(self) -> list[Verdict]:
        """Return the files to delete, in order: zips before their tables, then changelogs; the oldest first; a checksum
        after its file."""
        return sorted((v for v in self.files if v.rule.deletes), key=deletion_order)


@dataclass(frozen=True, kw_only=True)
class KeptBatchLogs:
    """Batch logs that retention keeps. One store that needs a changelog keeps the whole object (as in FLIP-306).

    files, size_bytes   objects and their bytes
    live_bytes          bytes of the changelogs in them that a store needs
    laggard             the store with the oldest base, if it keeps objects that not every store needs
    of_laggard          number of these objects
    """

    files: int
    size_bytes: int
    live_bytes: int
    laggard: StorePath | None
    of_laggard: int


@dataclass(frozen=True, kw_only=True)
class RetentionPlan:
    """The verdicts on all files.

    floor             the oldest retained version; None if no version is known to load in every store
    wanted_floor      the floor if all stores were intact
    left_out          number of deletions beyond the bound of a run
    stateless         why the checkpoint has no store
    reads             snapshots to read in full before the first deletion, because no file can replace them afterwards
    reads_on_record   the record of earlier reads, without deleted files
    batch_logs        the kept batch logs; None if there are none
    holds             the batches that other runs read, and that lower the floor
    removed           the verdicts on the files of partitions that a rescale removed
    """

    origin: Origin
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
    batch_logs: KeptBatchLogs | None = None
    holds: tuple[Hold, ...] = ()
    removed: tuple[StoreVerdicts, ...] = ()

    @property
    def read_bytes(self) -> int:
        """Return the number of bytes to read before the first deletion."""
        return sum(read.size_bytes for read in self.reads)

    @property
    def verdicts(self) -> Iterator[Verdict]:
        """Yield the verdicts on all files."""
        for store in (*self.stores, *self.removed):
            yield from store.files
        yield from self.logs

    @property
    def deletions(self) -> list[Verdict]:
        """Return all files to delete, in order: the files of the stores, then the logs."""
        of_stores = [verdict for store in (*self.stores, *self.removed) for verdict in store.deletions]
        return of_stores + [verdict for verdict in self.logs if verdict.rule.deletes]

    def bounded(self, most_files: int) -> RetentionPlan:
        """Limit the plan to `most_files` deletions; the next run deletes the others."""
        order = self.deletions
        if len(order) <= most_files:
            return self
        # The order puts each zip before its tables, so the cut never deletes a table before the zip that names it.
        late = {verdict.path for verdict in order[most_files:]}
        stores, removed = (
            tuple(replace(one, files=tuple(v for v in one.files if v.path not in late)) for one in some)
            for some in (self.stores, self.removed)
        )
        logs = tuple(verdict for verdict in self.logs if verdict.path not in late)
        return replace(self, stores=stores, removed=removed, logs=logs, left_out=len(late))


def deletion_order(verdict: Verdict) -> tuple[int, int, str]:
    """Return the sort key for deletions. A sidecar sorts after its file: `1.zip`, `1.zip.crc`."""
    place = names.parse_store_path(verdict.path.removesuffix(names.SIDECAR))
    if place is None:
        return (1, 0, verdict.path)
    _, file = place
    return (0 if file.kind is names.StoreFileKind.SNAPSHOT else 2, file.version.version, verdict.path)
