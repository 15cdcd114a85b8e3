"""Gathers the facts for a retention plan: the stores that may have changed, and the logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import DAMAGES, CorruptFile
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint import leftovers as hidden_checksums
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.commit_log import CommitLog
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.contents.chain import Chain, StoredSnapshot, look_at_snapshot, walk
from statekeeper.statestore.format import names, savepoint_names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.records import announcements, holds, quarantine
from statekeeper.statestore.maintenance.records.history import FailedSnapshot, newest_outcome_among
from statekeeper.statestore.maintenance.records.holds import Hold
from statekeeper.statestore.maintenance.upkeep import verification
from statekeeper.statestore.maintenance.upkeep.retention import last_pass, uploads
from statekeeper.statestore.maintenance.upkeep.retention.execute import removed_stores, unnamed_from
from statekeeper.statestore.maintenance.upkeep.retention.last_pass import LastPass
from statekeeper.statestore.maintenance.upkeep.retention.model import (
    BatchLogFile,
    LogFiles,
    RetentionFacts,
    RetentionPolicy,
    Strays,
    batch_of,
    common_floor,
    gathers_only_due_stores,
    is_young,
    loadable,
)
from statekeeper.statestore.maintenance.upkeep.verification import Reads
from statekeeper.statestore.storage import TEMP_FOLDER, Entry, Members, Storage, at_once, is_hidden, list_members

_RECORDS = (names.PENDING, names.HISTORY, names.DELETING, savepoint_names.HOLDS, TEMP_FOLDER)


def gather(storage: Storage, policy: RetentionPolicy, *, clock: Clock, everything: bool = False) -> RetentionFacts:
    """Gather the facts about the stores that may have changed since the last pass, or about all stores (`everything`).

    Requests in all cases: the newest commit; a listing of each log, of the holds, of the quarantine and of the switchovers;
    each hold; the record of reads; the newest snapshot outcome; for a Spark checkpoint, the newest offsets. For all stores:
    one listing of `state/`; one request for each retained batch of the commit log, and for each older batch down to a base;
    one for the lineage of each head; one for each retained snapshot; another listing of batch logs, if there are any. For
    due stores only: the same, for these stores. With `everything`, in an own root on S3: one for the unfinished uploads,
    and one for each.

    Raises `NotACheckpoint`; `CorruptFile` if the commit log cannot be read (then nothing may be deleted);
    `UnknownFormatVersion`, also for a state store that is not RocksDB; `StorageError`.
    """
    origin = origin_of(storage)
    # Read the log before the files: a batch that is committed in between is newer than this head, and its files are kept.
    heads = catalog.heads(storage)
    members = list_members(storage)
    logs = _log_files(storage, members)
    if everything and origin is Origin.OWN:
        # Spark's connector has uploads of its own below a native root.
        unfinished, problem = uploads.find(storage)
        logs = replace(logs, uploads=unfinished, upload_problem=problem)
    now = clock.now_seconds()
    if heads is None:
        return RetentionFacts(origin=origin, log=None, chains=(), strays={}, logs=logs, wanted_floor=0, now_seconds=now)
    # This rejects state stores other than RocksDB, whose files have other names.
    conf = origin.state_conf(storage, heads)
    without_state = origin.stateless(storage, heads)
    if without_state is not None:
        return RetentionFacts(
            origin=origin,
            log=None,
            chains=(),
            strays={},
            logs=logs,
            wanted_floor=0,
            now_seconds=now,
            stateless=without_state,
        )
    reads = verification.record(storage)
    held = holds.among(storage, logs.holds, logs.newest_seconds)
    wanted = _wanted_floor(heads.batch + 1, logs.commits, policy, now, held)
    look = _Look(
        storage=storage, policy=policy, now_seconds=now, origin=origin, failed=_failed(storage, logs), reads=reads
    )
    is_partial = not everything and gathers_only_due_stores(origin, heads, logs)
    last = last_pass.read(storage) if is_partial else None
    if last is not None:
        due = _due(storage, last, logs, wanted)
        if due is not None and due <= heads.heads.keys():
            files = {store: catalog.files(storage, store.folder).of(store) for store in sorted(due)}
            log = CommitLog(heads)
            chains, strays = look.at(log, files, wanted)
            if common_floor(chains, wanted) == wanted or not chains:
                facts = RetentionFacts(
                    origin=origin,
                    log=log,
                    chains=chains,
                    strays=strays,
                    logs=logs,
                    wanted_floor=wanted,
                    now_seconds=now,
                    since=last,
                    reads=reads,
                    holds=held,
                )
                return _with_quarantine(storage, facts)
    full = catalog.commit_log(storage, down_to=wanted - 1)
    assert full is not None
    if logs.batch_logs:
        # Race: the batch logs are listed; batches are committed, and a snapshot of them is made; the commit log is read
        # again, with a newer head. Their changelogs would seem to be missing, and the floor would rise to the snapshot.
        members = list_members(storage)
        logs = replace(logs, batch_logs=_batch_log_files(members))
    listed = storage.list(names.STATE)
    found = catalog.with_members(members, listed)
    look = replace(look, with_families=catalog.with_families(entry.path for entry in listed))
    every = {store: found.of(store) for store in full.newest.heads}
    chains, strays = look.at(full, every, wanted)
    removed = removed_stores(found, full.newest.heads.keys())
    lowest = min([wanted, *(chain.versions[0].version for chain in chains if chain.versions)])
    return _with_quarantine(
        storage,
        RetentionFacts(
            origin=origin,
            log=full,
            chains=chains,
            strays=strays,
            logs=logs,
            wanted_floor=wanted,
            now_seconds=now,
            reads=reads,
            conf=conf,
            holds=held,
            removed=removed,
            unnamed_from=unnamed_from(full, removed.keys(), down_to=lowest - 1),
        ),
    )


def _with_quarantine(storage: Storage, gathered: RetentionFacts) -> RetentionFacts:
    """Add the quarantine and the switchovers to the facts. Call this after the files were listed.

    Race in the other order: the quarantine is listed; a repair quarantines a snapshot; the files are listed, and no
    snapshot names its tables. An undo at the same time is detected by the second look before the deletions.
    """
    entries = quarantine.files(storage)
    stores = [*(chain.store for chain in gathered.chains), *gathered.removed]
    logs = replace(gathered.logs, quarantine=entries)
    journals = [entry.path for entry in storage.list(names.SWITCHOVERS)]
    switched = rewrite_journal.newest_switched(storage, journals)
    unseen = {store: found[0].shown for store in stores if (found := storage.omissions.below(store.folder))}
    return replace(
        gathered, logs=logs, quarantine=quarantine.snapshots(storage, entries, stores), switched=switched, unseen=unseen
    )


def _due(storage: Storage, last: LastPass, logs: LogFiles, wanted: int) -> frozenset[StorePath] | None:
    """Return the stores to gather since the last pass; None for all stores."""
    since = last_pass.snapshot_plans(logs.history) - last.plans
    try:
        return last.due(wanted, last_pass.planned_stores(storage, since))
    except CorruptFile:
        return None


@dataclass(frozen=True, kw_only=True)
class _Look:
    """Gathers stores.

    `failed`: errors of the newest snapshot run that show damage, by store; `reads`: record of the files that were read in
    full; `with_families`: operators whose stores have column families (an own root has none).
    """

    storage: Storage
    policy: RetentionPolicy
    now_seconds: float
    origin: Origin
    failed: Mapping[StorePath, str]
    reads: Reads
    with_families: frozenset[int] = frozenset()

    def at(
        self, log: CommitLog, files: Mapping[StorePath, StoreFiles], wanted: int
    ) -> tuple[tuple[Chain, ...], Strays]:
        """Return the chains of these stores, as far back as a floor needs, and the snapshots beside the chains that may be
        kept. Call this after the files were listed."""
        # Race in the other order: the announcements are read; another run announces a table, finds no zip that names it,
        # and stalls; a snapshot that names the table is published and is intact here; the files below that snapshot are
        # deleted; the other run continues and deletes the table. Its announcement is older than the snapshot.
        pending_delete = announcements.pending_delete(self.storage)
        stores = sorted(files)
        faults = {store: verification.faults(self.reads, _by_path(files[store])) for store in stores}
        chains: dict[StorePath, Chain] = {}
        down_to: int | None = wanted
        while down_to is not None:
            depth = down_to

            def follow(store: StorePath, depth: int = depth) -> None:
                committed = log.of_store(store)
                chain = walk(
                    self.storage,
                    store,
                    log.newest.heads[store],
                    committed,
                    files[store],
                    down_to=depth,
                    pending_delete=pending_delete,
                    faults=faults[store],
                    is_first=lambda version: log.is_first(committed, version),
                    needs_base=store.operator in self.with_families,
                )
                error = self.failed.get(store)
                chains[store] = chain if error is None else _doubted(chain, error)

            at_once(follow, stores)
            down_to = _deeper(list(chains.values()), depth)
        strays: dict[StorePath, dict[VersionId, StoredSnapshot]] = {store: {} for store in stores}

        def read(place: tuple[StorePath, VersionId]) -> None:
            store, version = place
            strays[store][version] = look_at_snapshot(self.storage, store, version, files[store])

        at_once(read, [(store, version) for store in stores for version in self._beside(chains[store])])
        return tuple(chains[store] for store in stores), strays

    def _beside(self, chain: Chain) -> list[VersionId]:
        return [
            version
            for version, entry in chain.files.snapshots.items()
            if version not in chain.snapshots
            and (
                self.origin is Origin.NATIVE  # Spark may reference the tables of its snapshots again
                or version.version > chain.versions[0].version
                or (version.id is None) != (chain.head.id is None)  # a switch back may need it and its tables
                or is_young(entry, self.policy.grace_seconds, self.now_seconds)
            )
        ]


def _by_path(files: StoreFiles) -> Mapping[str, Entry]:
    return {entry.path: entry for entry in files.entries}


def _failed(storage: Storage, logs: LogFiles) -> Mapping[StorePath, str]:
    """Return the stores whose files the newest snapshot run found damaged, with the error. The record is a hint."""
    try:
        outcome = newest_outcome_among(storage, "snapshot", logs.history)
    except CorruptFile:
        return {}
    damaged = {error.code for error in DAMAGES}
    failed = (record for record in outcome if isinstance(record, FailedSnapshot))
    return {record.store: record.error for record in failed if record.code in damaged}


def _doubted(chain: Chain, error: str) -> Chain:
    """Mark the versions after the newest intact snapshot as not loadable: no snapshot could be made of them.

    Changelogs are assumed valid (only name and size are checked). A failed snapshot shows that one of them is damaged. It
    does not matter which one: every store must be able to return to a version with a snapshot.
    """
    whole = (version.version for version, facts in chain.snapshots.items() if facts.is_whole)
    newest = max(whole, default=0)
    text = f"the last snapshot of the store failed: {error}"
    doubted = {
        version: FileProblem(chain.store.changelog(version), Flaw.CORRUPT, text)
        for version in chain.versions
        if version.version > newest
    }
    return replace(chain, broken={**doubted, **chain.broken})


def _log_files(storage: Storage, members: Members) -> LogFiles:
    offsets, commits = (storage.list(folder, hidden=True) for folder in (names.OFFSETS, names.COMMITS))
    others = (storage.list(folder) for folder in _RECORDS)
    pending, history, announcements, held, leftovers = (tuple(listed) for listed in others)
    return LogFiles(
        offsets=tuple(entry for entry in offsets if not is_hidden(entry.path)),
        commits=tuple(entry for entry in commits if not is_hidden(entry.path)),
        pending=pending,
        history=history,
        announcements=announcements,
        holds=held,
        leftovers=leftovers,
        checksums=(*hidden_checksums.of_deleted_logs(offsets), *hidden_checksums.of_deleted_logs(commits)),
        batch_logs=_batch_log_files(members),
    )


def _batch_log_files(members: Members) -> tuple[BatchLogFile, ...]:
    return tuple(
        BatchLogFile(entry, None if log is None else {place: one.length for place, one in log.members.items()})
        for entry, log in members.logs
    )


def _wanted_floor(
    head: int, commits: Iterable[Entry], policy: RetentionPolicy, now_seconds: float, held: Iterable[Hold]
) -> int:
    """Return the oldest version to retain, by count, by age and by the holds."""
    young = [
        batch + 1
        for batch, entry in ((batch_of(entry.path), entry) for entry in commits)
        if batch is not None and is_young(entry, policy.grace_seconds, now_seconds)
    ]
    # Batches before the oldest commit cannot be retained: an earlier pass deleted their logs.
    there = [batch + 1 for batch in (batch_of(entry.path) for entry in commits) if batch is not None]
    return max(1, min([head - policy.versions + 1, *young, *(hold.version for hold in held)]), min(there, default=1))


def _deeper(chains: list[Chain], depth: int) -> int | None:
    """Return the version down to which the chains must be walked to find a floor; None if a longer walk does not help."""
    if common_floor(chains, depth) is not None:
        return None
    reachable = [max((number for number in loadable(chain) if number <= depth), default=None) for chain in chains]
    known = [version for version in reachable if version is not None]
    lowest = min(known, default=depth)
    return lowest if len(known) == len(chains) and lowest < depth else None
