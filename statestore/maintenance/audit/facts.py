"""What an audit looks at: values only, as the files say it, with what is wrong with each file beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import TypeVar

from statestore.binding import Binding, OlderSchemas
from statestore.catalog import StoreFiles
from statestore.chain import Chain
from statestore.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statestore.format import names
from statestore.format.families import Family
from statestore.format.logs import CommitLog, OffsetLog
from statestore.format.names import StorePath, VersionId
from statestore.format.operators import OperatorMetadata
from statestore.format.state_conf import shuffle_partitions
from statestore.lineage import Lineage
from statestore.maintenance.moved import Moved
from statestore.stateless import Stateless
from statestore.storage import Omitted, RequestCounts
from statestore.switch_journal import OpenJournal

T = TypeVar("T")

StoreKind = tuple[int, str]
"""The stores of one name that an operator has, one in each partition."""


class Flaw(Enum):
    """In which way a file is bad."""

    MISSING = "is missing"
    CORRUPT = "cannot be read"
    UNKNOWN_FORMAT = "has a format that this release does not know"
    MISMATCH = "contradicts other files"
    REPLACED = "is another file under the same name"


@dataclass(frozen=True)
class Bad:
    """A file that cannot be used, and why."""

    path: str
    flaw: Flaw
    why: str


@dataclass(frozen=True)
class Layout:
    """How the rows of a store are laid out, by the schema at `path`. `families` by name; a store without column families
    has one, named None."""

    path: str
    families: Mapping[str | None, Family]


def attempt(path: str, read: Callable[[], T]) -> T | Bad:
    """What `read` makes of a file, or what is wrong with it. Raises `StorageError` but for a missing object."""
    try:
        return read()
    except ObjectMissing:
        return Bad(path, Flaw.MISSING, "is missing")
    except (CorruptFile, NotAFile) as error:
        return Bad(path, Flaw.CORRUPT, error.what)
    except UnknownFormatVersion as error:
        return Bad(path, Flaw.UNKNOWN_FORMAT, error.what)


def is_unknown(found: object) -> bool:
    """Whether a file has a format that this release does not know."""
    return isinstance(found, Bad) and found.flaw is Flaw.UNKNOWN_FORMAT


@dataclass(frozen=True)
class LogFacts:
    """The query's logs. `offsets` are those that there are; of these `offsets_read` were looked into.

    `newest_version`: the newest version of which the logs say, after the files were listed, that a batch may be making it.
    `in_the_way`: hidden checksums of logs that are gone, under the names that later ones will have.
    `whole_since`: the first batch of which the ids are kept; no store has a file of the versions before it, and of their
    commits only the shape is kept: see `CommitLog.shape`.
    """

    commits: Mapping[int, CommitLog | Bad]
    offsets: frozenset[int]
    offsets_read: Mapping[int, OffsetLog | Bad]
    newest_version: int = 0
    in_the_way: tuple[str, ...] = ()
    whole_since: int = 0

    @cached_property
    def readable(self) -> Mapping[int, CommitLog]:
        """The commits that can be read."""
        return {batch: log for batch, log in self.commits.items() if isinstance(log, CommitLog)}

    @cached_property
    def shuffled(self) -> Mapping[int, int | None]:
        """In how many partitions those batches shuffled whose offsets were read; None where they do not say it."""
        found: dict[int, int | None] = {}
        for batch, log in self.offsets_read.items():
            if isinstance(log, OffsetLog):
                number = attempt(names.offsets(batch), partial(shuffle_partitions, log, names.offsets(batch)))
                found[batch] = None if isinstance(number, Bad) else number
        return found

    def pinned_partitions(self, batch: int) -> int | None:
        """The same of any batch: one whose offsets were not read is like the others, which are alike then."""
        read = self.shuffled
        alike = {*read.values()}
        return read[batch] if batch in read else alike.pop() if len(alike) == 1 else None


@dataclass(frozen=True)
class RootFacts:
    """What the root says of itself. `binding` is None on a checkpoint of Spark's own; `metadata_paths` and `schemas` are
    by operator.

    `seen`: how many partitions of an operator the logs and the files know.
    `strangers`: files below the root in places where nobody writes such names; hidden ones that Spark stumbles over too.
    `switched`: the version with which the newest switchover between the structures begins; `half_switched`: one that was
    begun and has not ended. `quarantined`: the stores of which snapshots are quarantined, which may name any table
    of theirs.
    `layouts`: of a checkpoint of Spark's, what the schemas of the operators' stores say; `moved`: metadata that names
    schemas in another place; `older_metadata`: what is wrong with the metadata of operators at older batches.
    """

    query: str | Bad
    binding: tuple[Binding, OlderSchemas] | Bad | None
    operators: Mapping[int, OperatorMetadata | Bad]
    metadata_paths: Mapping[int, str]
    schemas: Mapping[int, tuple[str, str] | Bad]
    seen: Mapping[int, int]
    strangers: tuple[str, ...]
    omitted: tuple[Omitted, ...]
    switched: int | None = None
    half_switched: OpenJournal | Bad | None = None
    quarantined: frozenset[StorePath] = frozenset()
    layouts: Mapping[StoreKind, Layout | Bad] = field(default_factory=dict)
    moved: tuple[Moved, ...] = ()
    older_metadata: tuple[Bad, ...] = ()


class Keeper(Enum):
    """Who keeps a checksum beside a file, and refuses the file when it does not fit."""

    SPARK = "Spark"
    HADOOP = "Hadoop"


@dataclass(frozen=True)
class Refused:
    """A file that Spark does not read for the checksum beside it, though nothing is known against the file itself.

    `checksum`: that file, and what is wrong with it; `versions`: whose changelog the file is, or whose snapshots need it;
    `is_guarded`: whether the file was read, and carries checksums of its own, which fit.
    """

    keeper: Keeper
    file: str
    checksum: Bad
    versions: tuple[VersionId, ...]
    is_changelog: bool
    is_guarded: bool | None


@dataclass(frozen=True)
class Decoded:
    """What a deep audit has read of a store, all of it: plain figures."""

    changelogs: int = 0
    records: int = 0
    snapshots: int = 0
    keys: int = 0


@dataclass(frozen=True)
class StoreAuditFacts:
    """One store that could be looked at.

    committed       its versions in the commit log, by number, without those that are gone
    gone            the numbers of earlier committed versions, of which no store has a file
    contradicted    of these, those of which the head's lineage says, with files that exist, that they are others
    chain           the versions as they load; in `broken` also what was found in the bytes
    changelogs      what is wrong with changelogs of the chain
    snapshots       what is wrong with snapshots of the chain
    unnoticed       of these, those that a load takes all the same: they can be opened, and only reading shows it
    lineage         what the head's changelog names before it; None when it was not, or could not be read
    refused         files that checksums beside them speak against
    strays          versions on the chain whose zip has a sidecar and is not there itself
    """

    store: StorePath
    committed: Mapping[int, VersionId]
    contradicted: Mapping[int, VersionId]
    chain: Chain
    changelogs: Mapping[VersionId, Bad]
    snapshots: Mapping[VersionId, Bad]
    unnoticed: frozenset[VersionId]
    lineage: Lineage | None
    decoded: Decoded | None = None
    refused: tuple[Refused, ...] = ()
    strays: tuple[VersionId, ...] = ()
    gone: range = range(0)


@dataclass(frozen=True)
class NotAudited:
    """A store of which nothing can be said, and why."""

    store: StorePath
    bad: Bad


@dataclass(frozen=True)
class Misfit:
    """What a commit that can be read says otherwise than an operator's metadata."""

    operator: int
    problem: str


@dataclass(frozen=True)
class AuditFacts:
    """All that an audit has found. `misfits` by batch; `undescribed`: stores with files that no metadata speaks of.
    `deep`: whether every byte was read; `codec`: of the changelogs, None where the offset log does not say.
    `uncommitted`: the files of all stores where there is no commit at all. `changed`: hidden checksums of
    Hadoop's that no longer fit the logs and descriptions beside them. `stateless`: why there is no state."""

    root: RootFacts
    logs: LogFacts
    misfits: Mapping[int, Misfit]
    stores: tuple[StoreAuditFacts | NotAudited, ...]
    undescribed: tuple[StorePath, ...]
    deep: bool
    requests: RequestCounts
    codec: str | None = None
    uncommitted: Mapping[StorePath, StoreFiles] = field(default_factory=dict)
    changed: tuple[Bad, ...] = ()
    stateless: Stateless | None = None
