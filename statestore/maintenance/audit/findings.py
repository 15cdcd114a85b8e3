"""What an audit says: findings, worst first, and the state of each store. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from statestore.format.names import StorePath, VersionId
from statestore.maintenance import codes
from statestore.maintenance.audit.facts import Decoded
from statestore.stateless import Stateless
from statestore.storage import RequestCounts


class Severity(IntEnum):
    """How bad a finding is; the worst sorts first."""

    ERROR = 0
    """State would be lost, or is wrong."""
    WARNING = 1
    """Needs attention; nothing is lost yet."""


class FindingKind(Enum):
    """The kinds of findings, in plain words. The names are stable: programs may rely on them."""

    COMMIT_MISSING = "the commit log has a gap"
    COMMIT_UNREADABLE = "a commit cannot be read"
    COMMIT_UNKNOWN_ID = "a commit names an id that no file has"
    COMMIT_AT_ODDS = "a commit and the operators' metadata disagree"
    COMMITS_MIXED = "commits of both structures without a switchover between them"
    HALF_SWITCHED = "a switchover between the structures is half done"
    FORMAT_FLIPPED = "the query was started with the other structure"
    OFFSETS_MISSING = "a committed batch has no offsets"
    OFFSETS_UNREADABLE = "offsets cannot be read"
    LOG_IN_THE_WAY = "a hidden checksum of Hadoop's lies where a log will be written"
    OFFSETS_AHEAD = "offsets are further than the commit log"
    DESCRIPTION_MISSING = "a file that describes the checkpoint is missing"
    DESCRIPTION_UNREADABLE = "a file that describes the checkpoint cannot be read"
    DESCRIPTION_AT_ODDS = "files that describe the checkpoint disagree"
    DESCRIPTION_MOVED = "a checkpoint was moved, and still names its former location"
    DESCRIPTION_CHANGED = "a log, or a file that describes the checkpoint, was changed since Spark wrote it"
    TWO_OPERATORS = "two operators have one id"
    STORE_UNKNOWN_FORMAT = "a store has a format that this release does not know"
    STORE_NOT_AUDITED = "a store could not be looked at"
    STORE_UNDESCRIBED = "files of a store that nothing describes"
    CHANGELOG_MISSING = "a changelog is missing"
    CHANGELOG_UNREADABLE = "a changelog cannot be read"
    CHANGELOG_REPLACED = "a changelog is another one than its commit confirms"
    LINEAGE_AT_ODDS = "a changelog was written on top of another state than the commit log says"
    FAMILIES_LOST = "no snapshot is left that names a store's column families"
    NO_BASE = "there is nothing to start a load from"
    SNAPSHOT_MISSING = "a snapshot is missing"
    SNAPSHOT_UNREADABLE = "a snapshot cannot be read"
    SNAPSHOT_AT_ODDS = "a snapshot does not hold what it says"
    TABLE_MISSING = "a table that a snapshot names is missing"
    TABLE_WRONG_SIZE = "a table has another size than its snapshot says"
    TABLE_REPLACED = "a table is another one under the same name"
    TABLE_UNREADABLE = "a table cannot be read"
    SIDECAR_AT_ODDS = "a sidecar does not fit its file"
    SIDECAR_STRAY = "a sidecar without its snapshot"
    HIDDEN_CHECKSUM_AT_ODDS = "a hidden checksum of Hadoop's does not fit its file"
    ROLLED_BACK_FILES = "files of versions that were given up"
    SNAPSHOT_OF_SPARK_4_0 = "a snapshot that only Spark 4.0 opens"
    NEAR_CEILING = "the lineage is near its ceiling"
    NAME_STOPS_LOADS = "a file whose name keeps Spark from loading"
    NAME_STOPS_CLEANUP = "a file whose name keeps Spark from cleaning up"
    FOREIGN_FILE = "files that neither Spark nor Statekeeper writes"
    NOT_A_FILE = "a link, a device or a name that cannot be read as a file"

    @property
    def code(self) -> str:
        """For programs."""
        return codes.code(self)


@dataclass(frozen=True)
class Finding:
    """One thing that someone must look at.

    `file`: the file to look at, relative to the root. `problem`: what is wrong with it; `meaning`: which versions cannot
    be loaded any more, and from where a restart is possible; `action`: what to do.
    """

    severity: Severity
    what: FindingKind
    store: StorePath | None
    file: str
    problem: str
    meaning: str
    action: str


@dataclass(frozen=True)
class AuditPolicy:
    """What counts as a finding.

    retained_versions    what retention keeps at least: older versions that do not load are the next gc's business
    ceiling_share        so much of the lineage's ceiling is too much
    least_commits_left   with fewer commits to go until the ceiling the query is about to stop
    """

    retained_versions: int = 100
    ceiling_share: float = 0.75
    least_commits_left: int = 10


@dataclass(frozen=True)
class StoreAudit:
    """One store. Numbers of bytes and files are those in storage.

    oldest           the oldest version that is retained: from it to the head all should load
    intact_from      the oldest version from which on every one up to the head loads; those before a switchover, to which
                     the way back leads, do not count
    loadable         the newest version that loads; None when none does
    base             what a load of the head starts from; None when it cannot be loaded
    tail             how many changelogs such a load replays
    lost             of the retained versions those that do not load
    lineage_bytes    what the next changelog's lineage takes, of the `ceiling_bytes` it may; None where there is none
    commits_left     how many more commits fit under the ceiling
    orphan_files     what no committed version can reach: dead branches, and tables that none of their snapshots
                     names, also while they are being uploaded. Tables are not counted while it is not known what all name
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
    """From which batch the query can go on: the newest whose version every store loads.

    `delete_first`: snapshots that a load would take without noticing that they are bad. Without them it does better.
    """

    batch: int | None
    explained: str
    delete_first: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """The whole. `batch`: the newest in the commit log, None before the first commit.

    `unproven`: what these findings rest on and no file can show. `decoded`: by store, what was read of its bytes.
    `stateless`: why there is no state to audit; None where there is some.
    """

    batch: int | None
    restart: Restart
    findings: tuple[Finding, ...]
    stores: tuple[StoreAudit, ...]
    decoded: Mapping[StorePath, Decoded]
    requests: RequestCounts
    unproven: tuple[str, ...]
    stateless: Stateless | None = None

    @property
    def versions(self) -> int:
        """How many versions were judged: of each store, those from its oldest retained one to its head."""
        return sum(store.head.version - store.oldest + 1 for store in self.stores)

    @property
    def breaks(self) -> tuple[Finding, ...]:
        """The findings that say that state is lost or wrong. While there are any, nothing may be deleted by a machine:
        what looks like garbage may be all that is left. A lineage near its ceiling, or a former location, is no such
        thing."""
        harmless = (FindingKind.NEAR_CEILING, FindingKind.DESCRIPTION_MOVED)
        return tuple(f for f in self.findings if f.severity is Severity.ERROR and f.what not in harmless)

    def count(self, severity: Severity) -> int:
        """How many findings are so bad."""
        return sum(finding.severity is severity for finding in self.findings)
