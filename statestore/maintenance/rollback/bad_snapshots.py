"""Find corrupt snapshots and checksum files that block a snapshot: facts for a repair. Read-only.

    checksum file without its zip                 Spark rejects a new zip of that name
    checksum file that does not match its zip     Spark rejects the intact zip
    corrupt zip or SST file                       a load fails, or falls back to an older snapshot

A corrupt snapshot is included only if the head of its store loads without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.commit_log import Heads
from statekeeper.statestore.checkpoint.origin import origin_of
from statekeeper.statestore.contents.chain import Chain, walk
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance.executors import Executor
from statekeeper.statestore.maintenance.upkeep import verification
from statekeeper.statestore.maintenance.upkeep.verification import Reads, SnapshotRead
from statekeeper.statestore.maintenance.upkeep.verification.read_back import ReadBack, read_all
from statekeeper.statestore.storage import Storage, at_once


@dataclass(frozen=True)
class BadSnapshots:
    """Paths. `strays`: checksum files without zip; `refused`: intact zips that do not match their checksum file; `damaged`:
    zips of corrupt snapshots."""

    strays: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


def bad_snapshots(
    storage: Storage, heads: Heads, files: Mapping[StorePath, StoreFiles], *, deep: Executor | None = None
) -> BadSnapshots:
    """Find bad snapshots up to the head of each store. `deep`: reads snapshots in full that are not on record.

    Requests: one listing, the record of reads, for each store the lineage of its head, and one for each snapshot.
    Raises `StorageError`; with `deep` also `LocalStateError`.
    """
    families = catalog.with_families(entry.path for entry in storage.list(names.STATE))
    reads = dict(verification.record(storage))
    chains: dict[StorePath, Chain] = {}

    def follow(store: StorePath) -> None:
        of_store = files[store]
        faults = verification.faults(reads, {entry.path: entry for entry in of_store.entries})
        head = heads.heads[store]
        needs_base = store.operator in families
        chains[store] = walk(storage, store, head, {}, of_store, faults=faults, needs_base=needs_base)

    stores = [store for store, head in heads.heads.items() if store in files and head.version > 0]
    at_once(follow, stores)
    if deep is not None:
        conf = origin_of(storage).state_conf(storage, heads)
        _read(storage, list(chains.values()), reads, conf, deep)
        at_once(follow, stores)
    strays = [path for store in stores for path in _strays(store, files[store], heads.heads[store])]
    refused: list[str] = []
    damaged: list[str] = []
    for store, chain in chains.items():
        loads = chain.head in chain.bases
        for version, facts in chain.snapshots.items():
            if facts.sidecar is not None:
                refused.append(store.snapshot(version))
            elif facts.damage is not None and not facts.is_unknown and loads:
                damaged.append(store.snapshot(version))
    return BadSnapshots(tuple(sorted(strays)), tuple(sorted(refused)), tuple(sorted(damaged)))


def _strays(store: StorePath, files: StoreFiles, head: VersionId) -> list[str]:
    found = []
    for entry in files.others:
        place = names.parse_store_path(entry.path.removesuffix(names.SIDECAR))
        if place is None or not entry.path.endswith(names.SIDECAR):
            continue
        kind, version = place[1].kind, place[1].version
        is_zip = kind is names.StoreFileKind.SNAPSHOT and version.id is not None
        if is_zip and version.version <= head.version and version not in files.snapshots:
            found.append(entry.path)
    return found


def _read(
    storage: Storage, chains: list[Chain], reads: dict[str, verification.FileRead], conf: StateConf, deep: Executor
) -> None:
    """Read the whole snapshots of these chains in full, and add the results to `reads`."""
    failed: list[StatekeeperError] = []

    def ended(read: SnapshotRead, outcome: ReadBack | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
        else:
            reads.update({one.path: one for one in outcome.files})

    # One snapshot of each store at a time, the oldest first, so that a shared SST file is read once.
    waiting = {chain.store: sorted(v for v, facts in chain.snapshots.items() if facts.is_whole) for chain in chains}
    while any(waiting.values()):
        found: Reads = dict(reads)
        turn = [
            verification.reads_before(chain, waiting[chain.store].pop(0), found, conf)
            for chain in chains
            if waiting[chain.store]
        ]
        due = [read for read in turn if read is not None]
        read_all(storage, due, ended, executor=deep)
    if failed:
        raise failed[0]
