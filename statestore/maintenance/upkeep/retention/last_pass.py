"""The record of the last retention pass. It limits the next pass to the stores that can have new files to delete.

    _statekeeper/retained.json

A file becomes deletable when the floor reaches a newer snapshot of its store. So a store is *due* if the floor has reached
one of its snapshots, if a snapshot was planned for it since the last pass, or if the last pass left work undone. The other
stores have no new file to delete, except files of dead attempts, which wait until the store is due.

The floor may rise without a new look at a store if the store was seen to load the version: see `verified`. The record is a
hint: if it is missing, damaged or too old, the pass gathers all stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format import json_records, names
from statekeeper.statestore.format.json_records import About, Count, Number, Record, StoreName
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.records import history
from statekeeper.statestore.maintenance.records.history import PlannedSnapshot
from statekeeper.statestore.storage import Entry, Storage, read_or_none

ALWAYS = 0
"""Waits for version 0: the store is due at any floor."""


@dataclass(frozen=True)
class LastPass:
    """The record of a pass.

    verified   the first and the last version that every store was seen to load
    waiting    the versions of each store's snapshots that the floor has not reached; `ALWAYS` for unfinished work
    plans      paths of the snapshot plans that had an outcome when the pass gathered its facts
    """

    verified: tuple[int, int]
    waiting: Mapping[StorePath, tuple[int, ...]]
    plans: frozenset[str]

    def due(self, floor: int, planned_since: Iterable[StorePath]) -> frozenset[StorePath] | None:
        """Return the stores to gather for a new floor; None for all stores."""
        if not self.verified[0] <= floor <= self.verified[1]:
            return None
        reached = {store for store, versions in self.waiting.items() if any(version <= floor for version in versions)}
        return frozenset(reached | set(planned_since))


def verified_by(chains: Iterable[Chain]) -> tuple[int, int] | None:
    """Return the first and last version of the gapless range up to the head that all stores load; None if there is none."""
    oldest, head = 1, 0
    for chain in chains:
        if chain.conflicts is not None:
            return None
        head = chain.head.version
        at = head + 1
        for version in reversed(chain.versions):
            if version not in chain.bases:
                break
            at = version.version
        oldest = max(oldest, at)
    return (oldest, head) if 0 < oldest <= head else None


class _Written(Record):
    """The file. `waiting`: operator, partition and name of each store, with its versions."""

    verified: tuple[Count, Count]
    waiting: tuple[tuple[Number, Number, StoreName, tuple[Count, ...]], ...]
    plans: frozenset[str]


def read(storage: Storage) -> LastPass | None:
    """Read the record; None if it is missing or damaged. Raises `StorageError`."""
    data = read_or_none(storage, names.RETAINED)
    if data is None:
        return None
    try:
        written = json_records.decoded(_Written, data, names.RETAINED, About("record of a retention pass"))
    except CorruptFile:
        return None
    waiting = {StorePath(operator, partition, name): found for operator, partition, name, found in written.waiting}
    return LastPass(written.verified, waiting, written.plans)


def write(storage: Storage, last: LastPass) -> None:
    """Write the record for the next pass. Raises `StorageError`."""
    waiting = [[s.operator, s.partition, s.store, list(versions)] for s, versions in sorted(last.waiting.items())]
    body = {"verified": list(last.verified), "waiting": waiting, "plans": sorted(last.plans)}
    storage.replace(names.RETAINED, json_records.encoded(body))


def snapshot_plans(listed: Iterable[Entry]) -> frozenset[str]:
    """Return the paths of the snapshot plans in a listing of the history."""
    return frozenset(entry.path for entry in listed if names.parse_history(entry.path) == ("snapshot", "plan"))


def settled_plans(listed: Iterable[Entry]) -> frozenset[str]:
    """Return the paths of the snapshot plans that have an outcome: no further snapshot of theirs can appear."""
    listed = list(listed)
    paths = {entry.path for entry in listed}
    return frozenset(path for path in snapshot_plans(listed) if names.outcome_of(path) in paths)


def planned_stores(storage: Storage, plans: Iterable[str]) -> set[StorePath]:
    """Return the stores that these plans name. One request for each plan. Raises `CorruptFile`, `StorageError`."""
    found = (record for path in sorted(plans) for record in history.records(storage, path))
    return {record.store for record in found if isinstance(record, PlannedSnapshot)}
