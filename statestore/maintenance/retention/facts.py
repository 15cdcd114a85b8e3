"""What a retention plan is made from, and what it says of versions and ages without reading any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from statestore.chain import Chain, SnapshotFacts
from statestore.commit_log import CommitLog
from statestore.format import names
from statestore.format.names import StorePath, VersionId
from statestore.format.state_conf import OURS, StateConf
from statestore.maintenance.quarantine import Snapshots
from statestore.maintenance.retention.last_pass import LastPass
from statestore.maintenance.verification import Reads
from statestore.stateless import Stateless
from statestore.storage import Entry

Strays = Mapping[StorePath, Mapping[VersionId, SnapshotFacts]]
"""Snapshots beside a store's chain, by store."""


@dataclass(frozen=True)
class LogFiles:
    """Files of the query's logs and of maintenance, as listed. `checksums`: hidden ones of Hadoop's whose log is gone."""

    offsets: tuple[Entry, ...] = ()
    commits: tuple[Entry, ...] = ()
    pending: tuple[Entry, ...] = ()
    history: tuple[Entry, ...] = ()
    announcements: tuple[Entry, ...] = ()
    leftovers: tuple[Entry, ...] = ()
    quarantine: tuple[Entry, ...] = ()
    checksums: tuple[Entry, ...] = ()

    @property
    def newest_seconds(self) -> float:
        """When the newest of them was written: it is at least that late by the store's clock."""
        of_query = (*self.offsets, *self.commits, *self.pending)
        entries = (*of_query, *self.history, *self.announcements, *self.leftovers, *self.quarantine)
        return max((entry.modified_at_seconds or 0.0 for entry in entries), default=0.0)


@dataclass(frozen=True)
class RetentionFacts:
    """The facts. `log` is None before the first commit. `strays`: snapshots that are not on a store's chain and may
    stay, by store. `wanted_floor`: the oldest version to retain by count and age. Time is seconds since the epoch.

    `since`: the last pass, when only the stores that are due since then were looked at. `aside`: the snapshots of these
    stores that repairs have quarantined. `switched`: the version with which the newest switchover between the structures
    begins. `stateless`: why there is no store. `unseen`: of the stores in which listings leave something out, what.
    `reads`: the files of snapshots that were read in full; `conf`: how the records of the state are written.
    """

    is_own: bool
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

    @property
    def entries(self) -> Iterator[Entry]:
        """The files of the stores that were looked at."""
        for chain in self.chains:
            yield from chain.files.entries


def loadable(chain: Chain) -> set[int]:
    """The versions that load, beyond doubt; those before the store began load without it."""
    if chain.conflicts is not None:
        return set()
    return {*range(1, chain.begins), *(version.version for version in chain.bases)}


def common_floor(chains: Iterable[Chain], wanted: int) -> int | None:
    """The newest version up to `wanted` that every store loads."""
    common: set[int] | None = None
    for chain in chains:
        loads = {number for number in loadable(chain) if number <= wanted}
        common = loads if common is None else common & loads
    return max(common, default=None) if common else None


def retained_floor(chains: Iterable[Chain], wanted: int, switched: int | None) -> int | None:
    """The oldest version to retain: the newest one up to `wanted` that every store loads. Where there is none because the
    old end of the chains is gone, the oldest one that every store loads.

    A version is gone when it has neither a changelog nor a snapshot: an earlier pass with a lower --retain deleted it, or
    Spark did. No file of it is left to keep. Versions before the newest switchover, to which `switched` belongs, may have
    lost snapshots to quarantine; the rule `WAY_BACK` keeps their files. None while any other version does not load: its
    files stay, since the missing one may be restored.
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
    """A file without a time, or from the future, is young."""
    return entry.modified_at_seconds is None or now_seconds - entry.modified_at_seconds < seconds


def batch_of(path: str) -> int | None:
    """The batch that a file of the logs, or Hadoop's hidden checksum of one, belongs to; None for any other path."""
    folder, _, name = path.rpartition("/")
    if folder == names.PENDING:
        pending = names.parse_pending(name)
        return pending[0] if pending else None
    if folder not in (names.COMMITS, names.OFFSETS):
        return None
    if name.startswith(".") and name.endswith(names.SIDECAR):
        name = name[1:].removesuffix(names.SIDECAR)
    return names.parse_batch(name)
