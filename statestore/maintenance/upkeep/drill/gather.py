"""Gathers the facts for a drill: the version of each store to restore, its load, its other bases, its last drill."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.records import drills
from statekeeper.statestore.maintenance.records.drills import StoreDrill
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.drill.model import DrillFacts, StoreFacts
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotFacts, StoreSnapshotFacts
from statekeeper.statestore.maintenance.upkeep.snapshot.gather import LIVE_MARGIN_VERSIONS
from statekeeper.statestore.maintenance.upkeep.verification.record import stamp
from statekeeper.statestore.storage import Storage, list_members, read_or_none


def gather(storage: Storage, *, stopped: bool = False) -> DrillFacts:
    """Gather the facts about all stores.

    The version to restore is the head. Of a running native query in structure V1, whose newest versions may be replaced, it
    is an earlier one or that of the newest snapshot, whichever is newer. Requests: those of `snapshot.gather`, one for the
    record of drills, a listing of `state/`, one of the journals, and one or two offsets. Raises as `snapshot.gather`.
    """
    last = drills.read(storage)
    gathered = snapshot.gather(storage, at_head=stopped, supported=tuple(Provider)).corrected_by(last)
    if gathered.batch is None or gathered.stateless is not None:
        return DrillFacts(gathered=gathered, stores=(), last=last)
    entries = list(storage.list(names.STATE))
    files = catalog.with_members(list_members(storage), entries, gathered.conf.provider)
    families = catalog.with_families(entry.path for entry in entries)
    past = _Past(storage)
    found = (
        _facts(storage, gathered, one, files.of(one.store), past, last.get(one.store), families)
        for one in gathered.stores
    )
    stores = tuple(one for one in found if one.version != EMPTY)
    return DrillFacts(gathered=gathered, stores=stores, last=last, families=families)


def _newer_snapshot(files: StoreFiles, fact: StoreSnapshotFacts) -> VersionId | None:
    """Return the newest snapshot of structure V1 after the version that a running query can no longer replace: a restart
    begins with it, so that a drill must restore it."""
    if fact.head.id is not None or fact.load is None:
        return None
    target = _target(fact)
    newer = (one for one in files.snapshots if one.id is None and target.version < one.version <= fact.head.version)
    return max(newer, default=None, key=lambda one: one.version)


def _target(fact: StoreSnapshotFacts) -> VersionId:
    if fact.load is None:
        return fact.head
    return fact.load.replay[-1] if fact.load.replay else fact.load.base


def _facts(
    storage: Storage,
    gathered: SnapshotFacts,
    fact: StoreSnapshotFacts,
    files: StoreFiles,
    past: _Past,
    last: StoreDrill | None,
    families: Collection[int],
) -> StoreFacts:
    if (newer := _newer_snapshot(files, fact)) is not None:
        fact = replace(snapshot.facts_of(storage, fact.store, newer, files), head=fact.head)
    version = _target(fact)
    older, why = _older_base(fact, files, needs_base=fact.store.operator in families)
    has_mark = version.mark is not None
    return StoreFacts(
        store=fact.store,
        version=version,
        load=fact.load,
        tail_bytes=fact.tail_bytes,
        problem=fact.problem,
        older=older,
        no_older=why,
        past="" if has_mark else past.of(version.version),
        past_of_last="" if has_mark or last is None else past.of(last.version),
        predicted_seconds=gathered.restore_seconds(fact),
    )


def _older_base(fact: StoreSnapshotFacts, files: StoreFiles, *, needs_base: bool) -> tuple[VersionId | None, str]:
    """Return the newest base before that of the load from which the changelogs are listed, or why there is none. Only the
    load itself shows whether they lead to the version."""
    if fact.load is None:
        return None, "it does not load"
    base = fact.load.base
    if base == EMPTY:
        return None, "it has no snapshot, so that its load is the replay of all changelogs"
    numbers = {one.version for one in files.changelogs}
    first = base.version
    while first in numbers:
        first -= 1
    older = (one for one in files.snapshots if first <= one.version < base.version)
    found = max(older, default=None, key=lambda one: one.version)
    if found is not None:
        return found, ""
    if first == 0 and not needs_base:
        return EMPTY, ""
    if first == base.version:
        return None, f"its snapshot of {base.in_words} has no changelog of that batch"
    return None, f"no snapshot before {base.in_words} is left with the changelogs since"


class _Past:
    """Tells versions of structure V1 with one number apart: by the offsets of their batch, which have the time at which it
    began, and by the journals of rewrites."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[int, str] = {}
        self._rewrites: str | None = None

    def of(self, version: int) -> str:
        """Identify the content of a version. One request, and one listing for the first. Raises `StorageError`."""
        if self._rewrites is None:
            listed = self._storage.list(names.SWITCHOVERS)
            self._rewrites = _digest(f"{one.path} {stamp(one)}".encode() for one in listed)
        if version not in self._known:
            offsets = read_or_none(self._storage, names.offsets(version - 1))
            self._known[version] = _digest([self._rewrites.encode(), offsets or b""])
        return self._known[version]


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in sorted(parts):
        digest.update(part + b"\0")
    return digest.hexdigest()


def again(storage: Storage, one: StoreFacts, facts: DrillFacts, *, stopped: bool) -> StoreFacts | None:
    """Look at a store again whose load failed; None if the query has committed no version of it since. Spark deletes the
    files of old versions while its query runs. Raises as `gather`."""
    heads = catalog.heads(storage)
    head = None if heads is None else heads.heads.get(one.store)
    if heads is None or head is None or heads.batch == facts.batch:
        return None
    files = catalog.files(storage, one.store.folder, provider=facts.gathered.conf.provider).of(one.store)
    is_final = stopped or head.mark is not None
    target = head if is_final else VersionId(max(0, head.version - LIVE_MARGIN_VERSIONS))
    fact = replace(snapshot.facts_of(storage, one.store, target, files), head=head)
    # Not compared with an earlier drill: that is worth no more requests for a store whose files are being deleted.
    found = _facts(storage, facts.gathered, fact, files, _Past(storage), None, facts.families)
    return None if found.version == one.version else found
