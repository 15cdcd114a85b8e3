"""What the last retention pass found, so that the next one looks only at stores in which something can have changed.

    _statekeeper/retained.json

A file becomes deletable when the floor passes a newer snapshot of its store. So a store is *due* when one of the
snapshots that it had is at the floor by now, when maintenance has planned one for it since, or when something was left
to do. All others have nothing new to delete, but for what dead attempts left, which waits until they are due.

The floor may rise without looking as long as every store was seen to load the version: `verified` says which were. The
record is a hint: when it is missing, damaged or too old, everything is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statestore.chain import Chain
from statestore.format import names
from statestore.format.json_object import json_lines
from statestore.format.names import StorePath
from statestore.format.untrusted import BAD_VALUES, parsed_json
from statestore.storage import Entry, Storage, read_or_none

ALWAYS = 0
"""Waiting for version 0: due whatever the floor."""


@dataclass(frozen=True)
class LastPass:
    """verified   the versions that every store was seen to load, from and to (inclusive)
    waiting    the versions of each store's snapshots that the floor has not reached; `ALWAYS` for unfinished work
    plans      the records of planned snapshots that had come to their end, and were taken into account
    """

    verified: tuple[int, int]
    waiting: Mapping[StorePath, tuple[int, ...]]
    plans: frozenset[str]

    def due(self, floor: int, planned_since: Iterable[StorePath]) -> frozenset[StorePath] | None:
        """The stores to look at for a new floor; None when all have to be."""
        if not self.verified[0] <= floor <= self.verified[1]:
            return None
        reached = {store for store, versions in self.waiting.items() if any(version <= floor for version in versions)}
        return frozenset(reached | set(planned_since))


def verified_by(chains: Iterable[Chain]) -> tuple[int, int] | None:
    """The versions up to the head, without a gap, that all of these stores load; None when the head is not one."""
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


def read(storage: Storage) -> LastPass | None:
    """The record; None when there is none that can be used. Raises `StorageError`."""
    data = read_or_none(storage, names.RETAINED)
    if data is None:
        return None
    try:
        body = parsed_json(data)
        first, last = body["verified"]
        waiting = {
            StorePath(int(operator), int(partition), str(name)): tuple(int(version) for version in versions)
            for operator, partition, name, versions in body["waiting"]
        }
        return LastPass((int(first), int(last)), waiting, frozenset(str(path) for path in body["plans"]))
    except BAD_VALUES:
        return None


def write(storage: Storage, last: LastPass) -> None:
    """Leave the record for the next pass. Raises `StorageError`."""
    waiting = [[s.operator, s.partition, s.store, list(versions)] for s, versions in sorted(last.waiting.items())]
    body = {"verified": list(last.verified), "waiting": waiting, "plans": sorted(last.plans)}
    storage.replace(names.RETAINED, json.dumps(body).encode())


def snapshot_plans(history: Iterable[Entry]) -> frozenset[str]:
    """The records of planned snapshots among those of maintenance."""
    return frozenset(entry.path for entry in history if names.parse_history(entry.path) == ("snapshot", "plan"))


def settled_plans(history: Iterable[Entry]) -> frozenset[str]:
    """Those whose outcome is on record, too: no snapshot of theirs appears any more."""
    paths = {entry.path for entry in history}
    return frozenset(path for path in snapshot_plans(history) if names.outcome_of(path) in paths)


def planned_stores(storage: Storage, plans: Iterable[str]) -> set[StorePath]:
    """The stores that these records name. One request a record. Raises `CorruptFile`, `StorageError`."""
    found: set[StorePath] = set()
    for path in sorted(plans):
        for line in json_lines(read_or_none(storage, path) or b"", path):
            place = names.parse_place(f"{line.get('store')}/any")
            if place is not None:
                found.add(place[0])
    return found
