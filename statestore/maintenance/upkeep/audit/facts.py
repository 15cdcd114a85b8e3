"""Facts of an audit: the parsed files of a checkpoint, and the problem of each unusable file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from statekeeper.statestore.base.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.lineage import Lineage
from statekeeper.statestore.checkpoint.moved import Moved
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteJournal
from statekeeper.statestore.checkpoint.stateless import Stateless
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.contents.restart import LostEntries
from statekeeper.statestore.format import names
from statekeeper.statestore.format.logs import CommitLog, OffsetLog
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.operators import OperatorMetadata
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.state_conf import shuffle_partitions
from statekeeper.statestore.maintenance.records.skipped_batches import SkippedBatches
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.columns import OlderSchemas
from statekeeper.statestore.storage import Omitted, RequestCounts

if TYPE_CHECKING:
    from statekeeper.statestore.format.families import Family

T = TypeVar("T")

StoreKind = tuple[int, str]
"""Operator and store name: the stores of one kind, one in each partition."""


@dataclass(frozen=True)
class Layout:
    """The row layout of a store, from the schema at `path`. `families` by name; a store without column families has one,
    named None."""

    path: str
    families: Mapping[str | None, Family]


def attempt(path: str, read: Callable[[], T]) -> T | FileProblem:
    """Return the result of `read`, or the problem of the file. Raises `StorageError` except for a missing object."""
    try:
        return read()
    except ObjectMissing:
        return FileProblem(path, Flaw.MISSING, "is missing")
    except (CorruptFile, NotAFile, UnknownFormatVersion) as error:
        flaw = Flaw.of(error)
        return FileProblem(path, flaw, error.what, (error.hint or "") if flaw is Flaw.TOO_LARGE else "")


def is_unknown(found: object) -> bool:
    """Return whether a file has an unsupported format."""
    return isinstance(found, FileProblem) and found.flaw is Flaw.UNKNOWN_FORMAT


@dataclass(frozen=True, kw_only=True)
class LogFacts:
    """The logs of the query.

    offsets           the batches that have offsets
    offsets_read      the parsed ones among them
    newest_version    the newest version that a batch may be writing, read from the logs after files were listed
    in_the_way        hidden Hadoop checksums of deleted log entries, which block later entries of the same name
    lost_entries      lost entries in the logs of file sources, and the first batch that has read them; the batch after all
                      offsets if no batch has
    whole_since       the first batch whose commit is kept in full; older commits, of which no store has a file, keep
                      only their shape: see `CommitLog.shape`
    """

    commits: Mapping[int, CommitLog | FileProblem]
    offsets: frozenset[int]
    offsets_read: Mapping[int, OffsetLog | FileProblem]
    newest_version: int = 0
    in_the_way: tuple[str, ...] = ()
    whole_since: int = 0
    lost_entries: tuple[tuple[LostEntries, int], ...] = ()

    @property
    def begun(self) -> int:
        """The newest batch in the offset log or the commit log: a start reads its offsets."""
        return max((*self.offsets, *self.commits), default=-1)

    @cached_property
    def readable(self) -> Mapping[int, CommitLog]:
        """The readable commits."""
        return {batch: log for batch, log in self.commits.items() if isinstance(log, CommitLog)}

    @cached_property
    def offsets_readable(self) -> Mapping[int, OffsetLog]:
        """The readable ones among the parsed offsets."""
        return {batch: log for batch, log in self.offsets_read.items() if isinstance(log, OffsetLog)}

    @cached_property
    def shuffled(self) -> Mapping[int, int | None]:
        """The number of shuffle partitions of each parsed batch; None if its offsets do not contain it."""
        found: dict[int, int | None] = {}
        for batch, log in self.offsets_readable.items():
            number = attempt(names.offsets(batch), partial(shuffle_partitions, log, names.offsets(batch)))
            found[batch] = None if isinstance(number, FileProblem) else number
        return found

    def pinned_partitions(self, batch: int, named: int | None) -> int | None:
        """Return the number of shuffle partitions of any batch. If all parsed batches are equal, the others are too.
        Otherwise a batch whose offsets were purged has the number that its commit names."""
        read = self.shuffled
        alike = {*read.values()}
        if batch in read:
            return read[batch]
        if len(alike) == 1:
            return alike.pop()
        return named if batch < min(self.offsets, default=0) else None


@dataclass(frozen=True, kw_only=True)
class RootFacts:
    """The metadata files of the root. `metadata_paths` and `schemas` are by operator.

    query             the id in `metadata`; `logs.UNFINISHED` for an unfinished migration
    binding           None on a native checkpoint
    seen              the number of partitions of each operator in logs and files
    strangers         unrecognized files, and hidden files that Spark's maintenance fails on
    provider          the state store provider of the query
    switched          the version with which the newest switchover begins
    half_switched     the journal of an incomplete switchover
    quarantined       stores with quarantined snapshots, which may require any SST file of their store
    layouts           row layouts of a native checkpoint
    moved             operator metadata that refers to schemas outside the root
    older_metadata    problems of operator metadata of older batches
    batch_logs        problems of batch logs
    skipped           the batches that Spark skipped after a rewind
    rewound           the batches whose output the query writes again after a rewind: see `quarantine.rewound_batches`
    """

    query: str | FileProblem
    origin: Origin
    binding: tuple[Binding, OlderSchemas] | FileProblem | None
    operators: Mapping[int, OperatorMetadata | FileProblem]
    metadata_paths: Mapping[int, str]
    schemas: Mapping[int, tuple[str, str] | FileProblem]
    seen: Mapping[int, int]
    strangers: tuple[str, ...]
    omitted: tuple[Omitted, ...]
    provider: Provider = Provider.ROCKSDB
    switched: int | None = None
    half_switched: RewriteJournal | FileProblem | None = None
    quarantined: frozenset[StorePath] = frozenset()
    layouts: Mapping[StoreKind, Layout | FileProblem] = field(default_factory=dict)
    moved: tuple[Moved, ...] = ()
    older_metadata: tuple[FileProblem, ...] = ()
    batch_logs: tuple[FileProblem, ...] = ()
    skipped: SkippedBatches | None = None
    rewound: range | None = None


class Keeper(Enum):
    """The writer of a checksum file, which rejects a file that does not match."""

    SPARK = "Spark"
    HADOOP = "Hadoop"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A file that Spark rejects because of its checksum file; the file itself has no known problem.

    checksum      the checksum file and its problem
    versions      the version of the changelog, or the versions whose snapshots require the file
    is_guarded    whether the file has checksums of its own that match; None if it was not read
    """

    keeper: Keeper
    file: str
    checksum: FileProblem
    versions: tuple[VersionId, ...]
    is_changelog: bool
    is_guarded: bool | None


@dataclass(frozen=True)
class Decoded:
    """The numbers of items that a deep audit has read of a store."""

    changelogs: int = 0
    records: int = 0
    snapshots: int = 0
    keys: int = 0


@dataclass(frozen=True, kw_only=True)
class StoreAuditFacts:
    """The facts of an audited store.

    committed       committed versions by number, without purged versions
    gone            the numbers of purged versions: no store has a file of them
    contradicted    committed versions that the head's lineage contradicts with existing files
    chain           the versions as they load; `broken` includes problems of the content
    changelogs      problems of changelogs of the chain
    snapshots       problems of snapshots of the chain
    unnoticed       corrupt snapshots that a load opens without an error
    lineage         the lineage in the head's changelog; None if it was not read or is unreadable
    refused         files that do not match their checksum file
    strays          versions of the chain that have the checksum file of a zip and no zip
    """

    store: StorePath
    committed: Mapping[int, VersionId]
    contradicted: Mapping[int, VersionId]
    chain: Chain
    changelogs: Mapping[VersionId, FileProblem]
    snapshots: Mapping[VersionId, FileProblem]
    unnoticed: frozenset[VersionId]
    lineage: Lineage | None
    decoded: Decoded | None = None
    refused: tuple[Refused, ...] = ()
    strays: tuple[VersionId, ...] = ()
    gone: range = range(0)


@dataclass(frozen=True)
class NotAudited:
    """A store that cannot be audited, and the reason. `action`: the next step; None if other findings name it."""

    store: StorePath
    problem: FileProblem
    action: str | None = None


StoreResult: TypeAlias = StoreAuditFacts | NotAudited


@dataclass(frozen=True)
class Misfit:
    """A contradiction between a readable commit and the metadata of an operator."""

    operator: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class AuditFacts:
    """The facts of a checkpoint.

    misfits        contradictions between commits and operator metadata, by batch
    undescribed    stores that have files and no metadata
    deep           whether every byte was read
    codec          codec of the changelogs; None if the offset log does not contain it
    uncommitted    the files of all stores if there is no commit
    changed        logs and metadata files that do not match their hidden Hadoop checksum
    stateless      the reason why the query has no state
    url            of the checkpoint
    newest         the stores that the newest readable commit has; a start needs only these
    unread         number of changelogs and snapshots that were written while a deep audit read the others
    """

    root: RootFacts
    logs: LogFacts
    misfits: Mapping[int, Misfit]
    stores: tuple[StoreAuditFacts | NotAudited, ...]
    undescribed: tuple[StorePath, ...]
    deep: bool
    requests: RequestCounts
    codec: str | None = None
    uncommitted: Mapping[StorePath, StoreFiles] = field(default_factory=dict)
    changed: tuple[FileProblem, ...] = ()
    stateless: Stateless | None = None
    url: str = ""
    newest: frozenset[StorePath] = frozenset()
    unread: int = 0
