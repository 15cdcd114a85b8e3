"""Gathers the facts for a snapshot plan: the heads of all stores and their tails."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.commit_log import batches_of
from statekeeper.statestore.checkpoint.lineage import Lineage, LoadPlan, NeedsHeader, NotLoadable, next_step
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.contents.chain import look_at_snapshot
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.sparks import with_checksums
from statekeeper.statestore.format.state_conf import ROCKSDB
from statekeeper.statestore.maintenance.records.history import TakenSnapshot, newest_outcome
from statekeeper.statestore.maintenance.upkeep.snapshot.model import (
    REPLAY_BYTES_PER_SECOND,
    SnapshotFacts,
    StoreSnapshotFacts,
)
from statekeeper.statestore.storage import MemberEntry, Storage, at_once

_MEASURED_FROM_BYTES = 1024 * 1024
"""The time of a shorter tail depends more on the requests than on the replay."""

LIVE_MARGIN_VERSIONS = 2
"""In structure V1, an attempt that Spark considers dead may still replace the newest changelogs of a running query."""


_MOST_OLDER_BATCHES = 10
"""Older batches that `gather_readable` tries: a damage that all commits share must not cost requests for each of them."""


def gather(
    storage: Storage, *, at_head: bool = False, supported: Collection[Provider] = ROCKSDB, batch: int | None = None
) -> SnapshotFacts:
    """Gather the facts about all stores at the newest committed batch, or at `batch`.

    `at_head`: use that batch also for a Spark checkpoint in structure V1, which requires a stopped query; else use a batch
    `LIVE_MARGIN_VERSIONS` earlier there. Requests: two listings of `state/`, one of `commits/`, one of the history; one
    request for each operator; the newest offsets of a Spark checkpoint; one request for each store, for the lineage of its
    newest changelog or the snapshot at its head. Raises `NotACheckpoint`, `CorruptFile`, `UnknownFormatVersion`,
    `UnsupportedProvider` for a provider that is not `supported`, `StorageError`.
    """
    origin = origin_of(storage)
    heads = catalog.heads(storage) if batch is None else catalog.heads_at(storage, batch)
    if heads is None:
        return SnapshotFacts(batch=None, origin=origin, stores=())
    conf = origin.state_conf(storage, heads, supported)
    without_state = origin.stateless(storage, heads)
    files = catalog.files(storage, provider=conf.provider)
    found: dict[StorePath, StoreSnapshotFacts] = {}

    def look(store: StorePath) -> None:
        of_store = files.of(store)
        entries = of_store.entries
        head = heads.heads[store]
        target = head if origin is Origin.OWN or at_head or head.id is not None else _settled(head)
        facts = facts_of(storage, store, target, of_store)
        if facts.load is None and (newer := _newer_snapshot(of_store, target, head)) is not None:
            # Retention has deleted the older version: a newer snapshot replaced it as the base.
            facts = facts_of(storage, store, newer, of_store)
        found[store] = replace(
            facts,
            head=head,
            snapshots=len(of_store.snapshots),
            files=sum(not isinstance(entry, MemberEntry) for entry in entries),
            size_bytes=sum(entry.size_bytes for entry in entries),
        )

    at_once(look, list(heads.heads))
    rate = _measured_rate(storage) if origin is Origin.OWN else REPLAY_BYTES_PER_SECOND
    written_by = with_checksums(conf.written_by) if catalog.have_sidecars(heads, files) else conf.written_by
    stores = tuple(found[store] for store in sorted(found))
    return SnapshotFacts(
        batch=heads.batch,
        origin=origin,
        stores=stores,
        replay_bytes_per_second=rate,
        conf=conf,
        written_by=written_by,
        stateless=without_state,
    )


def gather_readable(
    storage: Storage, *, supported: Collection[Provider] = ROCKSDB
) -> tuple[SnapshotFacts, StatekeeperError | None]:
    """Gather the facts as `gather` at the head; if the commit or the offsets of the newest batch are damaged, those at the
    newest older batch that can be read, and the error about the damage. Raises as `gather`."""
    try:
        return gather(storage, at_head=True, supported=supported), None
    except (CorruptFile, ObjectMissing, UnknownFormatVersion) as error:
        batches = sorted(batches_of(storage.list(names.COMMITS)), reverse=True)
        if not batches or error.path not in (names.commits(batches[0]), names.offsets(batches[0])):
            raise
        for batch in batches[1 : _MOST_OLDER_BATCHES + 1]:
            with suppress(CorruptFile, ObjectMissing, UnknownFormatVersion):
                return gather(storage, at_head=True, supported=supported, batch=batch), error
        raise


def _settled(head: VersionId) -> VersionId:
    return VersionId(max(0, head.version - LIVE_MARGIN_VERSIONS))


def _newer_snapshot(files: catalog.StoreFiles, target: VersionId, head: VersionId) -> VersionId | None:
    """Return the newest structure V1 snapshot after `target`, up to the head."""
    newer = (version for version in files.snapshots if version.id is None)
    return max((v for v in newer if target.version < v.version <= head.version), default=None)


def _measured_rate(storage: Storage) -> float:
    """Return the rate that the newest snapshot run measured. The record is a hint: without one, return the default."""
    try:
        outcome = newest_outcome(storage, "snapshot")
    except CorruptFile:
        return REPLAY_BYTES_PER_SECOND
    taken = [record for record in outcome if isinstance(record, TakenSnapshot)]
    long = [record for record in taken if record.tail_bytes >= _MEASURED_FROM_BYTES]
    seconds = sum(record.restore_seconds for record in long)
    size = sum(record.tail_bytes for record in long)
    return size / seconds if seconds > 0 else REPLAY_BYTES_PER_SECOND


def facts_of(storage: Storage, store: StorePath, head: VersionId, files: catalog.StoreFiles) -> StoreSnapshotFacts:
    """Return the facts about the load of a version of a store. Raises `StorageError`."""
    headers: dict[VersionId, Lineage] = {}
    # Before the load is planned: a damaged version number must not become a list of billions.
    if head.id is None and (hole := _hole(head, files)) is not None:
        return StoreSnapshotFacts(
            store=store, head=head, load=None, tail_bytes=0, problem=f"{store.changelog(hole)} is missing"
        )
    while True:
        step = next_step(head, snapshots=files.snapshots.keys(), local=None, headers=headers)
        match step:
            case LoadPlan(base=base, replay=()):
                facts = None if base == EMPTY else look_at_snapshot(storage, store, base, files)
                problem = None if facts is None or facts.damage is None else str(facts.damage)
                if facts is not None and facts.sidecar is not None:
                    problem = f"{names.sidecar(store.snapshot(base))}: {facts.sidecar}"
                return StoreSnapshotFacts(store=store, head=head, load=step, tail_bytes=0, problem=problem)
            case LoadPlan():
                gone = next((version for version in step.replay if version not in files.changelogs), None)
                if gone is not None:
                    problem = str(files.unlisted(store, gone))
                    return StoreSnapshotFacts(store=store, head=head, load=None, tail_bytes=0, problem=problem)
                tail_bytes = sum(files.changelogs[v].size_bytes for v in step.replay)
                return StoreSnapshotFacts(
                    store=store,
                    head=head,
                    load=step,
                    tail_bytes=tail_bytes,
                    stray_sidecar=_stray_sidecar(store, step, files),
                )
            case NeedsHeader(version):
                try:
                    headers[version] = catalog.lineage(storage, store, version)
                except (ObjectMissing, CorruptFile, UnknownFormatVersion) as error:
                    return StoreSnapshotFacts(store=store, head=head, load=None, tail_bytes=0, problem=str(error))
            case NotLoadable(missing, reason):
                return StoreSnapshotFacts(
                    store=store, head=head, load=None, tail_bytes=0, problem=f"{store.changelog(missing)}: {reason}"
                )


def _stray_sidecar(store: StorePath, load: LoadPlan, files: catalog.StoreFiles) -> str | None:
    """Return an existing sidecar with the name of the planned snapshot. Spark reads no sidecar in structure V1."""
    target = load.replay[-1]
    path = names.sidecar(store.snapshot(target))
    return path if target.id is not None and files.has_other(path) else None


def _hole(head: VersionId, files: catalog.StoreFiles) -> VersionId | None:
    """Return the first version between the newest snapshot and the head without a changelog, in structure V1."""
    base = max((s.version for s in files.snapshots if s.id is None and s.version <= head.version), default=0)
    after = (VersionId(number) for number in range(base + 1, head.version + 1))
    return next((version for version in after if version not in files.changelogs), None)
