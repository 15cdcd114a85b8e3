"""What a retention plan is made from, and what it says of versions and ages without reading any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from statestore.catalog import CommitLog
from statestore.chain import Chain, SnapshotFacts
from statestore.format import names
from statestore.format.names import StorePath, VersionId
from statestore.maintenance.aside import Snapshots
from statestore.maintenance.retention.last_pass import LastPass
from statestore.storage import Entry

Strays = Mapping[StorePath, Mapping[VersionId, SnapshotFacts]]
"""Snapshots beside a store's chain, by store."""


@dataclass(frozen=True)
class LogFiles:
    """Files of the query's logs and of maintenance, as listed."""

    offsets: tuple[Entry, ...] = ()
    commits: tuple[Entry, ...] = ()
    pending: tuple[Entry, ...] = ()
    history: tuple[Entry, ...] = ()
    announcements: tuple[Entry, ...] = ()
    leftovers: tuple[Entry, ...] = ()
    aside: tuple[Entry, ...] = ()

    @property
    def newest_seconds(self) -> float:
        """When the newest of them was written: it is at least that late by the store's clock."""
        of_query = (*self.offsets, *self.commits, *self.pending)
        entries = (*of_query, *self.history, *self.announcements, *self.leftovers, *self.aside)
        return max((entry.modified_at_seconds or 0.0 for entry in entries), default=0.0)


@dataclass(frozen=True)
class Gathered:
    """The facts. `log` is None before the first commit. `strays`: snapshots that are not on a store's chain and may
    stay, by store. `wanted_floor`: the oldest version to retain by count and age. Time is seconds since the epoch.

    `since`: the last pass, when only the stores that are due since then were looked at. `aside`: the snapshots of these
    stores that repairs have put aside. `switched`: the version with which the newest switchover between the structures
    begins.
    """

    is_own: bool
    log: CommitLog | None
    chains: tuple[Chain, ...]
    strays: Strays
    logs: LogFiles
    wanted_floor: int
    now_seconds: float
    since: LastPass | None = None
    aside: Snapshots = field(default_factory=dict)
    switched: int | None = None


def loadable(chain: Chain) -> set[int]:
    """The versions that load, beyond doubt; those before the store began load without it."""
    if chain.odds is not None:
        return set()
    return {*range(1, chain.begins), *(version.version for version in chain.bases)}


def common_floor(chains: Iterable[Chain], wanted: int) -> int | None:
    """The newest version up to `wanted` that every store loads."""
    common: set[int] | None = None
    for chain in chains:
        loads = {number for number in loadable(chain) if number <= wanted}
        common = loads if common is None else common & loads
    return max(common, default=None) if common else None


def is_young(entry: Entry, seconds: float, now_seconds: float) -> bool:
    """A file without a time, or from the future, is young."""
    return entry.modified_at_seconds is None or now_seconds - entry.modified_at_seconds < seconds


def batch_of(path: str) -> int | None:
    name = path.rpartition("/")[2]
    pending = names.parse_pending(name)
    return pending[0] if pending else names.parse_batch(name)
