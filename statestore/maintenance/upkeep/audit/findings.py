"""Result types of an audit: findings, worst first, and the state of each store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from statekeeper.statestore.base import enum_codes
from statekeeper.statestore.checkpoint.stateless import Stateless
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.upkeep.audit.facts import Decoded
from statekeeper.statestore.storage import RequestCounts


class Severity(IntEnum):
    """The severity of a finding; the worst sorts first."""

    ERROR = 0
    """State is lost or wrong, or the query cannot start."""
    WARNING = 1
    """Needs attention; no state is lost."""


class FindingKind(Enum):
    """Kinds of findings, with the text that users read. Codes are stable."""

    COMMIT_MISSING = "the commit log has a gap"
    COMMIT_UNREADABLE = "a commit cannot be read"
    COMMIT_UNKNOWN_ID = "a commit names a checkpoint id that no state file has"
    COMMIT_AT_ODDS = "a commit contradicts the operator metadata"
    COMMITS_MIXED = "the commit log mixes structures V1 and V2 without a switchover"
    HALF_SWITCHED = "a switchover or another rewrite is incomplete"
    FORMAT_FLIPPED = "the query was started with the wrong checkpoint structure"
    PARTITIONS_CHANGED = "the query was started with another number of partitions"
    OFFSETS_MISSING = "a committed batch has no offsets"
    OFFSETS_UNREADABLE = "an offset log entry cannot be read"
    OFFSETS_AT_ODDS = "an offset log entry has other settings than the state"
    SOURCE_LOG_DAMAGED = "the log of a file source has lost entries"
    LOG_IN_THE_WAY = "a stale Hadoop checksum blocks a log entry"
    OFFSETS_AHEAD = "the offset log is more than one batch ahead of the commit log"
    DESCRIPTION_MISSING = "a metadata file is missing"
    DESCRIPTION_UNREADABLE = "a metadata file cannot be read"
    DESCRIPTION_AT_ODDS = "metadata files contradict each other"
    DESCRIPTION_MOVED = "operator metadata refers to another location"
    DESCRIPTION_CHANGED = "a log or metadata file was modified after Spark wrote it"
    TWO_OPERATORS = "two operators have the same id"
    STORE_UNKNOWN_FORMAT = "a store has an unsupported format"
    STORE_NOT_AUDITED = "a store cannot be audited"
    STORE_UNDESCRIBED = "a store has files but no metadata"
    BATCHES_SKIPPED = "Spark skipped batches after a rewind, because the log of its file sink has them"
    CHANGELOG_MISSING = "a changelog is missing"
    CHANGELOG_UNREADABLE = "a changelog cannot be read"
    CHANGELOG_TOO_LARGE = "a changelog has a value above the limit of its readers"
    CHANGELOG_REPLACED = "a changelog was replaced after its commit"
    BATCH_LOG_UNREADABLE = "a batch log cannot be read"
    LINEAGE_AT_ODDS = "a lineage contradicts the commit log"
    FAMILIES_LOST = "the column family names of a store are lost"
    NO_BASE = "a store has no base snapshot"
    SNAPSHOT_MISSING = "a snapshot is missing"
    SNAPSHOT_UNREADABLE = "a snapshot cannot be read"
    SNAPSHOT_AT_ODDS = "the content of a snapshot contradicts its metadata"
    TABLE_MISSING = "an SST file of a snapshot is missing"
    TABLE_WRONG_SIZE = "an SST file has the wrong size"
    TABLE_REPLACED = "an SST file was replaced"
    TABLE_UNREADABLE = "an SST file cannot be read"
    SIDECAR_AT_ODDS = "a checksum file (.crc) does not match its file"
    SIDECAR_STRAY = "a checksum file (.crc) has no snapshot"
    HIDDEN_CHECKSUM_AT_ODDS = "a hidden Hadoop checksum does not match its file"
    ROLLED_BACK_FILES = "files of rolled-back batches remain"
    SNAPSHOT_OF_SPARK_4_0 = "a snapshot that only Spark 4.0 can read"
    NEAR_CEILING = "the lineage is close to its size limit"
    NAME_STOPS_LOADS = "a file name prevents Spark from loading a store"
    NAME_STOPS_CLEANUP = "a file name prevents Spark's maintenance"
    FOREIGN_FILE = "an unrecognized file"
    NOT_A_FILE = "a link, a device or an invalid file name"

    @property
    def code(self) -> str:
        """The stable code, for programs."""
        return enum_codes.code(self)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem of a checkpoint. Displayed as `<place>: <problem>`, `<meaning>`, `<action>`.

    file       path relative to the root; the subject of `problem`
    problem    a predicate: `is missing`
    meaning    the consequence: the batches that cannot be restored, and the batch from which a restart is possible
    action     the next step, with its command
    """

    severity: Severity
    kind: FindingKind
    store: StorePath | None
    file: str
    problem: str
    meaning: str
    action: str

    @property
    def place(self) -> str:
        """The file for people: with its batch if its name has the number of a version."""
        return names.with_batch(self.file)


def root_finding(
    kind: FindingKind, file: str, problem: str, meaning: str, action: str, severity: Severity = Severity.ERROR
) -> Finding:
    """Return a finding about a file that belongs to no store."""
    return Finding(severity=severity, kind=kind, store=None, file=file, problem=problem, meaning=meaning, action=action)


@dataclass(frozen=True)
class AuditPolicy:
    """Thresholds of the audit.

    retained_versions    versions that retention keeps; older versions that cannot be restored are no finding
    ceiling_share        share of the lineage's size limit above which a warning is reported
    least_commits_left   number of commits before the limit below which the warning becomes an error
    """

    retained_versions: int = 100
    ceiling_share: float = 0.75
    least_commits_left: int = 10


@dataclass(frozen=True, kw_only=True)
class StoreAudit:
    """The state of one store. Bytes and files are those in storage.

    oldest           the oldest retained version
    intact_from      the oldest version from which every version up to the head loads; versions before a switchover
                     are not counted
    loadable         the newest version that loads; None if no version loads
    base             the base of the head; None if the head cannot be loaded
    tail             number of changelogs between base and head
    lost             retained versions that cannot be loaded
    lineage_bytes    size of the lineage in the next changelog, at most `ceiling_bytes`; None without a lineage
    commits_left     number of commits until the lineage reaches `ceiling_bytes`
    orphan_files     files that no committed version can reach, SST files of running uploads included. If a snapshot
                     cannot be read or is quarantined, SST files are not counted
    """

    store: StorePath
    head: VersionId
    oldest: int
    intact_from: int
    loadable: VersionId | None
    base: VersionId | None
    tail: int
    lost: tuple[VersionId, ...]
    lineage_bytes: int | None
    ceiling_bytes: int
    commits_left: int | None
    files: int
    bytes: int
    orphan_files: int
    orphan_bytes: int


@dataclass(frozen=True)
class Restart:
    """The batch from which the query can restart: the newest whose version loads in every store.

    `delete_first`: corrupt snapshots that a load would use without detecting the corruption. Delete them first.
    `as_is`: the query can start from its newest batch without any change of the checkpoint, as far as this audit has read.
    """

    batch: int | None
    explained: str
    delete_first: tuple[str, ...] = ()
    as_is: bool = False


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The audit of a checkpoint. `batch`: the newest in the commit log, None before the first commit.

    `unproven`: properties that this audit cannot verify. `decoded`: figures of a deep audit, by store.
    `stateless`: the reason why the query has no state; None for a stateful query. `rewound`: the batches that a rewind
    removed and that the query has not committed again.
    """

    batch: int | None
    restart: Restart
    findings: tuple[Finding, ...]
    stores: tuple[StoreAudit, ...]
    decoded: Mapping[StorePath, Decoded]
    requests: RequestCounts
    unproven: tuple[str, ...]
    stateless: Stateless | None = None
    rewound: range | None = None

    @property
    def repeated_output(self) -> str | None:
        """What a person must do about the output before the query starts after a rewind; None without a rewind."""
        if self.rewound is None:
            return None
        target, last = self.rewound.start - 1, self.rewound[-1]
        batches = f"batch {last:,}" if len(self.rewound) == 1 else f"batches {target + 1:,} to {last:,}"
        return (
            f"after the rewind to batch {target:,}, the query writes {batches} again. Before you start it, remove the rows "
            f"of {batches} from its sink if they are still there. For a Delta table at URL, this prints the command: "
            f"statekeeper rewind ROOT --to-batch {target} --sink URL"
        )

    @property
    def versions(self) -> int:
        """The number of audited versions: of each store, from its oldest retained version to its head."""
        return sum(store.head.version - store.oldest + 1 for store in self.stores)

    @property
    def breaks(self) -> tuple[Finding, ...]:
        """The findings that report lost or wrong state. They block automatic deletions: an apparent orphan may be the last
        copy. A lineage near its limit and a moved checkpoint do not block."""
        harmless = (FindingKind.NEAR_CEILING, FindingKind.DESCRIPTION_MOVED)
        return tuple(f for f in self.findings if f.severity is Severity.ERROR and f.kind not in harmless)

    def count(self, severity: Severity) -> int:
        """The number of findings of a severity."""
        return sum(finding.severity is severity for finding in self.findings)


RESTORE = "restore the file from a backup"
FOR_A_REWIND = f"no action is needed; for a rewind to these batches, {RESTORE}"
UPGRADE = "upgrade Statekeeper; do not change the file"
START_JOB = "start the job: it writes the file again"
REPAIR = "statekeeper repair ROOT --apply --confirm-stopped"
SNAPSHOT_ALL = "statekeeper snapshot ROOT --all --mode snapshots"
"""With the mode: the default mode of a native query, observe, allows no snapshot."""


def move_away(provider: Provider, files: str) -> str:
    """The step that moves files out of a store's folder. `repair` does not support Spark's default provider."""
    return f"run: {REPAIR}" if provider is Provider.ROCKSDB else f"move {files} out of the checkpoint"


def roll_back(restart: Restart, *, has_backup: bool = True, fix: str = RESTORE) -> str:
    """The step after a loss at the newest batch: restore the file, or roll back to the newest batch that works. `fix`: what
    makes the file usable."""
    if restart.batch is None:
        return fix if has_backup else "ask for help with the output of: statekeeper audit ROOT --output json"
    command = f"roll back to batch {restart.batch}: statekeeper rewind ROOT --to-batch {restart.batch}"
    return f"{fix}, or {command}" if has_backup else command
