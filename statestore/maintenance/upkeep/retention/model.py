"""The types of a retention plan: policy, rules, verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from statekeeper.statestore.checkpoint import leftovers as hidden_checksums
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.commit_log import CommitLog, Heads
from statekeeper.statestore.checkpoint.file_problem import FileProblem
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.stateless import Stateless
from statekeeper.statestore.contents.chain import Chain, StoredSnapshot
from statekeeper.statestore.format import names, sparks
from statekeeper.statestore.format.batch_log import Place
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.maintenance.records.holds import Hold
from statekeeper.statestore.maintenance.records.quarantine import Snapshots
from statekeeper.statestore.maintenance.upkeep.retention.last_pass import LastPass
from statekeeper.statestore.maintenance.upkeep.verification import Reads, SnapshotRead
from statekeeper.statestore.storage import Entry, UnfinishedUpload


@dataclass(frozen=True, kw_only=True)
class RetentionPolicy:
    """What to retain: the newest `versions` versions and all files younger than `grace_seconds`.

    `history_seconds`: minimum age of a maintenance record before it is deleted; `quarantine_seconds`: the same for
    quarantined files. A run deletes at most `most_files` files.
    """

    versions: int = 100
    grace_seconds: float = 3600.0
    history_seconds: float = 30 * 86_400.0
    quarantine_seconds: float = 30 * 86_400.0
    most_files: int = 100_000


class Rule(Enum):
    """Why a file is kept or deleted. The value is the explanation for people, the name is the stable code."""

    RESTORES = "a retained version is restored from this file"
    RUNNING = "newer than the head; its batch may be running"
    YOUNG = "younger than the grace period (maintenance records: younger than retention.history)"
    LOG = "belongs to a retained batch"
    WAY_BACK = "written before the switchover or conversion; kept until the retention floor reaches a later snapshot"
    REUSABLE = "the next snapshot of Spark may reference this table again"
    UPLOADED = "no snapshot references this table yet, but Spark may be writing a snapshot that does"
    QUARANTINE = "in quarantine, or referenced by a quarantined snapshot; needed to undo the repair or the switchover"
    PARTITION = (
        "of a partition that a rescale removed; kept until no retained batch has it and a second snapshot exists"
    )
    STARTS = "Spark reads this file when it starts from the oldest retained batch"
    FORMER_ID = (
        "record of a rewind with a former id of the query, by which optimize and rewind know its batches in a table"
    )
    HELD = "kept because of a finding; run: statekeeper audit ROOT"
    UNKNOWN = "unrecognized file"
    SUPERSEDED = "older than the snapshot from which the oldest retained version is restored"
    DEAD_BRANCH = "written by an attempt that was never committed"
    UNNAMED = "no retained snapshot references this table"
    REMOVED = "belongs to a partition that a rescale removed; no retained batch has the partition"
    OLD_LOG = "belongs to a batch older than the retained ones"
    OLD_RECORD = "old maintenance record"
    OLD_QUARANTINE = "in quarantine for longer than retention.quarantine"
    LEFTOVER = "unfinished upload of a dead process, or what a task of an ended rewrite left behind"

    @property
    def deletes(self) -> bool:
        """Return whether a file under this rule is deleted."""
        return self in _DELETES


_DELETES = frozenset(
    {
        Rule.SUPERSEDED,
        Rule.DEAD_BRANCH,
        Rule.UNNAMED,
        Rule.REMOVED,
        Rule.OLD_LOG,
        Rule.OLD_RECORD,
        Rule.OLD_QUARANTINE,
        Rule.LEFTOVER,
    }
)


REPLACED = frozenset({Rule.SUPERSEDED, Rule.OLD_LOG, Rule.OLD_QUARANTINE, Rule.UNNAMED, Rule.REMOVED})
"""Files under these rules may restore a version if the base of the floor turns out to be damaged."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about one file, or about an unfinished upload."""

    path: str
    size_bytes: int
    rule: Rule
    upload: UnfinishedUpload | None = None


@dataclass(frozen=True)
class StoreVerdicts:
    """The verdicts on the files of one store.

    `base`: the snapshot from which the floor is restored; `EMPTY` if no snapshot is needed; None if the base is unknown. If
    it is unknown, the whole chain is kept, and `problem` states the reason.
    """

    store: StorePath
    base: VersionId | None
    files: tuple[Verdict, ...]
    problem: str | None = None

    @property
    def deletions(self) -> list[Verdict]:
        """Return the files to delete, in order: zips before their tables, then changelogs; the oldest first; a checksum
        after its file."""
        return sorted((v for v in self.files if v.rule.deletes), key=deletion_order)


@dataclass(frozen=True, kw_only=True)
class KeptBatchLogs:
    """Batch logs that retention keeps. One store that needs a changelog keeps the whole object (as in FLIP-306).

    files, size_bytes   objects and their bytes
    live_bytes          bytes of the changelogs in them that a store needs
    laggard             the store with the oldest base, if it keeps objects that not every store needs
    of_laggard          number of these objects
    """

    files: int
    size_bytes: int
    live_bytes: int
    laggard: StorePath | None
    of_laggard: int


@dataclass(frozen=True, kw_only=True)
class RetentionPlan:
    """The verdicts on all files.

    floor             the oldest retained version; None if no version is known to load in every store
    wanted_floor      the floor if all stores were intact
    left_out          number of deletions beyond the bound of a run
    stateless         why the checkpoint has no store
    reads             snapshots to read in full before the first deletion, because no file can replace them afterwards
    reads_on_record   the record of earlier reads, without deleted files
    batch_logs        the kept batch logs; None if there are none
    holds             the batches that other runs read, and that lower the floor
    removed           the verdicts on the files of partitions that a rescale removed
    """

    origin: Origin
    head: int | None
    floor: int | None
    wanted_floor: int
    stores: tuple[StoreVerdicts, ...]
    logs: tuple[Verdict, ...]
    findings: tuple[str, ...]
    left_out: int = 0
    stateless: Stateless | None = None
    reads: tuple[SnapshotRead, ...] = ()
    reads_on_record: Reads = field(default_factory=dict)
    batch_logs: KeptBatchLogs | None = None
    holds: tuple[Hold, ...] = ()
    removed: tuple[StoreVerdicts, ...] = ()

    @property
    def read_bytes(self) -> int:
        """Return the number of bytes to read before the first deletion."""
        return sum(read.size_bytes for read in self.reads)

    @property
    def verdicts(self) -> Iterator[Verdict]:
        """Yield the verdicts on all files."""
        for store in (*self.stores, *self.removed):
            yield from store.files
        yield from self.logs

    @property
    def deletions(self) -> list[Verdict]:
        """Return all files to delete, in order: the files of the stores, then the logs."""
        of_stores = [verdict for store in (*self.stores, *self.removed) for verdict in store.deletions]
        return of_stores + [verdict for verdict in self.logs if verdict.rule.deletes]

    def bounded(self, most_files: int) -> RetentionPlan:
        """Limit the plan to `most_files` deletions; the next run deletes the others."""
        order = self.deletions
        if len(order) <= most_files:
            return self
        # The order puts each zip before its tables, so the cut never deletes a table before the zip that names it.
        late = {verdict.path for verdict in order[most_files:]}
        stores, removed = (
            tuple(replace(one, files=tuple(v for v in one.files if v.path not in late)) for one in some)
            for some in (self.stores, self.removed)
        )
        logs = tuple(verdict for verdict in self.logs if verdict.path not in late)
        return replace(self, stores=stores, removed=removed, logs=logs, left_out=len(late))


def deletion_order(verdict: Verdict) -> tuple[int, int, str]:
    """Return the sort key for deletions. A sidecar sorts after its file: `1.zip`, `1.zip.crc`."""
    place = names.parse_store_path(verdict.path.removesuffix(names.SIDECAR))
    if place is None:
        return (1, 0, verdict.path)
    _, file = place
    return (0 if file.kind is names.StoreFileKind.SNAPSHOT else 2, file.version.version, verdict.path)


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
    def is_remembered(self) -> bool:
        """Return whether the next pass gathers only the stores that are due since this one."""
        return self.log is not None and gathers_only_due_stores(self.origin, self.log.newest, self.logs)

    @property
    def entries(self) -> Iterator[Entry]:
        """Yield the files of the gathered stores."""
        for chain in self.chains:
            yield from chain.files.entries


def gathers_only_due_stores(origin: Origin, heads: Heads, logs: LogFiles) -> bool:
    """Return whether a pass need not gather all stores of a checkpoint.

    In structure V1 the commits of all bases are kept, and one batch log has changelogs of all stores.
    """
    is_v1 = any(head.digest is not None for head in heads.heads.values())
    return origin is Origin.OWN and not is_v1 and not logs.batch_logs


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


_NO_FAMILIES = "the names of the column families are only in snapshots, and the store has no intact snapshot"


def findings_of(gathered: RetentionFacts, floor: int | None) -> Iterator[str]:
    """Yield the findings about the files. `floor`: the retained one."""
    for chain in gathered.chains:
        for version, facts in chain.snapshots.items():
            if facts.fault is not None:
                yield (
                    f"{facts.faulty_file}: a full read found damage: {facts.fault.text}; {chain.store.snapshot(version)} "
                    f"cannot be a base. Stop the query and run: statekeeper repair ROOT --apply --confirm-stopped"
                )
            elif facts.sidecar is not None:
                beside = names.sidecar(chain.store.snapshot(version))
                yield (
                    f"{beside}: {facts.sidecar}; Spark rejects the snapshot, and it cannot be a base. Run: "
                    f"statekeeper repair ROOT --apply --confirm-stopped"
                )
        for entry in chain.files.others:
            name = entry.path.rpartition("/")[2]
            stops = sparks.stops_loads(name) or sparks.stops_cleanup(name)
            if gathered.origin is Origin.NATIVE and stops:
                yield f"{entry.path}: Spark reads the name as a version number and fails; move the file out of the folder"
    if floor is not None and floor >= gathered.wanted_floor:
        return
    for chain in gathered.chains:
        loads = [number for number in loadable(chain) if number <= gathered.wanted_floor]
        if max(loads, default=0) < gathered.wanted_floor:
            holes = (_broken(chain, v) for v in reversed(chain.versions) if v in chain.broken and v not in chain.bases)
            broken = chain.conflicts or next(holes, chain.end or _NO_FAMILIES)
            yield f"{chain.store}: batch {gathered.wanted_floor - 1} does not load: {broken}"


def _broken(chain: Chain, version: VersionId) -> FileProblem:
    """Return why a version does not load: the damage of its snapshot if it has one, because repair can fix that."""
    damage = chain.snapshots[version].damage if version in chain.snapshots else None
    return damage or chain.broken[version]
