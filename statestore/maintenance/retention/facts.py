"""The facts for a retention plan, and the functions that derive floors and ages from them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from statekeeper.statestore.catalog import StoreFiles
from statekeeper.statestore.chain import Chain, StoredSnapshot
from statekeeper.statestore.commit_log import CommitLog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.batch_log import Place
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.maintenance import hidden_checksums
from statekeeper.statestore.maintenance.holds import Hold
from statekeeper.statestore.maintenance.quarantine import Snapshots
from statekeeper.statestore.maintenance.retention.last_pass import LastPass
from statekeeper.statestore.maintenance.verification import Reads
from statekeeper.statestore.origin import Origin
from statekeeper.statestore.stateless import Stateless
from statekeeper.statestore.storage import Entry, UnfinishedUpload

Strays = Mapping[StorePath, Mapping[VersionId, StoredSnapshot]]
"""Snapshots that are not on the chain of their store, by store."""


@dataclass(frozen=True)
class BatchLogFile:
    """A listed batch log. `members`: the changelogs in it and their bytes; None if it cannot be read."""

    entry: Entry
    members: Mapping[Place, int] | None


@dataclass(frozen=True, kw_only=True)
class LogFiles:
    """Listed files of the query's logs and of maintenance.

    checksums         hidden Hadoop checksums whose log is deleted
    uploads           unfinished uploads, if they were listed
    upload_problem    why they could not be listed
    """

    offsets: tuple[Entry, ...] = ()
    commits: tuple[Entry, ...] = ()
    pending: tuple[Entry, ...] = ()
    history: tuple[Entry, ...] = ()
    announcements: tuple[Entry, ...] = ()
    holds: tuple[Entry, ...] = ()
    leftovers: tuple[Entry, ...] = ()
    quarantine: tuple[Entry, ...] = ()
    checksums: tuple[Entry, ...] = ()
    batch_logs: tuple[BatchLogFile, ...] = ()
    uploads: tuple[UnfinishedUpload, ...] = ()
    upload_problem: str | None = None

    @property
    def newest_seconds(self) -> float:
        """Return the newest modification time: a lower bound of the time on the clock of the storage."""
        logs = (log.entry for log in self.batch_logs)
        of_query = (*self.offsets, *self.commits, *self.pending, *logs)
        of_runs = (*self.history, *self.announcements, *self.holds)
        entries = (*of_query, *of_runs, *self.leftovers, *self.quarantine)
        return max((entry.modified_at_seconds or 0.0 for entry in entries), default=0.0)


@dataclass(frozen=True, kw_only=True)
class RetentionFacts:
    """The facts about a checkpoint.

    log            None before the first commit
    strays         snapshots that are not on the chain of their store and may be kept
    wanted_floor   the oldest version to retain, by count, age and holds
    now_seconds    Unix time
    since          the last pass, if only the stores that are due since then were gathered
    quarantine     quarantined snapshots of these stores
    switched       the first version of the newest switchover between the structures
    unseen         files that the listings of a store omit
    stateless      why the checkpoint has no store
    reads          record of the snapshot files that were read in full
    conf           encoding of the state
    holds          batches that other runs read
    removed        the files of partitions that a rescale removed, if all stores were gathered
    unnamed_from   the batch from which on no commit names a removed partition
    """

    origin: Origin
    log: CommitLog | None
    chains: tuple[Chain, ...]
    strays: Strays
    logs: LogFiles
    wanted_floor: int
    now_seconds: float
    since: LastPass | None = None
    quarantine: Snapshots = field(default_factory=dict)
    switched: int | None = None
    unseen: Mapping[StorePath, str] = field(default_factory=dict)
    stateless: Stateless | None = None
    reads: Reads = field(default_factory=dict)
    conf: StateConf = OURS
    holds: tuple[Hold, ...] = ()
    removed: Mapping[StorePath, StoreFiles] = field(default_factory=dict)
    unnamed_from: Mapping[StorePath, int] = field(default_factory=dict)

    @property
    def entries(self) -> Iterator[Entry]:
        """Yield the files of the gathered stores."""
        for chain in self.chains:
            yield from chain.files.entries


def loadable(chain: Chain) -> set[int]:
    """Return the versions that certainly load. A version before the first one of the store needs no file of it."""
    if chain.conflicts is not None:
        return set()
    return {*range(1, chain.begins), *(version.version for version in chain.bases)}


def common_floor(chains: Iterable[Chain], wanted: int) -> int | None:
    """Return the newest version up to `wanted` that every store loads."""
    common: set[int] | None = None
    for chain in chains:
        loads = {number for number in loadable(chain) if number <= wanted}
        common = loads if common is None else common & loads
    return max(common, default=None) if common else None


def retained_floor(chains: Iterable[Chain], wanted: int, switched: int | None) -> int | None:
    """Return the oldest version to retain: the newest version up to `wanted` that every store loads.

    If no such version exists because the old end of the chains is deleted, return the oldest version that every store
    loads. A version is deleted if it has neither a changelog nor a snapshot: Spark deleted it, or a pass with a lower
    --retain. Versions before `switched`, the newest switchover, may have snapshots in quarantine; the rule `WAY_BACK` keeps
    their files. Return None if another version does not load: its files are kept, because the missing file may be restored.
    """
    chains = tuple(chains)
    floor = common_floor(chains, wanted)
    if floor is not None or not chains:
        return floor
    common = set[int].intersection(*(loadable(chain) for chain in chains))
    oldest = min((number for number in common if number > wanted), default=None)
    if oldest is None:
        return None
    excused = all(_is_excused(chain, wanted, oldest, switched) for chain in chains)
    return oldest if excused else None


def _is_excused(chain: Chain, wanted: int, oldest: int, switched: int | None) -> bool:
    loads = loadable(chain)
    return all(
        version.version in loads
        or version.version < (switched or 0)
        or (version not in chain.files.changelogs and version not in chain.files.snapshots)
        for version in chain.versions
        if wanted <= version.version < oldest
    )


def is_young(entry: Entry, seconds: float, now_seconds: float) -> bool:
    """Return whether the file is younger than `seconds`. A file without a modification time is young."""
    return entry.modified_at_seconds is None or now_seconds - entry.modified_at_seconds < seconds


def batch_of(path: str) -> int | None:
    """Return the batch of a log file, or of a hidden Hadoop checksum of one; None for any other path."""
    folder = path.rpartition("/")[0]
    if folder == names.BATCH_LOGS:
        log = names.parse_batch_log(path)
        return log[0] - 1 if log else None
    if folder == names.PENDING:
        pending = names.parse_pending(path)
        return pending[0] if pending else None
    if folder not in (names.COMMITS, names.OFFSETS):
        return None
    return names.parse_batch(hidden_checksums.log_of(path) or path)
