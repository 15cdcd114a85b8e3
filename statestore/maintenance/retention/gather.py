"""Looks at the stores in which something can have changed, and at the logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from statestore import catalog, switch_journal
from statestore.catalog import StoreFiles
from statestore.chain import Chain, FileProblem, SnapshotFacts, look_at_snapshot, walk
from statestore.clock import Clock
from statestore.commit_log import CommitLog
from statestore.errors import DAMAGES, CorruptFile
from statestore.format import names
from statestore.format.names import StorePath, VersionId
from statestore.format.state_conf import OURS
from statestore.maintenance import announcements, quarantine, verification
from statestore.maintenance.history import newest_outcome_among
from statestore.maintenance.retention import last_pass
from statestore.maintenance.retention.facts import (
    LogFiles,
    RetentionFacts,
    Strays,
    batch_of,
    common_floor,
    is_young,
    loadable,
)
from statestore.maintenance.retention.last_pass import LastPass
from statestore.maintenance.retention.verdicts import RetentionPolicy
from statestore.maintenance.verification import Reads
from statestore.stateless import stateless
from statestore.storage import TEMP_FOLDER, Entry, Storage, at_once, is_hidden


def gather(storage: Storage, policy: RetentionPolicy, *, clock: Clock, everything: bool = False) -> RetentionFacts:
    """The facts about the stores in which something may have changed since the last pass, or about `everything`.

    Everything: one listing of `state/`, one request a retained batch of the commit log, and one for those below it from
    which a base has to be followed, one for the lineage of each store's head,
    one for each retained snapshot, one for what became of the last snapshots. Otherwise none of these but for the stores
    that are due, the last one, and one of the newest commit. And a listing of each log, of what repairs have
    quarantined and
    of switchovers, and the record of reads; of a checkpoint of Spark's, the newest offsets. Raises `NotACheckpoint`,
    `CorruptFile` for a commit log that cannot be read (nothing may be deleted then), `UnknownFormatVersion` also for a
    state store that is not RocksDB, `StorageError`.
    """
    is_own = storage.stat(names.BINDING) is not None
    # The log before the files: what is committed in between is newer than this head, and stays.
    heads = catalog.heads(storage)
    logs = _log_files(storage)
    now = clock.now_seconds()
    if heads is None:
        return RetentionFacts(is_own, None, (), {}, logs, 0, now)
    # Another kind of state store, which has other files, is rejected here.
    conf = OURS if is_own else catalog.state_conf(storage, heads)
    without_state = None if is_own else stateless(storage, heads.batch, heads.heads)
    if without_state is not None:
        return RetentionFacts(is_own, None, (), {}, logs, 0, now, stateless=without_state)
    reads = verification.record(storage)
    wanted = _wanted_floor(heads.batch + 1, logs.commits, policy, now)
    look = _Look(storage, policy, now, is_own, _failed(storage, logs), reads)
    # In structure V1 the commits of all bases stay, so that all stores have to be looked at.
    is_v1 = any(head.digest is not None for head in heads.heads.values())
    last = None if everything or not is_own or is_v1 else last_pass.read(storage)
    if last is not None:
        due = _due(storage, last, logs, wanted)
        if due is not None and due <= heads.heads.keys():
            files = {store: catalog.files(storage, store.folder).get(store, StoreFiles()) for store in sorted(due)}
            log = CommitLog(heads)
            chains, strays = look.at(log, files, wanted)
            if common_floor(chains, wanted) == wanted or not chains:
                facts = RetentionFacts(is_own, log, chains, strays, logs, wanted, now, last, reads=reads)
                return _with_quarantine(storage, facts)
    full = catalog.commit_log(storage, down_to=wanted - 1)
    assert full is not None
    listed = storage.list(names.STATE)
    found = catalog.by_store(listed)
    look = replace(look, with_families=catalog.with_families(entry.path for entry in listed))
    every = {store: found.get(store, StoreFiles()) for store in full.newest.heads}
    chains, strays = look.at(full, every, wanted)
    return _with_quarantine(
        storage, RetentionFacts(is_own, full, chains, strays, logs, wanted, now, reads=reads, conf=conf)
    )


def _with_quarantine(storage: Storage, gathered: RetentionFacts) -> RetentionFacts:
    """The same with what repairs have quarantined, and with switchovers. Call it after the files were listed.

    Losing schedule of the other order: what is quarantined is listed; a repair quarantines a snapshot; the files are
    listed, and nothing names its tables. Of an undo at that moment the second look before the deletions knows.
    """
    entries = tuple(storage.list(names.QUARANTINE))
    stores = [chain.store for chain in gathered.chains]
    logs = replace(gathered.logs, quarantine=entries)
    journals = [entry.path for entry in storage.list(names.SWITCHOVERS)]
    switched = switch_journal.newest_switched(storage, journals)
    unseen = {store: found[0].shown for store in stores if (found := storage.omissions.below(store.folder))}
    return replace(
        gathered, logs=logs, quarantine=quarantine.snapshots(storage, entries, stores), switched=switched, unseen=unseen
    )


def _due(storage: Storage, last: LastPass, logs: LogFiles, wanted: int) -> frozenset[StorePath] | None:
    """The stores to look at since the last pass; None when all have to be."""
    since = last_pass.snapshot_plans(logs.history) - last.plans
    try:
        return last.due(wanted, last_pass.planned_stores(storage, since))
    except CorruptFile:
        return None


@dataclass(frozen=True)
class _Look:
    """Looks at stores. `failed`: why the newest run could make no snapshot of a store, by the store; `reads`: the record of
    files that were read in full; `with_families`: the operators whose stores have column families, a root of our own has
    none."""

    storage: Storage
    policy: RetentionPolicy
    now_seconds: float
    is_own: bool
    failed: Mapping[str, str]
    reads: Reads
    with_families: frozenset[int] = frozenset()

    def at(
        self, log: CommitLog, files: Mapping[StorePath, StoreFiles], wanted: int
    ) -> tuple[tuple[Chain, ...], Strays]:
        """The chains of these stores, as far back as a floor needs, and the snapshots that are not on them and may
        stay. Call it after the files were listed."""
        # Losing schedule of the other order: the announcements are read; another run announces a table, sees no zip that
        # names it, and sleeps before it deletes; a snapshot that names it is published, and found whole here; what is
        # below it is deleted; the other run wakes up. Its announcement came before that snapshot.
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
                why = self.failed.get(str(store))
                chains[store] = chain if why is None else _doubted(chain, why)

            at_once(follow, stores)
            down_to = _deeper(list(chains.values()), depth)
        strays: dict[StorePath, dict[VersionId, SnapshotFacts]] = {store: {} for store in stores}

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
                not self.is_own  # what Spark's snapshots name, Spark may name again
                or version.version > chain.versions[0].version
                or (version.id is None) != (chain.head.id is None)  # the way back may need it, and its tables
                or is_young(entry, self.policy.grace_seconds, self.now_seconds)
            )
        ]


def _by_path(files: StoreFiles) -> Mapping[str, Entry]:
    return {entry.path: entry for entry in files.entries}


def _failed(storage: Storage, logs: LogFiles) -> Mapping[str, str]:
    try:
        lines = newest_outcome_among(storage, "snapshot", logs.history)
    except CorruptFile:
        return {}  # a record is for people
    damaged = {error.code for error in DAMAGES}
    # A run that failed as a whole has a line, too, which names no store.
    return {str(line["store"]): str(line["error"]) for line in lines if "store" in line and line.get("code") in damaged}


def _doubted(chain: Chain, why: str) -> Chain:
    """Changelogs are assumed valid (only name and size are checked). If no snapshot could be made of them, one of them is
    damaged. Which one does not matter: every store has to be able to return to a version with a snapshot."""
    whole = (version.version for version, facts in chain.snapshots.items() if facts.is_whole)
    newest = max(whole, default=0)
    text = f"no snapshot could be made of it: {why}"
    doubted = {v: FileProblem(chain.store.changelog(v), text) for v in chain.versions if v.version > newest}
    return replace(chain, broken={**doubted, **chain.broken})


def _log_files(storage: Storage) -> LogFiles:
    offsets, commits = (storage.list(folder, hidden=True) for folder in (names.OFFSETS, names.COMMITS))
    others = (storage.list(folder) for folder in (names.PENDING, names.HISTORY, names.DELETING, TEMP_FOLDER))
    pending, history, announcements, leftovers = (tuple(listed) for listed in others)
    return LogFiles(
        tuple(entry for entry in offsets if not is_hidden(entry.path)),
        tuple(entry for entry in commits if not is_hidden(entry.path)),
        pending,
        history,
        announcements,
        leftovers,
        checksums=(*_left_checksums(offsets), *_left_checksums(commits)),
    )


def _left_checksums(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Hadoop's hidden checksums of logs that are deleted.

    Such a checksum remains if a run dies between the two deletions on a local disk, and if a checkpoint with hidden files
    was copied to a bucket, where no delete removes the checksum beside the log.
    """
    expected = {names.hidden_checksum(entry.path) for entry in entries}
    for entry in entries:
        if is_hidden(entry.path) and batch_of(entry.path) is not None and entry.path not in expected:
            yield entry


def _wanted_floor(head: int, commits: Iterable[Entry], policy: RetentionPolicy, now_seconds: float) -> int:
    """The oldest version to retain, by count and by age."""
    young = [
        batch + 1
        for batch, entry in ((names.parse_batch(entry.path.rpartition("/")[2]), entry) for entry in commits)
        if batch is not None and is_young(entry, policy.grace_seconds, now_seconds)
    ]
    # Below the oldest batch that there still is, nothing can be retained: an earlier pass has let it go.
    there = [batch + 1 for batch in (batch_of(entry.path) for entry in commits) if batch is not None]
    return max(1, min([head - policy.versions + 1, *young]), min(there, default=1))


def _deeper(chains: list[Chain], depth: int) -> int | None:
    """How far back the chains must be known before a floor can be found; None when no further walk helps."""
    if common_floor(chains, depth) is not None:
        return None
    reachable = [max((number for number in loadable(chain) if number <= depth), default=None) for chain in chains]
    known = [version for version in reachable if version is not None]
    lowest = min(known, default=depth)
    return lowest if len(known) == len(chains) and lowest < depth else None
