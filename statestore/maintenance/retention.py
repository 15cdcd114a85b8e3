"""Which files nobody needs any more, and deleting them.

    gather(storage, policy)  ->  Gathered  ->  plan(gathered, policy)  ->  RetentionPlan  ->  execute(storage, plan)

Every file gets a verdict with its rule; what no rule knows is kept. **Safety is monotone**: what was deletable once never
becomes referenced again, since no store deletes on a condition and a run may sleep between its plan and its deletions.

* Below the base of the floor lies nothing that a retained version needs, and the floor only rises.
* A version up to the head that the commit log does not name is dead for good.
* A table that no kept snapshot names may be named by one that is being made: `announcements` keeps them apart.

Sources: SPARK-38204 (what Spark's own maintenance keeps), FLIP-158 and FLIP-428 (files shared between snapshots).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from statestore import catalog
from statestore.catalog import CommitLog, StoreFiles
from statestore.chain import Chain, SnapshotFacts, look_at_snapshot, walk
from statestore.clock import Clock
from statestore.errors import CorruptFile, LeaseLost, RefusedAsUnsafe
from statestore.format import names
from statestore.format.names import StorePath, VersionId
from statestore.maintenance import announcements, last_pass
from statestore.maintenance.last_pass import LastPass
from statestore.maintenance.lease import HeldLease
from statestore.storage import DELETE_BATCH, TEMP_FOLDER, Entry, Storage, at_once

Strays = Mapping[StorePath, Mapping[VersionId, SnapshotFacts]]
"""Snapshots beside a store's chain, by store."""

MayDelete = Callable[[], None]
"""Raises when nothing more may be deleted."""


@dataclass(frozen=True)
class RetentionPolicy:
    """What stays: the newest `versions` versions, and everything younger than `grace_seconds`; both hold.

    `history_seconds`: how long records of maintenance stay. At most `most_files` files are deleted in a run.
    """

    versions: int = 100
    grace_seconds: float = 3600.0
    history_seconds: float = 30 * 86_400.0
    most_files: int = 100_000


class Rule(Enum):
    """Why a file is kept or deleted: an explanation for people."""

    RESTORES = "a retained version is restored from it"
    RUNNING = "newer than the head: an attempt may be at work"
    YOUNG = "younger than the grace period"
    LOG = "belongs to a retained batch"
    HELD = "its store cannot be judged: see the findings"
    UNKNOWN = "no file that is known"
    SUPERSEDED = "below the snapshot that the oldest retained version is restored from"
    DEAD_BRANCH = "of an attempt that was never committed"
    UNNAMED = "a table that no kept snapshot names"
    OLD_LOG = "belongs to a batch below the floor"
    OLD_RECORD = "an old record of maintenance"
    LEFTOVER = "an unfinished file of a dead process"

    @property
    def deletes(self) -> bool:
        """Whether a file under this rule goes."""
        return self in _DELETES


_DELETES = frozenset({Rule.SUPERSEDED, Rule.DEAD_BRANCH, Rule.UNNAMED, Rule.OLD_LOG, Rule.OLD_RECORD, Rule.LEFTOVER})


@dataclass(frozen=True)
class Verdict:
    """What becomes of one file."""

    path: str
    size_bytes: int
    rule: Rule


@dataclass(frozen=True)
class StoreVerdicts:
    """What becomes of the files of one store. `base`: what its floor version is restored from (`EMPTY`: nothing), None
    when that is not known, and then all of its chain is kept. `problem` says why."""

    store: StorePath
    base: VersionId | None
    files: tuple[Verdict, ...]
    problem: str | None = None

    @property
    def deletions(self) -> list[Verdict]:
        """In the order of deleting: zips before the tables that they name, then changelogs; the oldest first."""
        return sorted((v for v in self.files if v.rule.deletes), key=_deletion_order)


@dataclass(frozen=True)
class LogFiles:
    """Files of the query's logs and of maintenance, as listed."""

    offsets: tuple[Entry, ...] = ()
    commits: tuple[Entry, ...] = ()
    pending: tuple[Entry, ...] = ()
    history: tuple[Entry, ...] = ()
    announcements: tuple[Entry, ...] = ()
    leftovers: tuple[Entry, ...] = ()

    @property
    def newest_seconds(self) -> float:
        """When the newest of them was written: it is at least that late by the store's clock."""
        entries = (*self.offsets, *self.commits, *self.pending, *self.history, *self.announcements, *self.leftovers)
        return max((entry.modified_at_seconds or 0.0 for entry in entries), default=0.0)


@dataclass(frozen=True)
class Gathered:
    """The facts. `log` is None before the first commit. `strays`: snapshots that are not on a store's chain and may
    stay, by store. `wanted_floor`: the oldest version to retain by count and age. Time is seconds since the epoch.

    `since`: the last pass, when only the stores that are due since then were looked at.
    """

    is_own: bool
    log: CommitLog | None
    chains: tuple[Chain, ...]
    strays: Strays
    logs: LogFiles
    wanted_floor: int
    now_seconds: float
    since: LastPass | None = None


@dataclass(frozen=True)
class RetentionPlan:
    """What becomes of every file. `floor`: the oldest retained version, None when no version is known to load in every
    store; `wanted_floor`: what it would be if all stores were whole. `left_out`: deletions beyond the run's bound."""

    is_own: bool
    head: int | None
    floor: int | None
    wanted_floor: int
    stores: tuple[StoreVerdicts, ...]
    logs: tuple[Verdict, ...]
    findings: tuple[str, ...]
    left_out: int = 0

    @property
    def verdicts(self) -> Iterator[Verdict]:
        """All of them."""
        for store in self.stores:
            yield from store.files
        yield from self.logs

    @property
    def deletions(self) -> list[Verdict]:
        """All files that go, in order: the stores' files first, then the logs."""
        of_stores = [verdict for store in self.stores for verdict in store.deletions]
        return of_stores + [verdict for verdict in self.logs if verdict.rule.deletes]


def gather(storage: Storage, policy: RetentionPolicy, *, clock: Clock, everything: bool = False) -> Gathered:
    """The facts about the stores in which something may have changed since the last pass, or about `everything`.

    Everything: one listing of `state/`, one request a batch of the commit log, one for the lineage of each store's head,
    one for each retained snapshot. Otherwise none of these but for the stores that are due, and one of the newest
    commit. And a listing of each log. Raises `NotACheckpoint`, `CorruptFile` for a commit log that cannot be read
    (nothing may be deleted then), `StorageError`.
    """
    is_own = storage.stat(names.BINDING) is not None
    # The log before the files: what is committed in between is newer than this head, and stays.
    heads = catalog.heads(storage)
    logs = _log_files(storage)
    now = clock.now_seconds()
    if heads is None:
        return Gathered(is_own, None, (), {}, logs, 0, now)
    wanted = _wanted_floor(heads.batch + 1, logs.commits, policy, now)
    look = _Look(storage, policy, now)
    last = None if everything or not is_own else last_pass.read(storage)
    if last is not None:
        due = _due(storage, last, logs, wanted)
        if due is not None and due <= heads.heads.keys():
            files = {store: catalog.files(storage, store.folder).get(store, StoreFiles()) for store in due}
            log = CommitLog({heads.batch: heads.heads})
            chains, strays = look.at(log, files, wanted)
            if _common_floor(chains, wanted) == wanted or not chains:
                return Gathered(is_own, log, chains, strays, logs, wanted, now, last)
    full = catalog.commit_log(storage)
    assert full is not None
    found = catalog.files(storage)
    every = {store: found.get(store, StoreFiles()) for store in full.newest.heads}
    chains, strays = look.at(full, every, wanted)
    return Gathered(is_own, full, chains, strays, logs, wanted, now)


def _due(storage: Storage, last: LastPass, logs: LogFiles, wanted: int) -> frozenset[StorePath] | None:
    """The stores to look at since the last pass; None when all have to be."""
    since = last_pass.snapshot_plans(logs.history) - last.plans
    try:
        return last.due(wanted, last_pass.planned_stores(storage, since))
    except CorruptFile:
        return None


@dataclass(frozen=True)
class _Look:
    """Looks at stores."""

    storage: Storage
    policy: RetentionPolicy
    now_seconds: float

    def at(
        self, log: CommitLog, files: Mapping[StorePath, StoreFiles], wanted: int
    ) -> tuple[tuple[Chain, ...], Strays]:
        """The chains of these stores, as far back as a floor needs, and the snapshots that are not on them and may
        stay. Call it after the files were listed."""
        # Losing schedule of the other order: the announcements are read; another run announces a table, sees no zip that
        # names it, and sleeps before it deletes; a snapshot that names it is published, and found whole here; what is
        # below it is deleted; the other run wakes up. Its announcement came before that snapshot.
        doomed = announcements.doomed(self.storage)
        stores = sorted(files)
        chains: dict[StorePath, Chain] = {}
        down_to: int | None = wanted
        while down_to is not None:
            depth = down_to

            def follow(store: StorePath, depth: int = depth) -> None:
                committed = log.of_store(store)
                chains[store] = walk(self.storage, store, committed, files[store], down_to=depth, doomed=doomed)

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
                version.version > chain.versions[0].version
                or _is_young(entry, self.policy.grace_seconds, self.now_seconds)
            )
        ]


def _log_files(storage: Storage) -> LogFiles:
    folders = (names.OFFSETS, names.COMMITS, names.PENDING, names.HISTORY, names.DELETING, TEMP_FOLDER)
    return LogFiles(*(tuple(storage.list(folder)) for folder in folders))


def _wanted_floor(head: int, commits: Iterable[Entry], policy: RetentionPolicy, now_seconds: float) -> int:
    """The oldest version to retain, by count and by age."""
    young = [
        batch + 1
        for batch, entry in ((names.parse_batch(entry.path.rpartition("/")[2]), entry) for entry in commits)
        if batch is not None and _is_young(entry, policy.grace_seconds, now_seconds)
    ]
    # Below the oldest batch that there still is, nothing can be retained: an earlier pass has let it go.
    there = [batch + 1 for batch in (_batch_of(entry.path) for entry in commits) if batch is not None]
    return max(1, min([head - policy.versions + 1, *young]), min(there, default=1))


def _deeper(chains: list[Chain], depth: int) -> int | None:
    """How far back the chains must be known before a floor can be found; None when no further walk helps."""
    if _common_floor(chains, depth) is not None:
        return None
    reachable = [max((number for number in _loads(chain) if number <= depth), default=None) for chain in chains]
    known = [version for version in reachable if version is not None]
    lowest = min(known, default=depth)
    return lowest if len(known) == len(chains) and lowest < depth else None


def _loads(chain: Chain) -> set[int]:
    """The versions that load, beyond doubt."""
    return set() if chain.odds is not None else {version.version for version in chain.bases}


def _common_floor(chains: Iterable[Chain], wanted: int) -> int | None:
    """The newest version up to `wanted` that every store loads."""
    common: set[int] | None = None
    for chain in chains:
        loads = {number for number in _loads(chain) if number <= wanted}
        common = loads if common is None else common & loads
    return max(common, default=None) if common else None


def plan(gathered: Gathered, policy: RetentionPolicy) -> RetentionPlan:
    """What becomes of every file. Pure.

    The floor is the newest version, no newer than wanted, that *every* store loads: one damaged store holds it for all,
    since a restart has to go back to a version that all have. Garbage below the held floor goes all the same.
    """
    if gathered.log is None or not gathered.is_own:
        why = (
            () if gathered.is_own else ("written by Spark itself: this release deletes in roots of its own jobs only",)
        )
        head = None if gathered.log is None else gathered.log.newest.batch + 1
        return RetentionPlan(gathered.is_own, head, None, gathered.wanted_floor, (), (), why)
    floor = _floor(gathered)
    findings = list(_findings(gathered, floor))
    judge = _Judge(gathered, policy, floor)
    stores = tuple(judge.store(chain) for chain in gathered.chains)
    findings += [f"{store.store}: {store.problem}" for store in stores if store.problem]
    head = gathered.log.newest.batch + 1
    whole = RetentionPlan(True, head, floor, gathered.wanted_floor, stores, judge.logs(), tuple(findings))
    return _bounded(whole, policy.most_files)


def _floor(gathered: Gathered) -> int | None:
    # Stores that were not looked at are known to load it.
    return gathered.wanted_floor if gathered.since else _common_floor(gathered.chains, gathered.wanted_floor)


def judge_stores(gathered: Gathered, policy: RetentionPolicy) -> Mapping[StorePath, StoreVerdicts]:
    """What the rules say of each store's files, whoever wrote them: for looking at, a plan may say less. Pure."""
    judge = _Judge(gathered, policy, _floor(gathered))
    return {chain.store: judge.store(chain) for chain in gathered.chains}


def _findings(gathered: Gathered, floor: int | None) -> Iterator[str]:
    if floor == gathered.wanted_floor:
        return
    for chain in gathered.chains:
        loads = [number for number in _loads(chain) if number <= gathered.wanted_floor]
        if max(loads, default=0) < gathered.wanted_floor:
            holes = (chain.broken[v] for v in reversed(chain.versions) if v in chain.broken and v not in chain.bases)
            broken = chain.odds or next(holes, chain.end)
            yield f"{chain.store}: version {gathered.wanted_floor} does not load: {broken}"


class _Judge:
    """Gives each file its rule."""

    def __init__(self, gathered: Gathered, policy: RetentionPolicy, floor: int | None) -> None:
        self._gathered = gathered
        self._policy = policy
        self._floor = floor

    def store(self, chain: Chain) -> StoreVerdicts:
        """The verdicts over one store's files."""
        at_floor = next((version for version in chain.versions if version.version == self._floor), None)
        base = None if at_floor is None or chain.odds is not None else chain.bases.get(at_floor)
        verdicts = [Verdict(entry.path, entry.size_bytes, Rule.UNKNOWN) for entry in chain.files.others]
        for version, entry in chain.files.changelogs.items():
            rule = self._version_rule(chain, base, version, entry, is_snapshot=False)
            verdicts.append(Verdict(entry.path, entry.size_bytes, rule))
        kept: dict[VersionId, SnapshotFacts | None] = {}
        seen = {**self._gathered.strays.get(chain.store, {}), **chain.snapshots}
        for version, entry in chain.files.snapshots.items():
            rule = self._version_rule(chain, base, version, entry, is_snapshot=True)
            verdicts.append(Verdict(entry.path, entry.size_bytes, rule))
            if not rule.deletes:
                kept[version] = seen.get(version)
        unread = [version for version, facts in kept.items() if facts is None or facts.metadata is None]
        named = {
            t.dfs_name for f in kept.values() if f is not None and f.metadata is not None for t in f.metadata.tables
        }
        for name, entry in chain.files.tables.items():
            verdicts.append(Verdict(entry.path, entry.size_bytes, self._table_rule(name, entry, named, unread)))
        problem = None
        if base is None:
            problem = (
                f"no version up to {self._gathered.wanted_floor} is known to load in every store: nothing of it goes"
            )
        elif unread:
            problem = f"which tables {chain.store.snapshot(unread[0])} names is not known: none goes"
        return StoreVerdicts(chain.store, base, tuple(sorted(verdicts, key=lambda v: v.path)), problem)

    def _version_rule(
        self, chain: Chain, base: VersionId | None, version: VersionId, entry: Entry, *, is_snapshot: bool
    ) -> Rule:
        if version.version > chain.head.version:
            return Rule.RUNNING
        if chain.odds is not None:
            return Rule.HELD
        if version in chain.versions:
            if base is None:
                return Rule.HELD
            # A snapshot at the base is what is restored from; its changelog adds nothing.
            oldest = base.version if is_snapshot else base.version + 1
            rule = Rule.RESTORES if version.version >= oldest else Rule.SUPERSEDED
        elif version.version > chain.versions[0].version:
            rule = Rule.DEAD_BRANCH
        else:
            # Older than the chain is known: dead or not, it is below the base, when there is one.
            rule = Rule.HELD if base is None else Rule.SUPERSEDED
        if rule.deletes and self._is_young(entry):
            return Rule.YOUNG
        return rule

    def _table_rule(self, name: str, entry: Entry, named: set[str], unread: list[VersionId]) -> Rule:
        if name in named:
            return Rule.RESTORES
        if unread:
            return Rule.HELD
        return Rule.YOUNG if self._is_young(entry) else Rule.UNNAMED

    def logs(self) -> tuple[Verdict, ...]:
        """The verdicts over logs and records."""
        files = self._gathered.logs
        verdicts = [
            self._log_verdict(entry, _batch_of(entry.path))
            for entry in (*files.offsets, *files.commits, *files.pending)
        ]
        verdicts += [
            self._record(e, self._policy.history_seconds, Rule.OLD_RECORD, self._gathered.now_seconds)
            for e in files.history
        ]
        # Losing schedule: by a clock that is ahead, the announcement of a run that lives looks old, and what it dooms is
        # rested on. So by the store's own clock, as far as its files show it.
        now = files.newest_seconds
        stands = announcements.STANDS_SECONDS
        verdicts += [self._record(e, stands, Rule.OLD_RECORD, now) for e in files.announcements]
        # The longest upload that is still under way is no older than an announcement may stand.
        verdicts += [self._record(e, stands, Rule.LEFTOVER, now) for e in files.leftovers]
        return tuple(sorted(verdicts, key=_log_order))

    def _log_verdict(self, entry: Entry, batch: int | None) -> Verdict:
        if batch is None:
            return Verdict(entry.path, entry.size_bytes, Rule.UNKNOWN)
        if self._floor is None or batch >= self._floor - 1:
            return Verdict(entry.path, entry.size_bytes, Rule.LOG)
        return Verdict(entry.path, entry.size_bytes, Rule.YOUNG if self._is_young(entry) else Rule.OLD_LOG)

    def _record(self, entry: Entry, stays_seconds: float, rule: Rule, now_seconds: float) -> Verdict:
        young = _is_young(entry, stays_seconds, now_seconds)
        return Verdict(entry.path, entry.size_bytes, Rule.YOUNG if young else rule)

    def _is_young(self, entry: Entry) -> bool:
        return _is_young(entry, self._policy.grace_seconds, self._gathered.now_seconds)


def _is_young(entry: Entry, seconds: float, now_seconds: float) -> bool:
    """A file without a time, or from the future, is young."""
    return entry.modified_at_seconds is None or now_seconds - entry.modified_at_seconds < seconds


def _batch_of(path: str) -> int | None:
    name = path.rpartition("/")[2]
    pending = names.parse_pending(name)
    return pending[0] if pending else names.parse_batch(name)


def _log_order(verdict: Verdict) -> tuple[int, str]:
    """The oldest batch first, so that what a crash leaves has no gap."""
    batch = _batch_of(verdict.path)
    return (-1 if batch is None else batch, verdict.path)


def _deletion_order(verdict: Verdict) -> tuple[int, int, str]:
    place = names.parse_store_path(verdict.path)
    if place is None:
        return (1, 0, verdict.path)
    _, file = place
    return (0 if file.kind is names.StoreFileKind.SNAPSHOT else 2, file.version.version, verdict.path)


def _bounded(whole: RetentionPlan, most_files: int) -> RetentionPlan:
    """The plan with so many deletions at most; the rest waits for the next run."""
    order = whole.deletions
    if len(order) <= most_files:
        return whole
    # A table must not go before the zip that names it: the cut goes through a list in which it stands behind.
    late = {verdict.path for verdict in order[most_files:]}
    stores = tuple(
        StoreVerdicts(s.store, s.base, tuple(v for v in s.files if v.path not in late), s.problem) for s in whole.stores
    )
    logs = tuple(verdict for verdict in whole.logs if verdict.path not in late)
    return RetentionPlan(
        whole.is_own, whole.head, whole.floor, whole.wanted_floor, stores, logs, whole.findings, len(late)
    )


class Outcome(Enum):
    """What became of the deletions of one store, or of the logs."""

    DONE = "deleted"
    CHANGED = "left alone: what the plan rests on has changed"


@dataclass(frozen=True)
class Deleted:
    """What one request did. `store` is None for the logs; `spared`: announced tables that a new snapshot names."""

    store: StorePath | None
    outcome: Outcome
    files: int
    size_bytes: int
    spared: tuple[str, ...] = ()
    detail: str = ""


def execute(storage: Storage, planned: RetentionPlan, *, run: str, lease: HeldLease, clock: Clock) -> Iterator[Deleted]:
    """Delete what the plan says, store by store, and say after each request what was done.

    *Guarantee*: a crash at any request leaves every retained version loadable; running it again finishes it. Before a
    store's files go it is looked at again: its base must still be whole, and a table that a new snapshot names is
    spared. Raises `LeaseLost`, `RefusedAsUnsafe` when the plan has grown too old, `StorageError`.
    """
    if not planned.is_own:
        raise RefusedAsUnsafe(
            "a checkpoint that Spark itself writes", path=storage.url, hint="this release only plans there"
        )
    started = clock.monotonic_seconds()

    def may_delete() -> None:
        lease.require()
        if clock.monotonic_seconds() - started > announcements.DELETES_FOR_SECONDS:
            raise RefusedAsUnsafe("the plan has grown old while it was executed", hint="run it again")

    tables = [v.path for store in planned.stores for v in store.deletions if v.rule is Rule.UNNAMED]
    if tables:
        may_delete()
        announcements.announce(storage, run, tables)
    try:
        for store in planned.stores:
            if store.deletions:
                yield from _execute_store(storage, store, may_delete)
        logs = [verdict for verdict in planned.logs if verdict.rule.deletes]
        for part in _delete(storage, logs, may_delete):
            yield Deleted(None, Outcome.DONE, len(part), sum(verdict.size_bytes for verdict in part))
    except (LeaseLost, RefusedAsUnsafe):
        # No request is under way: what is left is not going to be deleted by this run.
        if tables:
            announcements.withdraw(storage, run)
        raise
    if tables:
        announcements.withdraw(storage, run)


def remember(storage: Storage, gathered: Gathered, planned: RetentionPlan, done: Iterable[Deleted]) -> None:
    """After a plan was executed to its end: leave for the next pass what it need not look at again.

    Raises `StorageError`.
    """
    verified = gathered.since.verified if gathered.since else last_pass.verified_by(gathered.chains)
    if verified is None or planned.left_out or planned.floor is None:
        return
    changed = {step.store for step in done if step.outcome is Outcome.CHANGED}
    verified = (max(verified[0], planned.floor), verified[1])
    waiting = dict(gathered.since.waiting) if gathered.since else {}
    for chain, verdicts in zip(gathered.chains, planned.stores, strict=True):
        base = verdicts.base
        unfinished = (
            base is None
            or chain.store in changed
            or any(verdict.rule in (Rule.YOUNG, Rule.HELD) for verdict in verdicts.files)
        )
        newer = tuple(v.version for v in chain.snapshots if base is not None and v.version > base.version)
        waiting[chain.store] = (last_pass.ALWAYS,) if unfinished else newer
    last_pass.write(storage, LastPass(verified, waiting, last_pass.settled_plans(gathered.logs.history)))


def _execute_store(storage: Storage, planned: StoreVerdicts, may_delete: MayDelete) -> Iterator[Deleted]:
    store, deletions = planned.store, planned.deletions
    files = catalog.files(storage, store.folder).get(store, StoreFiles())
    if planned.base is not None and planned.base.version > 0:
        facts = look_at_snapshot(storage, store, planned.base, files)
        if not facts.is_whole:
            yield Deleted(store, Outcome.CHANGED, 0, 0, detail=facts.damage or "")
            return
    going = {verdict.path for verdict in deletions}
    # The tables of snapshots that the plan does not speak of: those that were published since, those beyond its bound.
    known = {verdict.path for verdict in planned.files}
    named: set[str] = set()
    for version in files.snapshots:
        if store.snapshot(version) in known:
            continue
        facts = look_at_snapshot(storage, store, version, files)
        if facts.metadata is None:
            yield Deleted(store, Outcome.CHANGED, 0, 0, detail=facts.damage or "")
            return
        named |= {store.table_file(table.dfs_name) for table in facts.metadata.tables}
    spared = tuple(sorted(going & named))
    chosen = [verdict for verdict in deletions if verdict.path not in named]
    for _, alike in groupby(chosen, key=lambda verdict: _deletion_order(verdict)[0]):
        for part in _delete(storage, list(alike), may_delete):
            yield Deleted(store, Outcome.DONE, len(part), sum(verdict.size_bytes for verdict in part), spared)
            spared = ()
    if spared:
        yield Deleted(store, Outcome.DONE, 0, 0, spared)


def _delete(storage: Storage, verdicts: list[Verdict], may_delete: MayDelete) -> Iterator[list[Verdict]]:
    """Delete them in as few requests as may be; after each, what it took."""
    for start in range(0, len(verdicts), DELETE_BATCH):
        part = verdicts[start : start + DELETE_BATCH]
        may_delete()
        storage.delete([verdict.path for verdict in part])
        yield part
